//go:build linux

package main

import (
	"crypto/tls"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestFigureIsTheMedianBetweenQuartiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   figure
	}{
		{"one value", []float64{3}, figure{3, 3, 3}},
		{"an odd number, unsorted", []float64{5, 1, 3}, figure{3, 2, 4}},
		{"an even number", []float64{1, 2, 3, 4}, figure{2.5, 1.75, 3.25}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := figureOfValues(c.values); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestALimitIsMissedByFarBeyondTheSlack(t *testing.T) {
	for _, c := range []struct {
		name     string
		v        verdict
		met, far bool
	}{
		{"a limit kept", atMost("", 1, 1), true, false},
		{"a limit missed by 10 %", atMost("", 1.1, 1), false, false},
		{"a limit missed by 20 %", atMost("", 1.2, 1), false, true},
		{"a floor kept", atLeast("", 2, 2), true, false},
		{"a floor missed by 10 %", atLeast("", 1.8, 2), false, false},
		{"a floor missed by half", atLeast("", 1, 2), false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.v.met() != c.met || c.v.far() != c.far {
				t.Errorf("met %v, far %v; want %v, %v", c.v.met(), c.v.far(), c.met, c.far)
			}
		})
	}
}

func TestTheHelloIsOneThatAServerUnderstands(t *testing.T) {
	hello, err := clientHello(originName)
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer near.Close()
	seen := make(chan string, 1)
	go func() {
		defer far.Close()
		tls.Server(far, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			seen <- h.ServerName
			return nil, nil
		}}).Handshake()
	}()
	if _, err := near.Write(hello); err != nil {
		t.Fatal(err)
	}
	if name := <-seen; name != originName {
		t.Errorf("the server saw %q, want %q", name, originName)
	}
}

func TestUsageCountsChildren(t *testing.T) {
	sleep := exec.Command("sh", "-c", "sleep 60 & sleep 60 & wait")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		pids, err := treeOf(sleep.Process.Pid)
		if err != nil {
			t.Error(err)
		}
		slices.Reverse(pids) // children first, lest they are orphaned
		for _, pid := range pids {
			if p, err := os.FindProcess(pid); err == nil {
				p.Kill()
			}
		}
		sleep.Wait()
	}()
	var pids []int
	for range 1000 { // until the shell has started both
		var err error
		if pids, err = treeOf(sleep.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if len(pids) == 3 {
			break
		}
	}
	u, err := (&process{cmd: sleep}).usage()
	if err != nil {
		t.Fatal(err)
	}
	if len(pids) != 3 || u.rss == 0 || u.descriptors < 9 {
		t.Errorf("%d processes, %+v; want 3 with three descriptors each", len(pids), u)
	}
}

func TestASectionIsMarkdown(t *testing.T) {
	var out strings.Builder
	section{
		columns: []string{"peer", "µs"}, rows: [][]string{{"exeat", "7"}},
		verdicts: []verdict{atMost("µs", 7, 5), atMost("µs ÷ haproxy's", math.NaN(), 1)},
	}.write(&out)
	want := "| peer | µs |\n|---|---|\n| exeat | 7 |\n\n- **missed**: µs: 7 (≤ 5), by 40 %\n- not measured: µs ÷ haproxy's\n\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestTheNotesAreReadByTarget(t *testing.T) {
	got := notesOf("# Notes\n\nWhat was tried.\n\n## P4\n\nOne thing.\n\nAnother.\n\n## P8-direct\nA third.\n")
	if len(got) != 2 || got["P4"] != "One thing.\n\nAnother." || got["P8-direct"] != "A third." {
		t.Errorf("got %q", got)
	}
}
