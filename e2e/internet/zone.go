package internet

import (
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// Zone is what the world's DNS server knows: every name with its records, in
// zone-file text without the owner ("A 203.0.113.10").
type Zone map[string][]string

// zoneServer answers from a Zone and remembers what it was asked.
type zoneServer struct {
	mu    sync.Mutex
	zone  Zone
	asked []Question
}

// Question is one question that reached the world's DNS server.
type Question struct {
	Name    string // lower case, without the final dot
	Type    string // "A", "TXT", …
	Net     string // "udp" or "tcp"
	Options int    // EDNS options that came along
}

// ServeDNS answers one query: the records of the name and of the names that its
// CNAMEs lead to, NXDOMAIN where the name is unknown.
func (z *zoneServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg)
	reply.SetReply(query)
	reply.RecursionAvailable = true
	q := query.Question[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	z.mu.Lock()
	asked := Question{Name: name, Type: dns.TypeToString[q.Qtype], Net: w.RemoteAddr().Network()}
	if opt := query.IsEdns0(); opt != nil {
		asked.Options = len(opt.Option)
	}
	z.asked = append(z.asked, asked)
	_, known := z.zone[name]
	owner := q.Name
	for range 8 {
		next := ""
		for _, text := range z.zone[name] {
			rr, err := dns.NewRR(owner + " 60 IN " + text)
			if err != nil {
				continue
			}
			if alias, ok := rr.(*dns.CNAME); ok && q.Qtype != dns.TypeCNAME {
				reply.Answer = append(reply.Answer, rr)
				next = alias.Target
			} else if rr.Header().Rrtype == q.Qtype {
				reply.Answer = append(reply.Answer, rr)
			}
		}
		if next == "" {
			break
		}
		owner, name = next, strings.ToLower(strings.TrimSuffix(next, "."))
	}
	z.mu.Unlock()
	if !known {
		reply.Rcode = dns.RcodeNameError
	}
	if len(reply.Answer) == 0 {
		soa, err := dns.NewRR("test. 5 IN SOA ns.test. hostmaster.test. 1 60 60 60 5")
		if err == nil {
			reply.Ns = append(reply.Ns, soa)
		}
	}
	size := dns.MinMsgSize
	if opt := query.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
		reply.SetEdns0(1232, false)
	}
	if w.RemoteAddr().Network() == "udp" {
		reply.Truncate(size)
	}
	if err := w.WriteMsg(reply); err != nil {
		return // the client went away: nothing is owed to it
	}
}
