package dnsfilter

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/exeat/exeat/policy"
)

// denials remembers denied questions: what a policy, which never changes, says
// about a name and type is worked out once. Each is still logged as itself. A
// question has one place, which the last to come takes: nothing grows with what a
// sandbox asks.
type denials struct {
	places [denialsKept]atomic.Pointer[denial]
}

const denialsKept = 512

// denial is what became of one question, less the id of its event.
type denial struct {
	policy *policy.Compiled
	qtype  uint16
	outcome
	reply reply
}

// denialSeed keeps a sandbox from choosing which names share a place.
var denialSeed = maphash.MakeSeed()

func (d *denials) place(q *question) *atomic.Pointer[denial] {
	return &d.places[(maphash.Bytes(denialSeed, q.lower)+uint64(q.qtype))%denialsKept]
}

// get finds what p says about the question, if it denies it and that is known.
func (d *denials) get(p *policy.Compiled, q *question) *denial {
	found := d.place(q).Load()
	if found == nil || found.policy != p || found.qtype != q.qtype || found.name != string(q.lower) {
		return nil
	}
	return found
}

func (d *denials) put(q *question, found *denial) { d.place(q).Store(found) }
