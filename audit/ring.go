package audit

import (
	"net/netip"
	"time"

	"github.com/exeat/exeat/policy"
)

// ring keeps the last size events, each in a third of an Event's room. Guarded by
// Log.mu.
type ring struct {
	size uint64
	last uint64 // ID
	// chunks come as they are reached: a ring that grew as a slice does would leave
	// as much again behind.
	chunks [][]kept
	// recent are of the events before, so that what takes turns is not made anew.
	recent [16]*common
}

const chunkSize = 256

// kept is an event without its ID, which its place says.
type kept struct {
	common   *common
	rest     *rest // nil where the event has none of it
	at       int64 // Unix nanoseconds
	decision string
	name     string
	addr     netip.Addr
	client   netip.AddrPort
}

// common is what events have in common with many others; it never changes.
type common struct {
	kind       Kind
	verdict    policy.Verdict
	protocol   policy.Protocol
	port       uint16
	reason     policy.Reason
	rule       string
	generation uint64
	phase      string
	channel    Channel
	qtype      string
}

// rest is what an answered question has nothing of.
type rest struct {
	flow              string
	bytesOut, bytesIn uint64
	duration          time.Duration
	failure, message  string
	revoked           int
	folded            uint64
	since             time.Time
}

// oldest is the ID before that of the oldest event.
func (r *ring) oldest() uint64 { return r.last - min(r.last, r.size) }

// push takes e in, and gives it its ID.
func (r *ring) push(e *Event) {
	at := int(r.last % r.size)
	if at/chunkSize == len(r.chunks) {
		r.chunks = append(r.chunks, make([]kept, min(chunkSize, int(r.size)-at)))
	}
	r.last++
	e.ID = r.last
	k := kept{
		common: r.commonOf(e), at: e.Time.UnixNano(), decision: e.DecisionID, name: e.Name, addr: e.Addr, client: e.Client,
	}
	others := rest{
		flow: e.FlowID, bytesOut: e.BytesOut, bytesIn: e.BytesIn, duration: e.Duration, failure: e.Error, message: e.Message,
		revoked: e.Revoked, folded: e.Folded, since: e.Since,
	}
	if others != (rest{}) {
		made := others // lest every event's be on the heap
		k.rest = &made
	}
	r.chunks[at/chunkSize][at%chunkSize] = k
}

func (r *ring) commonOf(e *Event) *common {
	c := common{
		kind: e.Kind, verdict: e.Verdict, protocol: e.Protocol, port: e.Port, reason: e.Reason, rule: e.Rule,
		generation: e.Generation, phase: e.Phase, channel: e.Channel, qtype: e.QType,
	}
	recent := &r.recent[(len(c.kind)+3*len(c.qtype)+len(c.rule)+int(c.port))%len(r.recent)]
	if *recent == nil || **recent != c {
		made := c
		*recent = &made
	}
	return *recent
}

// get gives the event of an ID after oldest, up to last.
func (r *ring) get(id uint64) Event {
	at := int((id - 1) % r.size)
	k := &r.chunks[at/chunkSize][at%chunkSize]
	c := k.common
	e := Event{
		ID: id, Time: time.Unix(0, k.at), Kind: c.kind, DecisionID: k.decision, Verdict: c.verdict, Reason: c.reason,
		Rule: c.rule, Generation: c.generation, Phase: c.phase, Channel: c.channel, Name: k.name, Addr: k.addr,
		Port: c.port, Protocol: c.protocol, QType: c.qtype, Client: k.client,
	}
	if o := k.rest; o != nil {
		e.FlowID, e.BytesOut, e.BytesIn, e.Duration = o.flow, o.bytesOut, o.bytesIn, o.duration
		e.Error, e.Message, e.Revoked, e.Folded, e.Since = o.failure, o.message, o.revoked, o.folded, o.since
	}
	return e
}
