package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Kernel puts rulesets in force in one network namespace. Its methods may be
// called from several goroutines; they run one after another.
type Kernel struct {
	sock *socket
	// diag finds and ends sockets of the namespace; nil over a passed socket.
	diag *socket

	mu       sync.Mutex
	live     map[setID]*liveSet
	compiler compiler
}

// setID names a set as the Ruleset does.
type setID struct {
	family     Family
	table, set string
}

// liveSet is a set that the kernel has: under which name, and with what.
type liveSet struct {
	name string
	def  string // its definition, printed
	// elements are sorted by key; unknown says that Change has changed them since.
	elements []Element
	unknown  bool
}

// Open works on the namespace of the calling thread.
func Open() (*Kernel, error) {
	fd, err := openNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	k, err := open(fd)
	if err != nil {
		return nil, err
	}
	if k.diag, err = openDiag(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// OpenNamespace works on the network namespace behind a descriptor, which need
// not stay open.
func OpenNamespace(ns int) (*Kernel, error) {
	var k *Kernel
	err := inNamespace(ns, func() (err error) {
		k, err = Open()
		return err
	})
	return k, err
}

// OpenSocket works over a socket of NetlinkSocket, wherever that was made; the
// descriptor is duplicated.
func OpenSocket(f *os.File) (*Kernel, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", dupErr)
	}
	return open(fd)
}

func open(fd int) (*Kernel, error) {
	s, err := newSocket(fd)
	if err != nil {
		return nil, err
	}
	return &Kernel{sock: s, live: map[setID]*liveSet{}}, nil
}

// Close gives the socket back; the kernel keeps the rules.
func (k *Kernel) Close() error {
	err := k.sock.close()
	if k.diag != nil {
		err = errors.Join(err, k.diag.close())
	}
	return err
}

// Apply puts the ruleset in force, and returns when it is. Tables that it does
// not name are not touched; in those that it names nothing else is left. Base
// chains are never deleted and made again, sets are filled before the rules
// that use them, and the rules change in one transaction, so that no packet is
// judged by less than the old or the new ruleset (nftables-notes, traps 1 to
// 3). On an error the old one stands.
func (k *Kernel) Apply(r Ruleset) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.applyLocked(r)
}

func (k *Kernel) applyLocked(r Ruleset) error {
	p := newPlan(k)
	for _, t := range r.Tables {
		if err := p.table(t); err != nil {
			return err
		}
	}
	if err := p.carryOut(k.sock); err != nil {
		return err
	}
	for id, set := range k.live {
		if !r.names(id.family, id.table) {
			p.live[id] = set
		}
	}
	k.live = p.live
	return nil
}

// names says that the ruleset has the table.
func (r Ruleset) names(family Family, table string) bool {
	return slices.ContainsFunc(r.Tables, func(t Table) bool { return t.Family == family && t.Name == table })
}

// SetChange is what to add to and delete from one named set.
type SetChange struct {
	Set      Set // as the Ruleset names it; its Elements are not looked at
	Add, Del []Element
}

// Change changes the elements of sets that Apply made, in one transaction, and
// returns when it is in force. It is for sets without ranges alone: those are
// changed in time that does not depend on their size (trap 3). What is deleted
// need not be there any more.
func (k *Kernel) Change(table Table, changes ...SetChange) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := newBatch()
	for _, c := range changes {
		was := k.live[setID{table.Family, table.Name, c.Set.Name}]
		if was == nil || c.Set.Interval {
			return fmt.Errorf("set %s cannot be changed in place", c.Set.Name)
		}
		if len(c.Del) > 0 {
			// Adding first makes deleting what has expired no error.
			b.elements(table.Family, table.Name, was.name, c.Set, unix.NFT_MSG_NEWSETELEM, c.Del)
			b.elements(table.Family, table.Name, was.name, c.Set, unix.NFT_MSG_DELSETELEM, c.Del)
		}
		b.elements(table.Family, table.Name, was.name, c.Set, unix.NFT_MSG_NEWSETELEM, c.Add)
	}
	if err := k.sock.run(b); err != nil {
		return fmt.Errorf("change sets: %w", err)
	}
	for _, c := range changes {
		k.live[setID{table.Family, table.Name, c.Set.Name}].unknown = true
	}
	return nil
}

// Delete removes our tables and with them all enforcement.
func (k *Kernel) Delete(tables ...Table) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := newBatch()
	for _, t := range tables {
		// Adding first makes deleting a table that is not there no error.
		b.addTable(t)
		b.add("delete table "+t.Name, nfTables|unix.NFT_MSG_DELTABLE, unix.NLM_F_REQUEST,
			appendAttrString(nfgen(t.Family, 0), unix.NFTA_TABLE_NAME, t.Name))
	}
	if err := k.sock.run(b); err != nil {
		return err
	}
	k.live = map[setID]*liveSet{}
	return nil
}

func (b *batch) addTable(t Table) {
	data := appendAttrString(nfgen(t.Family, 0), unix.NFTA_TABLE_NAME, t.Name)
	b.add("table "+t.Name, nfTables|unix.NFT_MSG_NEWTABLE, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, data)
}

// The attributes of a hook's devices: NFTA_HOOK_DEVS (Linux 5.5) and, within,
// NFTA_DEVICE_NAME and NFTA_DEVICE_PREFIX (6.17).
const (
	attrHookDevs     = 4
	attrDeviceName   = 1
	attrDevicePrefix = 2
)

// addChain makes a chain, or changes nothing but the policy of one that stands.
func (b *batch) addChain(t Table, c Chain) {
	data := appendAttrString(nfgen(t.Family, 0), unix.NFTA_CHAIN_TABLE, t.Name)
	data = appendAttrString(data, unix.NFTA_CHAIN_NAME, c.Name)
	if h := c.Hook; h != nil {
		var at int
		data, at = beginNested(data, unix.NFTA_CHAIN_HOOK)
		data = appendAttr(data, unix.NFTA_HOOK_HOOKNUM, binary.BigEndian.AppendUint32(nil, h.Point.number()))
		data = appendAttr(data, unix.NFTA_HOOK_PRIORITY, binary.BigEndian.AppendUint32(nil, uint32(int32(h.Priority))))
		data = h.appendDevices(data)
		endNested(data, at)
		policy := uint32(1) // NF_ACCEPT
		if h.Drop {
			policy = 0 // NF_DROP
		}
		data = appendAttr(data, unix.NFTA_CHAIN_POLICY, binary.BigEndian.AppendUint32(nil, policy))
		data = appendAttrString(data, unix.NFTA_CHAIN_TYPE, h.Type)
	}
	b.add("chain "+c.Name, nfTables|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, data)
}

// number is the kernel's: NF_INET_* or NF_NETDEV_EGRESS.
func (p Point) number() uint32 {
	if p == Egress {
		return unix.NF_NETDEV_EGRESS
	}
	return uint32(p)
}

func (h Hook) appendDevices(data []byte) []byte {
	switch {
	case h.AnyDevice:
		data, at := beginNested(data, attrHookDevs)
		data = appendAttr(data, attrDevicePrefix, nil)
		endNested(data, at)
		return data
	case len(h.Devices) == 1:
		return appendAttrString(data, unix.NFTA_HOOK_DEV, h.Devices[0])
	case len(h.Devices) > 1:
		data, at := beginNested(data, attrHookDevs)
		for _, d := range h.Devices {
			data = appendAttrString(data, attrDeviceName, d)
		}
		endNested(data, at)
		return data
	}
	return data
}

// compiler makes messages of rules and sets. They are remembered, since most of a
// ruleset is the same from swap to swap.
type compiler struct {
	nextID uint32 // of sets; it must differ within a transaction only
	known  map[string][]message
}

// rememberedMax bounds the memory of a compiler: several rulesets.
const rememberedMax = 4096

// addSet makes a named set without elements.
func (c *compiler) addSet(b *batch, t Table, name string, s Set) {
	label := "set " + name
	key := fmt.Sprintf("%s %s %s\x00%s", t.Family, t.Name, name, s.definition())
	msgs, err := c.remembered(key, func() ([]message, error) {
		c.nextID++
		n := s.native(t, name, c.nextID)
		return record(func(conn *nftables.Conn) error { return conn.AddSet(&n, nil) })
	})
	b.append(label, msgs, err)
}

// remembered gives the messages of a key, made where they are not known.
func (c *compiler) remembered(key string, compile func() ([]message, error)) ([]message, error) {
	if msgs, known := c.known[key]; known {
		return msgs, nil
	}
	msgs, err := compile()
	if err != nil {
		return nil, err
	}
	if c.known == nil || len(c.known) >= rememberedMax {
		c.known = map[string][]message{}
	}
	c.known[key] = msgs
	return msgs, nil
}

func (s Set) native(t Table, name string, id uint32) nftables.Set {
	types := make([]nftables.SetDatatype, len(s.Fields))
	for i, f := range s.Fields {
		types[i] = f.datatype()
	}
	n := nftables.Set{
		Table: t.native(), Name: name, ID: id,
		Interval: s.Interval, HasTimeout: s.Timeout, Timeout: s.Default, Size: uint32(s.Size), KeyType: types[0],
	}
	if len(types) > 1 {
		n.Concatenation = s.Interval
		n.KeyType = nftables.MustConcatSetType(types...)
	}
	return n
}

func (t Table) native() *nftables.Table {
	return &nftables.Table{Name: t.Name, Family: nftables.TableFamily(t.Family)}
}

func (b *batch) flushTable(t Table) {
	b.add("flush table "+t.Name, nfTables|unix.NFT_MSG_DELRULE, unix.NLM_F_REQUEST,
		appendAttrString(nfgen(t.Family, 0), unix.NFTA_RULE_TABLE, t.Name))
}

func (b *batch) delSet(t Table, name string) {
	data := appendAttrString(nfgen(t.Family, 0), unix.NFTA_SET_TABLE, t.Name)
	b.add("delete set "+name, nfTables|unix.NFT_MSG_DELSET, unix.NLM_F_REQUEST, appendAttrString(data, unix.NFTA_SET_NAME, name))
}

func (b *batch) delChain(t Table, name string) {
	data := appendAttrString(nfgen(t.Family, 0), unix.NFTA_CHAIN_TABLE, t.Name)
	b.add("delete chain "+name, nfTables|unix.NFT_MSG_DELCHAIN, unix.NLM_F_REQUEST, appendAttrString(data, unix.NFTA_CHAIN_NAME, name))
}

// addRule appends a rule to its chain; names says what the kernel calls the
// sets that the rule names.
func (c *compiler) addRule(b *batch, t Table, chain string, r Rule, names func(set string) string) {
	label := fmt.Sprintf("%s %s %s: %s", t.Family, t.Name, chain, r)
	key := label
	for _, st := range r.Statements {
		for _, e := range st.exprs {
			if l, ok := e.(*expr.Lookup); ok && l.SetName != "" {
				key += "\x00" + names(l.SetName)
			}
		}
	}
	msgs, err := c.remembered(key, func() ([]message, error) { return c.compileRule(t, chain, r, names) })
	b.append(label, msgs, err)
}

func (c *compiler) compileRule(t Table, chain string, r Rule, names func(string) string) ([]message, error) {
	return record(func(conn *nftables.Conn) error {
		rule := &nftables.Rule{Table: t.native(), Chain: &nftables.Chain{Name: chain}}
		if r.Comment != "" {
			rule.UserData = userdata.AppendString(nil, userdata.TypeComment, r.Comment)
		}
		for _, st := range r.Statements {
			exprs, err := c.compile(conn, t, st, names)
			if err != nil {
				return err
			}
			rule.Exprs = append(rule.Exprs, exprs...)
		}
		conn.AddRule(rule)
		return nil
	})
}

// compile copies a statement's expressions, and makes its anonymous set.
func (c *compiler) compile(conn *nftables.Conn, t Table, st Statement, names func(string) string) ([]expr.Any, error) {
	exprs := make([]expr.Any, len(st.exprs))
	for i, e := range st.exprs {
		l, ok := e.(*expr.Lookup)
		if !ok {
			exprs[i] = e
			continue
		}
		lookup := *l
		exprs[i] = &lookup
		if lookup.SetName != "" {
			lookup.SetName = names(lookup.SetName)
			continue
		}
		c.nextID++
		set := st.set.native(t, "__set%d", c.nextID)
		set.Anonymous, set.Constant = true, true
		elems := make([]nftables.SetElement, len(st.set.Elements))
		for j, e := range st.set.Elements {
			elems[j].Key = []byte(st.set.wireKey(e.Key))
		}
		if err := conn.AddSet(&set, elems); err != nil {
			return nil, err
		}
		lookup.SetID, lookup.SetName = set.ID, set.Name
	}
	return exprs, nil
}

// definition is what of a set cannot change without a new one.
func (s Set) definition() string {
	s.Elements = nil
	var b strings.Builder
	s.print(&b)
	return b.String()
}
