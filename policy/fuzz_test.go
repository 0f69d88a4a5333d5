package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzParse: no document panics; a legal one is a fixed point of canonical and
// decides; an illegal one says why, at least once.
func FuzzParse(f *testing.F) {
	for _, document := range messageDocuments() {
		f.Add([]byte(document))
	}
	for seed := range uint64(20) {
		f.Add([]byte(newRandom(seed).document()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, _, err := Parse(data)
		if err != nil {
			problems, ok := err.(Errors)
			if !ok || len(problems) == 0 {
				t.Fatalf("not an Errors, or an empty one: %v", err)
			}
			return
		}
		checkFixedPoint(t, d)
		c := Compile(d, Options{})
		for _, target := range d.Denied {
			if target.Proto == ProtocolTCP || target.Proto == ProtocolUnset {
				r := Request{Addr: target.Prefix.Addr(), Name: target.Name, Port: max(target.Port, 1)}
				if target.Wildcard {
					r.Name = "x." + target.Name
				}
				if got := c.Decide(r); got.Reason != ReasonDenied {
					t.Fatalf("%s is denied, and its own host is %+v", target, got)
				}
			}
		}
	})
}

// FuzzParseHost: what a person may write normalises to what the wire entry takes
// as it is, so that rules and traffic are spelt alike.
func FuzzParseHost(f *testing.F) {
	for _, host := range hostSeeds() {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := ParseHost(s)
		if err != nil {
			if host != (Host{}) {
				t.Fatalf("%q: an error and %+v", s, host)
			}
			return
		}
		checkHost(t, s, host)
		if isASCII(s) {
			if wire, err := ParseWireHost(s); err != nil || wire != host {
				t.Fatalf("%q is %+v in a document and %+v, %v on the wire", s, host, wire, err)
			}
		}
	})
}

// FuzzParseWireHost: only ASCII passes, and what passes is normal.
func FuzzParseWireHost(f *testing.F) {
	for _, host := range hostSeeds() {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := ParseWireHost(s)
		if err != nil {
			return
		}
		if !isASCII(s) {
			t.Fatalf("%q is not ASCII and passed", s)
		}
		checkHost(t, s, host)
	})
}

func hostSeeds() []string {
	return []string{
		"a.test", "A.TEST.", "_x._tcp.a.test", "xn--bcher-kva.example", "bücher.example", "straße.example", "Kelvin.test", "a。test",
		"203.0.113.1", "203.0.113.1.", "127.1", "0x7f000001", "2130706433", "010.0.0.1", "1.2.3.4.5", "１２７.0.0.1", "[2001:db8::1]", "2001:db8::1",
		"::ffff:203.0.113.1", "fe80::1%eth0", "[", "]", "[]", "", ".", "..", "a..b", "-a", "a-", "*", "a:443", "a/b", "a b", "a\x00b", "\xff", "a\u200db", strings.Repeat("a.", 127),
	}
}

func checkHost(t *testing.T, s string, host Host) {
	t.Helper()
	if (host.Name == "") == !host.Addr.IsValid() {
		t.Fatalf("%q: both or neither: %+v", s, host)
	}
	if host.Addr.Is4In6() || host.Addr.Zone() != "" {
		t.Fatalf("%q: %v is mapped or has a zone", s, host.Addr)
	}
	if endsInNumber(host.Name) || strings.ContainsAny(host.Name, ":/[]@%* ") || host.Name != lowerASCII(host.Name) {
		t.Fatalf("%q: %q is not a normal name", s, host.Name)
	}
	if again, err := ParseWireHost(host.String()); err != nil || again != host {
		t.Fatalf("%q: %v read again is %+v, %v", s, host, again, err)
	}
}

// FuzzReadPlan: no phases document panics in either syntax; the phases of a legal
// one have unique names and policies that parse again.
func FuzzReadPlan(f *testing.F) {
	files, err := filepath.Glob("testdata/phases/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, strings.HasSuffix(file, ".toml"), true)
	}
	f.Add([]byte("phases = { z = \"public\", a = { network_mode = \"no-network\" } }"), true, false)
	f.Add([]byte(`{"baseline": "public", "phases": {"a": "public", "a": "public", "": 1}}`), false, false)
	f.Fuzz(func(t *testing.T, data []byte, isTOML, fresh bool) {
		name := "plan.json"
		if isTOML {
			name = "plan.toml"
		}
		for _, in := range []PlanInput{
			{File: &PhasesSource{Name: name, Data: data}, Fresh: fresh},
			{Task: &PhasesSource{Name: name, Data: data}, Recipe: &PhasesSource{Name: name, Data: data}, Fresh: fresh},
		} {
			plan, _, err := ReadPlan(in)
			if err != nil {
				if problems, ok := err.(Errors); !ok || len(problems) == 0 {
					t.Fatalf("not an Errors, or an empty one: %v", err)
				}
				continue
			}
			seen := map[string]bool{}
			for _, phase := range plan.Phases {
				if phase.Name == "" || seen[phase.Name] || phase.Source == "" {
					t.Fatalf("%+v: no name, no source or a name twice", plan)
				}
				seen[phase.Name] = true
				checkFixedPoint(t, phase.Policy)
			}
			var again Plan
			if err := json.Unmarshal([]byte(mustJSON(t, plan)), &again); err != nil || !reflect.DeepEqual(again, plan) {
				t.Fatalf("%+v read again is %+v, %v", plan, again, err)
			}
		}
	})
}
