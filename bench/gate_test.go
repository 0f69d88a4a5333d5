//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// tried is what one try of a target finds, and whether the machine was loud meanwhile.
type tried struct {
	section section
	err     error
	loud    bool
}

func TestARunFailsWhereAGateIsMissedInEveryTryOnAQuietMachine(t *testing.T) {
	gates := func(first, second float64) tried {
		return tried{section: section{verdicts: []verdict{
			atMost("first", first, 1).gates(), atMost("second", second, 1).gates(),
			atMost("rate", 9, 1).tells(), atMost("time", 9, 1), atMost("peer", math.NaN(), 1).gates(),
		}}}
	}
	beside := func(one tried) tried {
		one.loud = true
		return one
	}
	met, miss, broken := gates(1, 1), gates(2, 1), tried{err: errors.New("does not start")}
	const (
		unjudged = "not judged"
		failed   = "in every try"
	)
	for _, c := range []struct {
		name  string
		tries []tried
		want  string // in the error, or in what is told
	}{
		{"met at once", []tried{met}, ""},
		{"missed within the slack", []tried{gates(1.1, 1)}, ""},
		{"met at the last try", []tried{miss, miss, miss, miss, met}, ""},
		{"two gates met in different tries", []tried{gates(2, 1), gates(1, 2)}, ""},
		{"missed every time", []tried{miss, miss, miss, miss, miss}, failed},
		{"another gate missed meanwhile", []tried{gates(2, 1), gates(2, 2), gates(2, 2), miss, miss}, failed},
		{"missed beside others", []tried{beside(miss), beside(miss), beside(miss), beside(miss), beside(miss)}, unjudged},
		{"missed mostly beside others", []tried{miss, beside(miss), beside(miss), miss, beside(miss)}, unjudged},
		{"missed in three quiet tries of five", []tried{miss, beside(miss), miss, beside(miss), miss}, failed},
		{"met beside others", []tried{beside(met)}, ""},
		{"an error, then met", []tried{broken, met}, ""},
		{"an error every time", []tried{broken, broken, broken, broken, broken}, "does not start"},
		{"an error every time beside others", []tried{beside(broken), beside(broken), beside(broken), beside(broken), beside(broken)}, unjudged},
		{"missed or broken every time", []tried{miss, broken, miss, broken, miss}, failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			done := 0
			j := &judge{
				log: &log, began: time.Now(), open: func() (*lab, error) { return nil, nil },
				listen: func(_ context.Context, f func() error) (n noise, err error) {
					if err = f(); c.tries[done-1].loud {
						n.others = .5
					}
					return n, err
				},
			}
			if _, err := j.measure(t.Context(), target{id: "P0", measure: func(*lab) (section, error) {
				done++
				return c.tries[done-1].section, c.tries[done-1].err
			}}); err != nil {
				t.Fatal(err)
			}
			err := j.verdict()
			if done != len(c.tries) {
				t.Errorf("%d tries, want %d", done, len(c.tries))
			}
			fails := c.want != "" && c.want != unjudged
			if (err != nil) != fails || fails && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one: %v", err, fails)
			}
			if got := strings.Contains(log.String(), "TOLD: not judged"); got != (c.want == unjudged) {
				t.Errorf("told %q", &log)
			}
			if j.judged > 0 && (!strings.Contains(log.String(), "not measured: peer") || !strings.Contains(log.String(), "rate")) {
				t.Errorf("told %q, want the gate without a peer and the rate", &log)
			}
		})
	}
}

func TestWhatIsNotMeasuredInTimeFailsNothing(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	j := &judge{log: &log, began: time.Now()}
	if _, err := j.measure(ctx, target{id: "P0"}); err != nil {
		t.Fatal(err)
	}
	if err := j.verdict(); err != nil || !strings.Contains(log.String(), "for want of time: P0") {
		t.Errorf("%v, told %q", err, &log)
	}
}

func TestNothingIsTriedAgainLate(t *testing.T) {
	var log bytes.Buffer
	tries := 0
	j := &judge{
		log: &log, began: time.Now().Add(-triesLimit), open: func() (*lab, error) { return nil, nil },
		listen: func(_ context.Context, f func() error) (noise, error) { return noise{}, f() },
	}
	if _, err := j.measure(t.Context(), target{id: "P0", measure: func(*lab) (section, error) {
		tries++
		return section{verdicts: []verdict{atMost("cost", 2, 1).gates()}}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	if err := j.verdict(); err != nil || tries != 1 || !strings.Contains(log.String(), "TOLD: not judged") {
		t.Errorf("%d tries, %v, told %q", tries, err, &log)
	}
}

func TestAnInterruptEndsARun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	j := &judge{
		log: &bytes.Buffer{}, began: time.Now(), open: func() (*lab, error) { return nil, nil },
		listen: func(_ context.Context, f func() error) (noise, error) { return noise{}, f() },
	}
	if _, err := j.measure(ctx, target{measure: func(*lab) (section, error) {
		cancel()
		return section{}, ctx.Err()
	}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestOthersAtWorkAreHeard has a process that is not of our making, since its parent has
// ended, use a processor.
func TestOthersAtWorkAreHeard(t *testing.T) {
	sh := exec.Command("sh", "-c", `timeout 60 sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!`)
	out, err := sh.Output()
	if err != nil {
		t.Fatal(err)
	}
	defer exec.Command("kill", strings.TrimSpace(string(out))).Run()
	n, err := listen(t.Context(), func() error {
		// Until it has used some, however many others there are.
		first, err := standings()
		for began := time.Now(); err == nil && time.Since(began) < 30*time.Second; {
			var now standing
			if now, err = standings(); err == nil && first.until(now).others > 0 && time.Since(began) > time.Second {
				return nil
			}
		}
		return err
	})
	if err != nil || n.others <= 0 || len(n.String()) == 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestWeAreNotHeard(t *testing.T) {
	others, err := spentByOthers()
	if err != nil {
		t.Fatal(err)
	}
	if _, heard := others[os.Getpid()]; heard || len(others) == 0 {
		t.Errorf("%d processes, ourselves among them: %v", len(others), heard)
	}
}
