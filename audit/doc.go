// Package audit records what was decided: one Event a decision, written as JSON
// lines, kept in a bounded ring for subscribers, and counted by target. Nothing a
// sandbox does can make it block, grow without bound or lose count: repeats are
// folded into one line that says how many it stands for, and a reader that is too
// slow loses lines and is told how many.
//
//	log := audit.New(audit.Config{Writer: os.Stdout})
//	defer log.Close()
//	e := log.Record(audit.Event{Kind: audit.KindDecision, Channel: audit.ChannelDNS,
//		Name: "files.example.com", Reason: policy.ReasonUnlisted, Generation: 3})
//	fmt.Println("denied, see", e.DecisionID)
//
// # The JSON line
//
// An event is one line, one object. Members that do not apply are left out; the
// names are stable. Strings that came from the sandbox are printable ASCII, with
// everything else written as Go escapes it (\x1b, \u202e).
//
//	member       type     in        meaning
//	id           integer  all       orders the events of one start, from 1, without gaps
//	time         string   all       RFC 3339, UTC, microseconds
//	kind         string   all       decision, flow, error, swap, lease, ready, breach, probe, lifecycle; lost (see below)
//	decision     string   d f e     decision id: what a 403, an EDE text or a flow quotes
//	verdict      string   d f       allow or deny
//	reason       string   d f       the word of policy.md section 5
//	rule         string   d f       the target that decided, "floor:" before it where it is the floor's
//	generation   integer  d f e s   generation of the policy that decided, or that came into force
//	phase        string   all       phase in force
//	channel      string   d f e     where it was met: dns, http, tls, connect, opaque, packet
//	name         string   d f e     name asked for
//	addr         string   d f e     destination address
//	port         integer  d f e     destination port; left out for a DNS question
//	protocol     string   d f e     tcp, udp or icmp, beside name or addr; left out for a DNS question
//	qtype        string   d e       type of a DNS question
//	flow         string   d f e     flow id, joins a decision to the flow it opened
//	bytes_out    integer  f         bytes that left the sandbox
//	bytes_in     integer  f         bytes that entered it
//	duration_us  integer  f s       how long it lived, how long the swap took
//	error        string   e f       unresolvable, unreachable or upstream-reset: a failure, not a verdict
//	message      string   any       a sentence for people
//	revoked      integer  s         open flows that the swap cut
//	folded       integer  d f e l   this line stands for so many events that have no line of their own
//	since        string   d f e     with folded: when the first of them happened (time is the last)
//
// d decision, f flow, e error, s swap, l lost.
//
// # Folding
//
// Events alike (kind, target, verdict, reason, phase and generation) within ten
// seconds are logged once at once and then in one line with folded; of flows the
// first twenty are, and the folded line has their bytes in sum. Where distinct
// decisions come faster than the log may grow, those over the rate are folded by
// reason into a line without a target. The counters are exact throughout: see
// Log.Summary. A line of kind lost stands in one reader's stream, and says how
// many events that reader was too slow for.
package audit
