//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// plot is a chart of lines over one axis, both axes from 0.
type plot struct {
	title, x, y string
	lines       []line
}

// line is what one peer costs at each x.
type line struct {
	name   string
	points [][2]float64
}

// The size of a chart and of its margins, in pixels.
const (
	plotWidth, plotHeight = 640, 400
	plotLeft, plotBottom  = 70, 50
	plotTop, plotRight    = 40, 110
)

// colours tell lines apart for most eyes (Okabe and Ito).
var colours = [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}

// svg draws the chart.
func (p plot) svg() string {
	maxX, maxY := p.bounds()
	at := func(x, y float64) (float64, float64) {
		w, h := float64(plotWidth-plotLeft-plotRight), float64(plotHeight-plotTop-plotBottom)
		return plotLeft + x/maxX*w, plotHeight - plotBottom - y/maxY*h
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="24" font-size="15">%s</text>`+"\n", plotLeft, p.title)
	for i := range 6 {
		share := float64(i) / 5
		x, y := at(maxX*share, maxY*share)
		left, bottom := at(0, 0)
		right, _ := at(maxX, 0)
		fmt.Fprintf(&b, `<path d="M%.0f %.0fH%.0f" stroke="#ddd"/><text x="%.0f" y="%.0f" text-anchor="end">%s</text>`+"\n", left, y, right, left-6, y+4, number(maxY*share))
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" text-anchor="middle">%s</text>`+"\n", x, bottom+18, number(maxX*share))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, plotHeight-12, p.x)
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (plotTop+plotHeight-plotBottom)/2, p.y)
	labels := p.labels(func(y float64) float64 {
		_, height := at(0, y)
		return height
	})
	for i, l := range p.lines {
		colour := colours[i%len(colours)]
		var path strings.Builder
		for j, point := range l.points {
			x, y := at(point[0], point[1])
			step := "L"
			if j == 0 {
				step = "M"
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", step, x, y)
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x, y, colour)
		}
		x, _ := at(l.last()[0], 0)
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%.0f" y="%.0f" fill="%s">%s</text>`+"\n", path.String(), colour, x+8, labels[i]+4, colour, l.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// labels are the heights of the lines' names, each at its line's end, or as far below the
// one above that both can be read.
func (p plot) labels(height func(y float64) float64) []float64 {
	const apart = 14
	order := make([]int, len(p.lines))
	heights := make([]float64, len(p.lines))
	for i, l := range p.lines {
		order[i], heights[i] = i, height(l.last()[1])
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(heights[a], heights[b]) })
	for i := 1; i < len(order); i++ {
		heights[order[i]] = max(heights[order[i]], heights[order[i-1]]+apart)
	}
	return heights
}

func (l line) last() [2]float64 { return l.points[len(l.points)-1] }

// bounds are the ends of the axes: a round number above all points.
func (p plot) bounds() (x, y float64) {
	for _, l := range p.lines {
		for _, point := range l.points {
			x, y = max(x, point[0]), max(y, point[1])
		}
	}
	return roundUp(x), roundUp(y)
}

// roundUp gives the next figure whose fifths are round.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if v <= m*unit {
			return m * unit
		}
	}
	return 10 * unit
}

// number has its thousands apart, and no more digits than are right of fifths.
func number(v float64) string {
	text := strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
	whole, _, _ := strings.Cut(text, ".")
	for at := len(whole) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
