package firewall

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
)

// Ruleset is everything we want in the kernel, as data: building one touches
// nothing. Kernel.Apply puts it in force; String prints it as nft text.
type Ruleset struct{ Tables []Table }

// Family is the address family of a table.
type Family uint8

// The families that we use.
const (
	Inet   Family = 1 // NFPROTO_INET
	Netdev Family = 5 // NFPROTO_NETDEV
)

// String gives nft's word.
func (f Family) String() string {
	if f == Netdev {
		return "netdev"
	}
	return "inet"
}

// Table is one table; only tables of ours are ever named in a Ruleset.
type Table struct {
	Family Family
	Name   string
	Sets   []Set
	Chains []Chain
}

// Point is where in the path of a packet a base chain sits.
type Point uint8

// The hook points; Egress exists in the netdev family only.
const (
	Prerouting Point = iota
	Input
	Forward
	Output
	Postrouting
	Egress
)

// String gives nft's word.
func (p Point) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting", "egress"}[p]
}

// Hook makes a chain a base chain.
type Hook struct {
	Type     string // "filter", "nat"
	Point    Point
	Priority int
	// Drop is the chain's policy; the last rule of such a chain must drop or
	// reject all the same (nftables-notes: a policy alone takes effect late).
	Drop bool
	// Devices are the links of an Egress chain. AnyDevice hooks every present and
	// future link instead (an empty NFTA_DEVICE_PREFIX, Linux 6.17).
	Devices   []string
	AnyDevice bool
}

// Chain is a list of rules; with a Hook it sees packets by itself, without one
// it is jumped to.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// Rule is a list of statements, judged from left to right.
type Rule struct {
	Statements []Statement
	Comment    string
}

// NewRule joins statements to a rule.
func NewRule(statements ...Statement) Rule { return Rule{Statements: statements} }

// Comments returns the rule with a comment, which the kernel keeps.
func (r Rule) Comments(comment string) Rule {
	r.Comment = comment
	return r
}

// Statement is one match or action: its nft text and the kernel expressions
// that nft itself would make of it. The zero value matches everything and
// prints nothing.
type Statement struct {
	text  string
	exprs []expr.Any
	// set is an anonymous set, which the one Lookup without a name refers to.
	set *Set
}

// Field is one part of a set's key.
type Field uint8

// The fields; each takes a multiple of four bytes in a key.
const (
	FieldIPv4 Field = iota
	FieldIPv6
	FieldPort
	FieldProto
	FieldICMPv6Type
	FieldICMPType
	FieldIface
)

// Set is a named set, or with no name an anonymous one within a Statement.
type Set struct {
	Name     string
	Fields   []Field
	Interval bool          // elements may be ranges
	Timeout  bool          // elements may expire
	Elements []Element     // without duplicates; of an interval set, without overlaps
	Size     int           // most elements that the kernel will hold; 0 = no bound
	Default  time.Duration // timeout of elements that bear none
}

// Element is one key, or with End an inclusive range of keys, in the kernel's
// own form (see Key).
type Element struct {
	Key, End string
	Timeout  time.Duration
}

// String prints the ruleset as `nft list ruleset` does, elements and all.
func (r Ruleset) String() string {
	var b strings.Builder
	for _, t := range r.Tables {
		t.print(&b)
	}
	return b.String()
}

func (t Table) print(b *strings.Builder) {
	fmt.Fprintf(b, "table %s %s {\n", t.Family, t.Name)
	for i, s := range t.Sets {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.print(b)
	}
	for i, c := range t.Chains {
		if i > 0 || len(t.Sets) > 0 {
			b.WriteByte('\n')
		}
		c.print(b)
	}
	b.WriteString("}\n")
}

func (s Set) print(b *strings.Builder) {
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.Name, joinFields(s.Fields))
	if s.Size > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", s.Size)
	}
	var flags []string
	if s.Interval {
		flags = append(flags, "interval")
	}
	if s.Timeout {
		flags = append(flags, "timeout")
	}
	if len(flags) > 0 {
		fmt.Fprintf(b, "\t\tflags %s\n", strings.Join(flags, ","))
	}
	if s.Default > 0 {
		fmt.Fprintf(b, "\t\ttimeout %s\n", nftDuration(s.Default))
	}
	if len(s.Elements) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", s.elementList())
	}
	b.WriteString("\t}\n")
}

func (s Set) elementList() string {
	sorted := slices.Clone(s.Elements)
	slices.SortFunc(sorted, s.compare)
	words := make([]string, len(sorted))
	for i, e := range sorted {
		words[i] = e.text(s.Fields)
		if e.Timeout > 0 {
			words[i] += " timeout " + nftDuration(e.Timeout)
		}
	}
	return strings.Join(words, ", ")
}

// compare orders elements as nft lists them: numbers by value; concatenations
// by their last part first, and of a set without ranges as numbers whose first
// byte weighs least.
func (s Set) compare(a, b Element) int {
	end := len(a.Key)
	for _, f := range slices.Backward(s.Fields) {
		from := end - align4(f.size())
		x, y := []byte(a.Key[from:end]), []byte(b.Key[from:end])
		if !s.Interval && len(s.Fields) > 1 {
			slices.Reverse(x)
			slices.Reverse(y)
		}
		if c := bytes.Compare(x, y); c != 0 {
			return c
		}
		end = from
	}
	return 0
}

func (c Chain) print(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if h := c.Hook; h != nil {
		policy := "accept"
		if h.Drop {
			policy = "drop"
		}
		fmt.Fprintf(b, "\t\ttype %s hook %s%s priority %s; policy %s;\n", h.Type, h.Point, h.devices(), h.priority(), policy)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}

// devices prints the links as nft 1.0.6 lists them; it has no word for a prefix.
func (h Hook) devices() string {
	switch {
	case h.AnyDevice:
		return ` device "*"`
	case len(h.Devices) == 1:
		return fmt.Sprintf(" device %q", h.Devices[0])
	case len(h.Devices) > 1:
		return " devices = { " + strings.Join(h.Devices, ", ") + " }"
	}
	return ""
}

// priority prints the number as nft lists it: relative to a name within ten of it.
func (h Hook) priority() string {
	names := []struct {
		name string
		at   int
	}{{"raw", -300}, {"mangle", -150}, {"dstnat", -100}, {"filter", 0}, {"security", 50}, {"srcnat", 100}}
	for _, n := range names {
		d := h.Priority - n.at
		if n.name == "dstnat" && h.Point != Prerouting || n.name == "srcnat" && h.Point != Postrouting {
			continue
		}
		switch {
		case h.Type == "nat" && n.name != "dstnat" && n.name != "srcnat" && n.name != "filter":
		case d == 0:
			return n.name
		case d > 0 && d <= 10:
			return fmt.Sprintf("%s + %d", n.name, d)
		case d < 0 && d >= -10:
			return fmt.Sprintf("%s - %d", n.name, -d)
		}
	}
	return fmt.Sprint(h.Priority)
}

// String prints the rule as nft lists it.
func (r Rule) String() string {
	words := make([]string, 0, len(r.Statements)+1)
	for _, s := range r.Statements {
		if s.text != "" {
			words = append(words, s.text)
		}
	}
	if r.Comment != "" {
		words = append(words, fmt.Sprintf("comment %q", r.Comment))
	}
	return strings.Join(words, " ")
}

// nftDuration prints a duration as nft does: 1h2m3s, 500ms.
func nftDuration(d time.Duration) string {
	var b strings.Builder
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.unit
		}
	}
	return b.String()
}
