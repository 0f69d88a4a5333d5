//go:build linux

package main

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
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

func TestOnlyARatioMissedBeyondTheSlackGates(t *testing.T) {
	for _, c := range []struct {
		name        string
		v           verdict
		met, missed bool
	}{
		{"a limit kept", verdict{got: 1, limit: 1, ratio: true}, true, false},
		{"a limit missed by 10 %", verdict{got: 1.1, limit: 1, ratio: true}, false, false},
		{"a limit missed by 20 %", verdict{got: 1.2, limit: 1, ratio: true}, false, true},
		{"an absolute limit missed by far", verdict{got: 9, limit: 1}, false, false},
		{"a floor kept", verdict{got: 2, limit: 2, atLeast: true, ratio: true}, true, false},
		{"a floor missed by 10 %", verdict{got: 1.8, limit: 2, atLeast: true, ratio: true}, false, false},
		{"a floor missed by half", verdict{got: 1, limit: 2, atLeast: true, ratio: true}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.v.met() != c.met || c.v.missed() != c.missed {
				t.Errorf("met %v, missed %v; want %v, %v", c.v.met(), c.v.missed(), c.met, c.missed)
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
		verdicts: []verdict{{what: "µs", got: 7, limit: 5}},
	}.write(&out)
	want := "| peer | µs |\n|---|---|\n| exeat | 7 |\n\n- **missed**: µs: 7 (≤ 5), by 40 %\n\n"
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

func TestAGateIsTriedThreeTimesAndJudgedOnlyWhereItIsQuiet(t *testing.T) {
	miss := section{verdicts: []verdict{{what: "ratio", got: 2, limit: 1, ratio: true}}}
	for _, c := range []struct {
		name   string
		taken  []section // what each try finds
		busy   bool
		tries  int
		judged bool
		missed int
	}{
		{"met at once", []section{{}}, false, 1, true, 0},
		{"met at the third try", []section{miss, miss, {}}, false, 3, true, 0},
		{"missed three times", []section{miss, miss, miss}, false, 3, true, 1},
		{"missed beside others", []section{miss}, true, 1, false, 1},
		{"met beside others", []section{{}}, true, 1, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tries := 0
			g := gate{log: io.Discard, until: time.Now().Add(time.Hour), others: func() (float64, error) {
				if c.busy {
					return .5, nil
				}
				return .01, nil
			}}
			s, judged, err := g.measure(nil, target{measure: func(*lab) (section, error) {
				tries++
				return c.taken[tries-1], nil
			}})
			if err != nil || tries != c.tries || judged != c.judged || len(s.gatesMissed()) != c.missed {
				t.Errorf("%d tries, judged %v, %d missed, %v", tries, judged, len(s.gatesMissed()), err)
			}
		})
	}
}
