//go:build linux

package sidecar

import (
	"context"
	"errors"
	"testing"
	"time"
)

// swapsSeen is what Settled says, one look after the other; the last stays.
type swapsSeen struct {
	looks []uint64
}

func (s *swapsSeen) settled() (uint64, bool) {
	n := s.looks[0]
	if len(s.looks) > 1 {
		s.looks = s.looks[1:]
	}
	return n, n%2 == 0
}

func TestWhatAProbeSeesAmidASwapSaysNothing(t *testing.T) {
	out := errors.New("out")
	for name, c := range map[string]struct {
		looks []uint64
		tries []error
		want  probeResult
	}{
		"what misbehaves without a swap is told":             {[]uint64{2}, []error{out}, probeResult{err: out}},
		"what behaves is told":                               {[]uint64{2, 4}, []error{nil}, probeResult{}},
		"nothing is tried amid a swap":                       {[]uint64{3, 3, 4}, []error{nil}, probeResult{}},
		"a swap that begins meanwhile explains what is seen": {[]uint64{2, 3, 4}, []error{out, nil}, probeResult{}},
		"one that begins and ends does":                      {[]uint64{2, 4, 4}, []error{out, nil}, probeResult{}},
		"what misbehaves again without one is told":          {[]uint64{2, 4, 4, 4}, []error{out, out}, probeResult{err: out}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &flowProbe{settled: (&swapsSeen{c.looks}).settled}
			tries := 0
			got := p.betweenSwaps(t.Context(), func() probeResult {
				tries++
				return probeResult{err: c.tries[tries-1]}
			})
			if got != c.want || tries != len(c.tries) {
				t.Errorf("%+v after %d tries, want %+v after %d", got, tries, c.want, len(c.tries))
			}
		})
	}
	t.Run("a policy that never settles is no breach", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		got := (&flowProbe{settled: (&swapsSeen{[]uint64{1}}).settled}).betweenSwaps(ctx, func() probeResult { return probeResult{err: out} })
		if !got.amid || got.err != nil || got.skipped == "" {
			t.Errorf("%+v", got)
		}
	})
}
