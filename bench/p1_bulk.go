//go:build linux

package main

import "fmt"

// What P1 allows the proxy a gigabyte, and what the direct way took where that was
// decided: a faster machine has both smaller.
const (
	bulkLimit  = .27
	bulkDirect = .52
)

// bulk is P1: 1 and 4 streams downloaded; processor seconds of all processes per
// gigabyte at most haproxy's, the proxy's at most .27, the rate at least .60 of
// direct and twice smokescreen's and squid's.
func bulk(l *lab) (section, error) {
	s := section{columns: []string{"streams", "peer", "rate ÷ direct", "Gbit/s", "proxy CPU-s/GB", "all CPU-s/GB"}}
	for _, streams := range []int{1, 4} {
		taken, err := l.rounds(l.peers, func(p *peer) (sample, error) { return l.load(p, "bulk", l.size.bulkBytes, streams) })
		if err != nil {
			return s, err
		}
		rate := func(name string) figure { return taken.of(name, sample.gbits) }
		proxyOnly := func(name string) figure { return taken.of(name, sample.proxyPerGB) }
		all := func(name string) figure { return taken.of(name, sample.allPerGB) }
		for _, p := range l.peers {
			s.rows = append(s.rows, []string{
				fmt.Sprint(streams), p.name, fmt.Sprintf("%.2f", rate(p.name).over(rate(direct))),
				rate(p.name).format("%.1f"), proxyOnly(p.name).format("%.3f"), all(p.name).format("%.3f"),
			})
		}
		label := fmt.Sprintf("%d streams: ", streams)
		s.verdicts = append(s.verdicts,
			atMost(label+"proxy CPU-s/GB", proxyOnly(ours).median, bulkLimit),
			atMost(label+"proxy CPU-s/GB ÷ all of the direct way's", proxyOnly(ours).over(all(direct)), bulkLimit/bulkDirect).gates(),
			atMost(label+"all CPU-s/GB ÷ haproxy's", all(ours).over(all("haproxy")), 1).gates(),
			atLeast(label+"rate ÷ direct", rate(ours).over(rate(direct)), .60).tells(),
			atLeast(label+"rate ÷ squid's", rate(ours).over(rate("squid")), 2).tells(),
			atLeast(label+"rate ÷ smokescreen's", rate(ours).over(rate("smokescreen")), 2).tells())
	}
	return s, nil
}
