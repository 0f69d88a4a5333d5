package dnsfilter

import (
	"slices"
	"sync"
	"time"
)

const (
	// failuresDown is how many failures in a row make an upstream unhealthy.
	failuresDown = 2
	// restDown is how long an unhealthy upstream is asked last.
	restDown = 10 * time.Second
)

// Health is the state of one upstream.
type Health struct {
	Upstream string
	Healthy  bool
	// LastError is the latest failure, empty when the latest answer came after it.
	LastError string
	// Since is when Healthy last changed; zero when it never did.
	Since              time.Time
	Questions, Failed  uint64
	LatestResponseTime time.Duration
}

// health counts what an upstream did.
type health struct {
	mu     sync.Mutex
	state  Health
	inARow int
	rests  time.Time // asked last until then
}

func (h *health) succeeded(took time.Duration, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.Questions++
	h.state.LatestResponseTime = took
	h.state.LastError, h.inARow = "", 0
	if !h.state.Healthy {
		h.state.Healthy, h.state.Since = true, now
	}
}

func (h *health) failed(err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.Questions++
	h.state.Failed++
	h.state.LastError = err.Error()
	if h.inARow++; h.inARow < failuresDown {
		return
	}
	h.rests = now.Add(restDown)
	if h.state.Healthy {
		h.state.Healthy, h.state.Since = false, now
	}
}

// resting says whether the upstream should be asked after the others.
func (h *health) resting(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.state.Healthy && now.Before(h.rests)
}

// Upstreams reports the health of every upstream, in configured order, the
// engine's last.
func (s *Server) Upstreams() []Health {
	all := s.upstreams
	if s.engine != nil {
		all = append(slices.Clip(all), s.engine)
	}
	out := make([]Health, 0, len(all))
	for _, u := range all {
		u.health.mu.Lock()
		out = append(out, u.health.state)
		u.health.mu.Unlock()
	}
	return out
}
