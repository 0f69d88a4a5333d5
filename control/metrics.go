package control

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/exeat/exeat/control/api"
)

// engineMetrics reads the engine and its log when they are scraped. Nothing is
// labelled with what a sandbox asked for: that would have no bound.
type engineMetrics struct {
	engine Engine
	log    EventLog
	probes ProbeHistory // nil where none runs by itself

	decisions, failures, events, folded, unwritten, targets *prometheus.Desc
	ready, generation, flows, healthy, info                 *prometheus.Desc
	probeCases, probeRuns, probeLast                        *prometheus.Desc
}

func newMetrics(engine Engine, log EventLog, prober Prober) (http.Handler, error) {
	desc := func(name, text string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("exeat_"+name, text, labels, nil)
	}
	m := &engineMetrics{
		engine: engine, log: log,
		decisions:  desc("decisions_total", "Decisions by verdict and reason.", "verdict", "reason"),
		failures:   desc("failures_total", "Failures of allowed traffic, by error.", "error"),
		events:     desc("events_total", "Events that have a line in the log."),
		folded:     desc("events_folded_total", "Events that were folded into another's line."),
		unwritten:  desc("events_unwritten_total", "Lines that the log's writer lost."),
		targets:    desc("summary_targets", "Counters in use."),
		ready:      desc("ready", "1 while the engine enforces a policy and its probes behave."),
		generation: desc("policy_generation", "Generation of the policy in force."),
		flows:      desc("flows", "Open flows."),
		healthy:    desc("part_healthy", "1 while the part works.", "part"),
		info:       desc("info", "Always 1.", "version", "shape", "mode"),
		probeCases: desc("probe_cases", "Cases of the bypass probe's last run by the schedule.", "verdict"),
		probeRuns:  desc("probe_runs_total", "Runs of the bypass probe by the schedule."),
		probeLast:  desc("probe_last_run_timestamp_seconds", "When the schedule last ran the bypass probe."),
	}
	m.probes, _ = prober.(ProbeHistory)
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), nil
}

// Describe gives every description.
func (m *engineMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.decisions, m.failures, m.events, m.folded, m.unwritten, m.targets,
		m.ready, m.generation, m.flows, m.healthy, m.info, m.probeCases, m.probeRuns, m.probeLast,
	} {
		out <- d
	}
}

// Collect reads the figures.
func (m *engineMetrics) Collect(out chan<- prometheus.Metric) {
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	failures := map[string]uint64{}
	for _, t := range m.log.Totals() {
		if t.Error != "" {
			failures[t.Error] += t.Count
			continue
		}
		emit(m.decisions, prometheus.CounterValue, float64(t.Count), t.Verdict.String(), string(t.Reason))
	}
	for failure, n := range failures {
		emit(m.failures, prometheus.CounterValue, float64(n), failure)
	}
	stats := m.log.Stats()
	emit(m.events, prometheus.CounterValue, float64(stats.Events))
	emit(m.folded, prometheus.CounterValue, float64(stats.Folded))
	emit(m.unwritten, prometheus.CounterValue, float64(stats.Unwritten))
	emit(m.targets, prometheus.GaugeValue, float64(stats.Targets))

	status := m.engine.Status()
	emit(m.ready, prometheus.GaugeValue, one(status.Ready))
	emit(m.generation, prometheus.GaugeValue, float64(status.Generation))
	emit(m.flows, prometheus.GaugeValue, float64(status.Flows))
	seen := map[string]bool{}
	for _, h := range status.Health {
		if !seen[h.Part] {
			seen[h.Part] = true
			emit(m.healthy, prometheus.GaugeValue, one(h.OK), h.Part)
		}
	}
	emit(m.info, prometheus.GaugeValue, 1, status.Version, status.Shape, string(status.Mode))
	if m.probes == nil {
		return
	}
	runs, at, last := m.probes.LastProbe()
	emit(m.probeRuns, prometheus.CounterValue, float64(runs))
	if runs == 0 {
		return
	}
	emit(m.probeLast, prometheus.GaugeValue, float64(at.UnixMilli())/1000)
	emit(m.probeCases, prometheus.GaugeValue, float64(last.Held), string(api.ProbeHeld))
	emit(m.probeCases, prometheus.GaugeValue, float64(last.Leaks), string(api.ProbeLeak))
	emit(m.probeCases, prometheus.GaugeValue, float64(last.NotProven), string(api.ProbeNotProven))
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
