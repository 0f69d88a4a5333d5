//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestAnAxisEndsAtARoundNumber(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, .9: 1, 32: 40, 134: 150, 288: 300, 5000: 5000, 5001: 6000, 81: 100} {
		if got := roundUp(v); got != want {
			t.Errorf("above %v comes %v, want %v", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", .3: "0.3", 3 * .2: "0.6", 800: "800", 4000: "4,000", 100000: "100,000", 1200000: "1,200,000"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}

func TestNamesOfLinesThatEndTogetherCanBothBeRead(t *testing.T) {
	p := plot{title: "t", x: "x", y: "y", lines: []line{
		{"low", [][2]float64{{0, 0}, {1, 10}}}, {"high", [][2]float64{{0, 0}, {1, 10.1}}}, {"far", [][2]float64{{0, 0}, {1, 1}}},
	}}
	got := p.labels(func(y float64) float64 { return 100 - y })
	if got[1] != 89.9 || got[0] != got[1]+14 || got[2] != got[0]+14 {
		t.Errorf("names at %v", got)
	}
	if svg := p.svg(); strings.Count(svg, "<circle") != 6 || !strings.Contains(svg, ">far</text>") {
		t.Errorf("drawn as %s", svg)
	}
}
