package firewall

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// plan is how Apply gets from what the kernel has to a Ruleset: new sets first,
// over as many transactions as it takes, since nothing uses them yet; then one
// that changes everything.
type plan struct {
	kernel *Kernel
	fills  []*batch // new sets
	change *batch
	live   map[setID]*liveSet
	rules  strings.Builder
}

func newPlan(k *Kernel) *plan {
	return &plan{kernel: k, change: newBatch(), live: map[setID]*liveSet{}}
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

// set plans one set: changed in place where few elements differ and the kernel
// does that at once, else (and where elements expire, so that we do not know
// which there are) made anew.
func (p *plan) set(t Table, s Set, was *liveSet, standing inventory) *liveSet {
	def := s.definition()
	if was != nil && was.def == def && !s.Timeout {
		add, del := diff(was.elements, s.Elements)
		if s.mayPatch(len(add), len(del), len(was.elements)) {
			p.change.elements(t.Family, t.Name, was.name, s, unix.NFT_MSG_DELSETELEM, del)
			p.change.elements(t.Family, t.Name, was.name, s, unix.NFT_MSG_NEWSETELEM, add)
			return &liveSet{name: was.name, def: def, elements: index(s.Elements)}
		}
	}
	name := s.Name
	for standing.sets[name] {
		name += "_"
	}
	b := newBatch()
	b.addTable(t)
	b.addSet(t, name, s)
	p.fills = append(p.fills, b)
	for elems := s.Elements; len(elems) > 0; {
		n := min(len(elems), elementsPerFill)
		b := newBatch()
		b.elements(t.Family, t.Name, name, s, unix.NFT_MSG_NEWSETELEM, elems[:n])
		p.fills = append(p.fills, b)
		elems = elems[n:]
	}
	return &liveSet{name: name, def: def, elements: index(s.Elements)}
}

// elementsPerFill keeps a transaction below the smallest send buffer.
const elementsPerFill = 2 * elementsPerMessage

// mayPatch says whether changing the set in place is both cheap and free of a
// moment in which it holds neither the old nor the new (traps 2 and 3).
func (s Set) mayPatch(add, del, size int) bool {
	if s.Interval {
		return add == 0 && del == 0
	}
	return add+del <= 64 || (add+del)*4 <= size && add+del <= elementsPerFill
}

func index(elems []Element) map[string]Element {
	m := make(map[string]Element, len(elems))
	for _, e := range elems {
		m[e.Key] = e
	}
	return m
}

// diff says what to add to and delete from old.
func diff(old map[string]Element, now []Element) (add, del []Element) {
	kept := 0
	for _, e := range now {
		if was, ok := old[e.Key]; ok && was.End == e.End {
			kept++
			continue
		}
		add = append(add, e)
	}
	if kept == len(old) {
		return add, nil
	}
	keep := index(now)
	for key, e := range old {
		if is, ok := keep[key]; !ok || is.End != e.End {
			del = append(del, e)
		}
	}
	return add, del
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
			p.change.addRule(t, c.Name, r, resolve)
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

// fill makes and fills the new sets, joining transactions where they fit.
func (p *plan) fill(s *socket) error {
	for _, b := range p.fills {
		if err := s.run(b); err != nil {
			return fmt.Errorf("fill sets: %w", err)
		}
	}
	return nil
}
