//go:build linux

package joined

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
)

// events are the lines of the log so far.
func (s *sidecar) events(t testing.TB) []audit.Event {
	t.Helper()
	var all []audit.Event
	for line := range strings.Lines(s.Stdout.String()) {
		if !strings.HasSuffix(line, "\n") {
			break // the last, half written
		}
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, e)
	}
	return all
}

// decided are the decisions in the log.
func (s *sidecar) decided(t testing.TB) []audit.Event {
	t.Helper()
	return slices.DeleteFunc(s.events(t), func(e audit.Event) bool { return e.Kind != audit.KindDecision && e.Kind != audit.KindError })
}

// metric says whether the metrics have the line.
func (s *sidecar) metric(t testing.TB, line string) bool {
	t.Helper()
	text, err := s.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains("\n"+string(text), "\n"+line+"\n")
}

func TestTheProbeFromBesideTheSandbox(t *testing.T) {
	for name, c := range map[string]struct {
		flags   []string
		grouped bool
		// held is how many cases there must be at least that are held.
		held int
	}{
		"an allowlist": {[]string{"--allow", "pypi.test", "--allow", "203.0.113.7:7"}, true, 60},
		"an allowlist, where control groups don't tell us apart": {[]string{"--allow", "pypi.test"}, false, 60},
		"no network":   {nil, true, 60},
		"public":       {[]string{"--mode", "public"}, true, 1},
		"a denylist":   {[]string{"--deny", "evil.test"}, true, 1},
		"strict":       {[]string{"--allow", "pypi.test", "--strict-destinations"}, true, 30},
		"with a floor": {[]string{"--mode", "public", "--floor", "evil.test"}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, c.flags...)
			if !c.grouped {
				s.Group = nil
			}
			s.Begin(t)
			s.AwaitReady(t)
			report, err := s.Probe(t.Context(), api.ProbeRequest{Safe: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d held, %d leaks, %d not proven", report.Held, report.Leaks, report.NotProven)
			if report.Held < c.held {
				t.Errorf("%d held, want %d", report.Held, c.held)
			}
			for _, f := range report.Cases {
				t.Logf("%s %s: %s: %s (%s)", f.ID, f.Attack, f.Verdict, f.Seen, f.Why)
				if f.Verdict == api.ProbeLeak {
					t.Errorf("%s %s leaks: %s", f.ID, f.Attack, f.Seen)
				}
				if slices.Contains([]string{"B05", "B06", "B21", "B34", "B44", "B47", "B71", "B73", "B74", "B79"}, f.ID) && f.Verdict != api.ProbeNotProven {
					t.Errorf("%s %s: %s, which cannot be told from here: %s", f.ID, f.Attack, f.Verdict, f.Seen)
				}
				if f.ID == "B46" || f.ID == "B78" {
					t.Errorf("%s is not safe, and was tried", f.ID)
				}
				if f.Verdict == api.ProbeNotProven && f.Why == "" {
					t.Errorf("%s %s does not say why it is not proven", f.ID, f.Attack)
				}
			}
			// What the sandbox does meanwhile is logged as ever.
			if c.held > 1 {
				s.refused(t, "udp", "192.0.2.254:9")
				s.says(t, `"addr":"192.0.2.254","port":9`)
				s.resolve(t, "probe.exeat.invalid", dns.TypeA, "203.0.113.66:53")
				s.says(t, `"name":"probe.exeat.invalid"`)
			}
			for _, e := range s.decided(t) {
				if e.Addr.String() != "192.0.2.254" && e.Name != "probe.exeat.invalid" {
					t.Errorf("a decision on the probe is in the log: %+v", e)
				}
			}
			if summary, err := s.Summary(t.Context()); err != nil || len(summary.Counts) > 2 {
				t.Errorf("summary %+v, %v", summary, err)
			}
		})
	}
}

func TestTheProbeTriesWhatWasAskedFor(t *testing.T) {
	s := start(t, "--allow", "pypi.test")
	report, err := s.Probe(t.Context(), api.ProbeRequest{Cases: []string{"B02", "B44"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Cases {
		if f.ID != "B02" && f.ID != "B44" {
			t.Errorf("%s was tried", f.ID)
		}
	}
	if report.Held == 0 || report.NotProven == 0 || report.Leaks > 0 {
		t.Errorf("report %+v", report)
	}
	_, err = s.Probe(t.Context(), api.ProbeRequest{Cases: []string{"B01", "B99"}})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest || !strings.Contains(refused.Error()+refused.Problems[0].Message, "B99") {
		t.Errorf("an unknown case: %v", err)
	}
}

// TestTheSchedule: what the few flows of readiness do not meet, the schedule finds.
// Somebody else's rules lead what is denied to where it is allowed.
func TestTheSchedule(t *testing.T) {
	nft := require.Tool(t, "nft")
	spoil := nft + ` 'add table ip other; add chain ip other o { type nat hook output priority -150; }; add rule ip other o ip daddr 203.0.113.66 tcp dport 22 dnat to 203.0.113.7:7'`
	start := func(t *testing.T, flags ...string) *sidecar {
		s := start(t, append(flags, "--allow", "203.0.113.7:7", "--schedule", "300ms")...)
		s.says(t, `"kind":"probe","message":"bypass probe: `)
		return s
	}
	t.Run("finds a leak and denies everything", func(t *testing.T) {
		s := start(t)
		lab.Eventually(t, "a metric", func() bool { return s.metric(t, `exeat_probe_cases{verdict="leak"} 0`) })
		s.Sh(t, spoil)
		s.says(t, `"message":"the bypass probe found`)
		s.deniedAll(t)
		s.Sh(t, nft+" delete table ip other")
		lab.Eventually(t, "an end of the leak", func() bool {
			return s.metric(t, `exeat_probe_cases{verdict="leak"} 0`)
		})
		s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.7:7"]}`)
		s.AwaitReady(t)
		s.echoes(t, "203.0.113.7:7")
		// What the probe was let do is told, which had come to be what is allowed.
		for _, e := range s.decided(t) {
			if e.Addr.String() != "203.0.113.7" || e.Port != 7 {
				t.Errorf("a decision on the probe is in the log: %+v", e)
			}
		}
	})
	t.Run("finds a leak and reports it", func(t *testing.T) {
		s := start(t, "--on-breach", "report")
		s.Sh(t, spoil)
		s.says(t, `"message":"the bypass probe found`)
		lab.Eventually(t, "a metric", func() bool { return !s.metric(t, `exeat_probe_cases{verdict="leak"} 0`) })
		if err := s.Ready(t.Context()); err == nil {
			t.Error("ready with a leak")
		}
		s.echoes(t, "203.0.113.7:7")
		s.Sh(t, nft+" delete table ip other")
		s.AwaitReady(t)
	})
}

// TestProbesAmidSwapsFindNoBreach: in the course of a swap the kernel has the next
// policy while the probes may still hold its flows against the one before, and what
// they see is no breach.
func TestProbesAmidSwapsFindNoBreach(t *testing.T) {
	s := start(t, "--mode", "public", "--schedule", "1ms")
	const swaps = 50
	var last uint64
	for i := range swaps {
		last = s.swap(t, []string{`"no-network"`, `"public"`}[i%2]).Generation
	}
	if last != swaps+1 {
		t.Errorf("generation %d after %d swaps: somebody else swapped", last, swaps)
	}
	// They are tried in between as well, and what has held is said.
	lab.Eventually(t, "a run of the probe", func() bool { return strings.Contains(s.Stdout.String(), `"kind":"probe"`) })
	for _, e := range s.events(t) {
		if e.Kind == audit.KindBreach {
			t.Errorf("a breach: %s", e.Message)
			break
		}
	}
	s.AwaitReady(t)
}
