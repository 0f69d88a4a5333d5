//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// sample is one measurement: what the client saw, and the processor seconds of
// everybody who took part.
type sample struct {
	loadResult
	client, proxy, origin float64
}

// all is the processor seconds of every process together.
func (s sample) all() float64 { return s.client + s.proxy + s.origin }

// gbits is the rate in Gbit/s, where units are bytes.
func (s sample) gbits() float64 { return s.Units * 8 / 1e9 / s.Seconds }

// allPerGB and proxyPerGB are processor seconds a gigabyte.
func (s sample) allPerGB() float64   { return s.all() / (s.Units / 1e9) }
func (s sample) proxyPerGB() float64 { return s.proxy / (s.Units / 1e9) }

// proxyEach is the proxy's processor time a connection, trip or question, in µs.
func (s sample) proxyEach() float64 { return s.proxy / s.Units * 1e6 }

func (s sample) p50() float64 { return s.P50 }
func (s sample) p99() float64 { return s.P99 }

// loadCommand is a client of p.
func (l *lab) loadCommand(p *peer, mode string, n, streams int) []string {
	command := []string{
		l.program, "load", "-mode", mode, "-n", strconv.Itoa(n), "-streams", strconv.Itoa(streams),
		"-target", p.target(),
	}
	if p.connect {
		command = append(command, "-connect", fmt.Sprintf("127.0.0.1:%d", p.port))
	}
	return command
}

// target is what p's clients want to reach.
func (p *peer) target() string {
	if _, err := netip.ParseAddrPort(p.address); err == nil {
		return p.address // a resolver's own
	}
	return fmt.Sprintf("%s:%d", p.address, originPort)
}

// load runs a client of p to its end.
func (l *lab) load(p *peer, mode string, n, streams int) (sample, error) {
	if err := l.ctx.Err(); err != nil {
		return sample{}, err
	}
	proxyBefore, err := p.process.usage()
	if err != nil {
		return sample{}, err
	}
	originBefore, err := l.origin.usage()
	if err != nil {
		return sample{}, err
	}
	command := l.loadCommand(p, mode, n, streams)
	client := exec.CommandContext(l.ctx, command[0], command[1:]...)
	var stdout, stderr bytes.Buffer
	client.Stdout, client.Stderr = &stdout, &stderr
	if err := l.starter.start(l.sandbox, client); err != nil {
		return sample{}, err
	}
	if err := client.Wait(); err != nil {
		return sample{}, fmt.Errorf("client of %s: %w: %s", p.name, err, stderr.Bytes())
	}
	var s sample
	if err := json.Unmarshal(stdout.Bytes(), &s.loadResult); err != nil {
		return sample{}, fmt.Errorf("client of %s: %w", p.name, err)
	}
	proxyAfter, err := p.process.usage()
	if err != nil {
		return sample{}, err
	}
	originAfter, err := l.origin.usage()
	if err != nil {
		return sample{}, err
	}
	s.client = (client.ProcessState.UserTime() + client.ProcessState.SystemTime()).Seconds()
	s.proxy, s.origin = proxyAfter.cpu-proxyBefore.cpu, originAfter.cpu-originBefore.cpu
	return s, nil
}

// rounds measures every peer in turn, as often as the lab's size says, so that
// whatever the machine does meanwhile befalls all of them.
func (l *lab) rounds(peers []*peer, measure func(p *peer) (sample, error)) (samples, error) {
	taken := samples{}
	for round := range l.size.rounds {
		for i := range peers {
			p := peers[(i+round)%len(peers)]
			s, err := measure(p)
			if err != nil {
				return nil, err
			}
			taken[p.name] = append(taken[p.name], s)
		}
	}
	return taken, nil
}

// samples are what rounds gave, by peer.
type samples map[string][]sample

// of is what a peer's samples say of one thing; nothing where it was not measured.
func (s samples) of(peer string, what func(s sample) float64) figure {
	values := make([]float64, len(s[peer]))
	for i, one := range s[peer] {
		values[i] = what(one)
	}
	return figureOfValues(values)
}

// added is by how much a peer's median is more than that of the direct way.
func (s samples) added(peer string, what func(s sample) float64) figure {
	if len(s[peer]) == 0 {
		return figure{}
	}
	return figure{median: s.of(peer, what).median - s.of(direct, what).median}
}

// figure is the median of what rounds gave, and the quartiles around it; all zero where
// nothing was measured.
type figure struct{ median, low, high float64 }

// over is the ratio of the medians; not a number where the other was not measured.
func (f figure) over(other figure) float64 {
	if other == (figure{}) {
		return math.NaN()
	}
	return f.median / other.median
}

func figureOfValues(values []float64) figure {
	if len(values) == 0 {
		return figure{}
	}
	slices.Sort(values)
	at := func(q float64) float64 {
		place := q * float64(len(values)-1)
		i := int(place)
		if i+1 == len(values) {
			return values[i]
		}
		return values[i] + (values[i+1]-values[i])*(place-float64(i))
	}
	return figure{at(.5), at(.25), at(.75)}
}

// format prints the median, and the quartiles in brackets.
func (f figure) format(verb string) string {
	return fmt.Sprintf(verb+" ["+verb+"–"+verb+"]", f.median, f.low, f.high)
}

// holding is a client that holds idle tunnels open.
type holding struct {
	loadResult
	cmd   *exec.Cmd
	input interface{ Close() error }
	errs  *bytes.Buffer
}

// hold opens n tunnels through p that stay idle until release.
func (l *lab) hold(p *peer, n int) (*holding, error) {
	command := l.loadCommand(p, "idle", n, 1)
	h := &holding{cmd: exec.Command(command[0], command[1:]...), errs: &bytes.Buffer{}}
	h.cmd.Stderr = h.errs
	input, err := h.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	h.input = input
	output, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.starter.start(l.sandbox, h.cmd); err != nil {
		return nil, err
	}
	opened := make(chan error, 1)
	go func() { opened <- json.NewDecoder(output).Decode(&h.loadResult) }()
	select {
	case err = <-opened:
	case <-time.After(2 * time.Minute):
		err = errors.New("two minutes were not enough")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %d tunnels through %s: %w: %s", n, p.name, err, h.errs), h.cmd.Process.Kill(), h.cmd.Wait())
	}
	return h, nil
}

// release closes the tunnels.
func (h *holding) release() error {
	if err := h.input.Close(); err != nil {
		return err
	}
	if err := h.cmd.Wait(); err != nil {
		return fmt.Errorf("close the tunnels: %w: %s", err, h.errs)
	}
	return nil
}
