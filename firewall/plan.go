package firewall

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// plan is how Apply gets from what the kernel has to a Ruleset: new sets first,
// over as many transactions as it takes, since nothing uses them yet; then one
// that changes everything.
type plan struct {
	kernel *Kernel
	fills  []*batch // new sets, and what is in them
	undo   *batch   // deletes them again
	change *batch
	live   map[setID]*liveSet
}

func newPlan(k *Kernel) *plan {
	return &plan{kernel: k, change: newBatch(), undo: newBatch(), live: map[setID]*liveSet{}}
}

// table plans one table.
func (p *plan) table(t Table) error {
	standing, err := p.kernel.inventory(t)
	if err != nil {
		return err
	}
	names := map[string]string{}
	for _, s := range t.Sets {
		id := setID{t.Family, t.Name, s.Name}
		was := p.kernel.live[id]
		if was != nil && !standing.sets[was.name] {
			was = nil // somebody deleted it
		}
		now := p.set(t, s, was, standing)
		p.live[id] = now
		names[s.Name] = now.name
		standing.used[now.name] = true
	}
	p.change.addTable(t)
	if err := p.chains(t, standing, names); err != nil {
		return err
	}
	for name := range standing.sets {
		if !standing.used[name] && !strings.HasPrefix(name, "__") {
			p.change.delSet(t, name)
		}
	}
	return nil
}

// set plans one set: kept where it holds what it should, else made anew. None is
// changed in place here, since the rules change as well: a packet that is being
// judged goes on by the rules it began with, but looks into sets as they are by
// then, and would be judged by old rules and new elements. (Measured under load:
// one forbidden packet in some hundred swaps.)
func (p *plan) set(t Table, s Set, was *liveSet, standing inventory) *liveSet {
	def := s.definition()
	ages := s.Timeout && len(s.Elements) > 0
	if was != nil && was.def == def && !ages && !was.unknown && slices.Equal(was.elements, s.Elements) {
		return was
	}
	name := s.Name
	for standing.sets[name] {
		name += "_"
	}
	b := p.fill()
	b.addTable(t)
	p.kernel.compiler.addSet(b, t, name, s)
	p.undo.delSet(t, name)
	for elems := s.Elements; len(elems) > 0; {
		n := min(len(elems), elementsPerMessage)
		p.fill().elements(t.Family, t.Name, name, s, unix.NFT_MSG_NEWSETELEM, elems[:n])
		elems = elems[n:]
	}
	return &liveSet{name: name, def: def, elements: s.Elements}
}

// A transaction of new sets is at most maxFill bytes, and leaves a message's room in
// the send buffer.
const (
	maxFill    = 512 << 10
	maxMessage = 64 << 10
)

// fill is the transaction that new sets go into, a new one where the last is full.
func (p *plan) fill() *batch {
	most := max(min(p.kernel.sock.room-maxMessage, maxFill), 0)
	if n := len(p.fills); n > 0 && len(p.fills[n-1].buf) < most {
		return p.fills[n-1]
	}
	p.fills = append(p.fills, newBatch())
	return p.fills[len(p.fills)-1]
}

// chains plans the chains of a table with their rules.
func (p *plan) chains(t Table, standing inventory, names map[string]string) error {
	wanted := map[string]bool{}
	for _, c := range t.Chains {
		wanted[c.Name] = true
		p.change.addChain(t, c)
	}
	p.change.flushTable(t)
	resolve := func(set string) string { return names[set] }
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			p.kernel.compiler.addRule(p.change, t, c.Name, r, resolve)
			for _, s := range r.Statements {
				if err := checkSets(s, names); err != nil {
					return fmt.Errorf("chain %s: %s: %w", c.Name, r, err)
				}
			}
		}
	}
	for _, name := range standing.chains {
		if !wanted[name] {
			p.change.delChain(t, name)
		}
	}
	return nil
}

// carryOut fills the new sets and changes over to them, or leaves things as they
// were.
func (p *plan) carryOut(s *socket) error {
	for _, b := range p.fills {
		if err := s.run(b); err != nil {
			// What was filled is used by nobody; the next Apply removes it.
			return fmt.Errorf("fill sets: %w", err)
		}
	}
	if err := s.run(p.change); err != nil {
		return errors.Join(fmt.Errorf("apply ruleset: %w", err), s.run(p.undo))
	}
	return nil
}
