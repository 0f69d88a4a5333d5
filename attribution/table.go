package attribution

import (
	"iter"
	"net/netip"
	"time"
)

// Table maps addresses to the names they were handed out for. Its methods are
// safe for concurrent use.
type Table struct{}

// Entry is one attribution.
type Entry struct {
	Name    string
	Addr    netip.Addr
	Expires time.Time
}

// New makes a table whose entries live for their TTL and the grace after it.
// A nil now is time.Now.
func New(grace time.Duration, now func() time.Time) *Table { return &Table{} }

// Add says that the resolver is about to hand out addrs for name.
func (t *Table) Add(name string, addrs []netip.Addr, ttl time.Duration) {}

// Names gives the live names of addr, the most recent first. The slice is
// shared: it may be kept and must not be changed.
func (t *Table) Names(addr netip.Addr) []string { return nil }

// Hold keeps the attribution of addr to name alive until release is called.
// It adds the attribution where there is none. release may be called twice.
func (t *Table) Hold(addr netip.Addr, name string) (release func()) { return func() {} }

// All walks over the live attributions, in no order.
func (t *Table) All() iter.Seq[Entry] { return func(func(Entry) bool) {} }
