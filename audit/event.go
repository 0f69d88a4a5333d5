package audit

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/exeat/exeat/policy"
)

// Kind says what an event tells.
type Kind string

// The kinds of event.
const (
	// KindDecision is a verdict on a request.
	KindDecision Kind = "decision"
	// KindFlow is the end of a flow: how many bytes went which way, how long it lived.
	KindFlow Kind = "flow"
	// KindError is a failure that is not a verdict (Error holds the word); it is
	// never written as a denial.
	KindError Kind = "error"
	// KindSwap is a change of the policy in force.
	KindSwap Kind = "swap"
	// KindLease is a lease taken, renewed or ended.
	KindLease Kind = "lease"
	// KindReady is a change of readiness.
	KindReady Kind = "ready"
	// KindBreach is enforcement found not to hold.
	KindBreach Kind = "breach"
	// KindProbe is what a run of the bypass probe has found.
	KindProbe Kind = "probe"
	// KindLifecycle is a start, a stop, a restart of a part.
	KindLifecycle Kind = "lifecycle"
	// KindLost tells one reader of the event stream how many events it was too
	// slow for (Folded). It has no ID and is never in the log itself.
	KindLost Kind = "lost"
)

// Kinds lists every kind that a log can hold, for whoever filters by one.
func Kinds() []Kind {
	return []Kind{
		KindDecision, KindFlow, KindError, KindSwap, KindLease, KindReady, KindBreach, KindProbe, KindLifecycle, KindLost,
	}
}

// Channel is where the request was met.
type Channel string

// The channels. The empty Channel is an event that belongs to none.
const (
	ChannelDNS     Channel = "dns"
	ChannelHTTP    Channel = "http"
	ChannelTLS     Channel = "tls"
	ChannelConnect Channel = "connect"
	ChannelOpaque  Channel = "opaque"
	ChannelPacket  Channel = "packet"
)

// The words of Event.Error.
const (
	ErrorUnresolvable  = "unresolvable"
	ErrorUnreachable   = "unreachable"
	ErrorUpstreamReset = "upstream-reset"
)

// Event is one line of the log. The table in the package comment documents
// every member as it is written.
type Event struct {
	// ID orders the events of one start, from 1, without gaps. Record sets it.
	ID uint64
	// Time is when it happened; of a fold, when the last of the folded happened.
	Time time.Time
	Kind Kind
	// DecisionID joins this line to what the client was told. Leave it empty and
	// use what Record returns: of a repeat that is folded, that is the id of the
	// line that stands for it.
	DecisionID string
	Verdict    policy.Verdict
	Reason     policy.Reason
	Rule       string
	Generation uint64
	Phase      string
	Channel    Channel
	// Name is what the request named, in whatever bytes it came: Record escapes it.
	Name     string
	Addr     netip.Addr
	Port     uint16
	Protocol policy.Protocol
	// QType is the type of a DNS question, as a word ("AAAA", "TYPE65280").
	QType string
	// FlowID joins a decision to the flow that it opened.
	FlowID   string
	BytesOut uint64
	BytesIn  uint64
	Duration time.Duration
	// Error is the word of a KindError.
	Error   string
	Message string
	// Revoked is how many open flows a swap cut.
	Revoked int
	// Client is who asked, where its socket told. It is not written: to whoever
	// reads the log the sandbox is one client.
	Client netip.AddrPort
	// Folded, when not zero, says that this line stands for so many events alike
	// that have no line of their own; Since is when the first of them happened.
	Folded uint64
	Since  time.Time
}

// Target names what the event is about: name or address, with port and protocol
// as in a policy ("pypi.org:443", "[2001:db8::1]:53/udp"); empty for neither.
func (e *Event) Target() string {
	protocol := e.Protocol
	if e.Channel == ChannelDNS { // a question's target is a name, by whatever it was asked
		protocol = policy.TCP
	}
	return targetText(e.Name, e.Addr, e.Port, protocol)
}

func targetText(name string, addr netip.Addr, port uint16, p policy.Protocol) string {
	host := name
	if host == "" && addr.IsValid() {
		host = addr.String()
		if addr.Is6() && port != 0 {
			host = "[" + host + "]"
		}
	}
	if host == "" {
		return ""
	}
	if port != 0 {
		host += ":" + strconv.Itoa(int(port))
	}
	if p != policy.TCP {
		host += "/" + p.String()
	}
	return host
}
