package attribution

import (
	"container/list"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Grace is how long an attribution outlives its TTL: clients keep addresses
// longer than they may.
const Grace = time.Hour

const (
	// maxEntries bounds the table; the oldest that no flow holds gives way.
	maxEntries = 100_000
	// maxNames bounds the names of one address, lest a wildcard zone that points
	// every name at one address makes each look-up long.
	maxNames = 64
)

// Entry is one attribution.
type Entry struct {
	Name string
	Addr netip.Addr
	// Expires is when it ends; of one that is over but held, a grace from now.
	Expires time.Time
}

// Table maps addresses to the names they were handed out for. Its methods are
// safe for concurrent use.
type Table struct {
	grace time.Duration
	now   func() time.Time
	limit int

	mu    sync.RWMutex
	addrs map[netip.Addr]*names
	// age orders the entries (*entry) by when they were last added, oldest first.
	age *list.List
}

// names are the attributions of one address, guarded by Table.mu.
type names struct {
	// list is what Names gives out, nil until it is asked for: replaced, never changed.
	list    []string
	entries []*entry // in the order of list
	// until is when the first of them that is not held expires; zero is never.
	until time.Time
}

type entry struct {
	Entry
	holds int
	age   *list.Element
}

// New makes a table whose entries live for their TTL and the grace after it.
// A nil now is time.Now.
func New(grace time.Duration, now func() time.Time) *Table {
	if now == nil {
		now = time.Now
	}
	return &Table{
		grace: grace, now: now, limit: maxEntries, addrs: map[netip.Addr]*names{}, age: list.New(),
	}
}

// Add says that the resolver is about to hand out addrs for name. An attribution
// that is there already is renewed, never shortened.
func (t *Table) Add(name string, addrs []netip.Addr, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for _, addr := range addrs {
		t.addLocked(name, plain(addr), now.Add(ttl+t.grace))
	}
	t.sweepLocked(now, 2*len(addrs))
}

// plain makes one address of each spelling.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

func (t *Table) addLocked(name string, addr netip.Addr, expires time.Time) *entry {
	of := t.addrs[addr]
	if of == nil {
		of = &names{}
		t.addrs[addr] = of
	}
	at := slices.IndexFunc(of.entries, func(e *entry) bool { return e.Name == name })
	var e *entry
	if at >= 0 {
		e = of.entries[at]
		t.age.MoveToBack(e.age)
		if expires.After(e.Expires) {
			e.Expires = expires
		}
		if at > 0 {
			of.entries = slices.Insert(slices.Delete(of.entries, at, at+1), 0, e)
		}
	} else {
		e = &entry{Entry: Entry{Name: name, Addr: addr, Expires: expires}}
		e.age = t.age.PushBack(e)
		of.entries = slices.Insert(of.entries, 0, e)
		t.trimLocked(of)
	}
	of.rebuild(at != 0)
	return e
}

// trimLocked makes room for what was just added, in its address and in the table.
func (t *Table) trimLocked(of *names) {
	for i := len(of.entries) - 1; i > 0 && len(of.entries) > maxNames; i-- {
		if e := of.entries[i]; e.holds == 0 {
			t.age.Remove(e.age)
			of.entries = slices.Delete(of.entries, i, i+1)
		}
	}
	for at := t.age.Front(); t.age.Len() > t.limit && at != t.age.Back(); {
		e := at.Value.(*entry)
		at = at.Next()
		if e.holds == 0 {
			t.removeLocked(e)
		}
	}
}

// sweepLocked looks at the oldest n entries and removes those that are over, so
// that the table shrinks by itself.
func (t *Table) sweepLocked(now time.Time, n int) {
	for at := t.age.Front(); at != nil && n > 0; n-- {
		e := at.Value.(*entry)
		at = at.Next()
		if e.holds == 0 && !now.Before(e.Expires) {
			t.removeLocked(e)
		}
	}
}

func (t *Table) removeLocked(e *entry) {
	t.age.Remove(e.age)
	of := t.addrs[e.Addr]
	of.entries = slices.DeleteFunc(of.entries, func(other *entry) bool { return other == e })
	if len(of.entries) == 0 {
		delete(t.addrs, e.Addr)
		return
	}
	of.rebuild(true)
}

// rebuild forgets list (where the names changed), and makes until anew.
func (n *names) rebuild(changed bool) {
	if changed {
		n.list = nil
	}
	n.until = time.Time{}
	for _, e := range n.entries {
		if e.holds == 0 && (n.until.IsZero() || e.Expires.Before(n.until)) {
			n.until = e.Expires
		}
	}
}

// Names gives the live names of addr, the most recently handed out first. The
// slice is shared: it may be kept and must not be changed.
func (t *Table) Names(addr netip.Addr) []string {
	addr = plain(addr)
	t.mu.RLock()
	of := t.addrs[addr]
	if of == nil {
		t.mu.RUnlock()
		return nil
	}
	list, until := of.list, of.until
	t.mu.RUnlock()
	if list != nil && (until.IsZero() || t.now().Before(until)) {
		return list
	}
	return t.liveNames(addr)
}

// liveNames is Names where something has changed or expired.
func (t *Table) liveNames(addr netip.Addr) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(addr)
	of := t.addrs[addr]
	if of == nil {
		return nil
	}
	if of.list == nil {
		of.list = make([]string, len(of.entries))
		for i, e := range of.entries {
			of.list[i] = e.Name
		}
	}
	return of.list
}

func (t *Table) expireLocked(addr netip.Addr) {
	of := t.addrs[addr]
	if of == nil {
		return
	}
	now := t.now()
	for _, e := range slices.Clone(of.entries) {
		if e.holds == 0 && !now.Before(e.Expires) {
			t.removeLocked(e)
		}
	}
}

// Hold keeps the attribution of addr to name alive until release is called; one
// that is not there is made. release may be called twice.
func (t *Table) Hold(addr netip.Addr, name string) (release func()) {
	addr = plain(addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.addrs[addr]
	var e *entry
	if of != nil {
		if at := slices.IndexFunc(of.entries, func(e *entry) bool { return e.Name == name }); at >= 0 {
			e = of.entries[at]
		}
	}
	if e == nil {
		e = t.addLocked(name, addr, t.now())
		of = t.addrs[addr]
	}
	e.holds++
	of.rebuild(false)
	return sync.OnceFunc(func() { t.release(e) })
}

func (t *Table) release(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.holds--
	if e.holds > 0 {
		return
	}
	t.addrs[e.Addr].rebuild(false)
	t.expireLocked(e.Addr)
}

// All walks over the attributions that live when it is called, in no order. The
// table may be used meanwhile.
func (t *Table) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, e := range t.snapshot() {
			if !yield(e) {
				return
			}
		}
	}
}

func (t *Table) snapshot() []Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	now := t.now()
	all := make([]Entry, 0, t.age.Len())
	for _, of := range t.addrs {
		for _, e := range of.entries {
			live := e.Entry
			if !now.Before(e.Expires) {
				if e.holds == 0 {
					continue
				}
				live.Expires = now.Add(t.grace)
			}
			all = append(all, live)
		}
	}
	return all
}
