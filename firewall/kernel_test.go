package firewall

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// every statement that a ruleset may hold, for the golden comparison.
func everything() Ruleset {
	prefix := netip.MustParsePrefix
	addr := netip.MustParseAddr
	host4 := Set{Name: "host4", Fields: []Field{FieldIPv4, FieldPort, FieldProto}, Elements: []Element{{Key: Key(addr("192.0.2.1"), uint16(443), uint8(6))}}}
	net6 := Set{Name: "net6", Fields: []Field{FieldIPv6, FieldPort, FieldProto}, Interval: true, Elements: []Element{{
		Key: Key(addr("2001:db8::"), uint16(0), uint8(6)), End: Key(addr("2001:db8::ffff"), uint16(65535), uint8(6)),
	}}}
	range4 := Set{Name: "range4", Fields: []Field{FieldIPv4}, Interval: true, Elements: []Element{
		{Key: Key(addr("192.0.2.0")), End: Key(addr("192.0.2.255"))}, {Key: Key(addr("255.255.255.255"))},
	}}
	syn4 := Set{Name: "syn4", Fields: []Field{FieldIPv4, FieldPort}, Timeout: true, Size: 1000, Elements: []Element{{Key: Key(addr("192.0.2.9"), uint16(22)), Timeout: time.Hour}}}
	rule := NewRule
	return Ruleset{Tables: []Table{
		{Family: Inet, Name: "exeat", Sets: []Set{host4, net6, range4, syn4}, Chains: []Chain{
			{Name: "raw", Hook: &Hook{Type: "filter", Point: Output, Priority: -300}, Rules: []Rule{
				rule(OutIface("lo"), NotFrom(prefix("127.0.0.11/32")), TCPorUDP(), NotDPort(15001, 53), NotSPort(53), NoTrack()).Comments("why"),
				rule(OutIface("lo"), IsIPv6(), TCPorUDP(), DPort(53), NoTrack()),
			}},
			{Name: "pre", Hook: &Hook{Type: "filter", Point: Prerouting, Priority: -310}, Rules: []Rule{
				rule(NotInIface("lo"), To(prefix("127.0.0.0/8")), Count(), Drop()),
				rule(InIface("lo"), FromForeign(), CTNotDNAT(), Count(), Drop()),
				rule(InIface("lo"), ToForeign(), CTDNAT(), Drop()),
				rule(FromLocal(), ToLocal(), Drop()),
			}},
			{Name: "nat", Hook: &Hook{Type: "nat", Point: Output, Priority: -110}, Rules: []Rule{
				rule(TCPorUDP(), DPort(53), Redirect(15053)),
				rule(To(prefix("10.0.0.0/9")), Return()),
				rule(NotTo(prefix("2001:db8::/33")), Return()),
			}},
			{Name: "out", Hook: &Hook{Type: "filter", Point: Output, Drop: true}, Rules: []Rule{
				rule(CTState(StateNew|StateUntracked), CTCountOver(8192), Drop()),
				rule(HasSocket(), UID(7), SetMark(0x1234), SetPriority(0xabcd1234), Accept()),
				rule(NotMark(9), NotPriority(5), Jump("sub")),
				rule(Mark(9), Priority(5), SetMark(0), SetPriority(0), Goto("sub")),
				rule(CTMark(0x10), CTOriginal(), CTReply(), CTNotMark(0x10), SetCTMark(0x20)),
				rule(TCPorUDP(), InSet(host4, 0), Accept()),
				rule(TCPorUDP(), FromSet(net6, 0), Accept()),
				rule(InSet(range4, 0), Accept()),
				rule(InSet(syn4, 6), Accept()),
				rule(TCPDPort(80, 443), RejectTCP()),
				rule(NotTCPDPort(80, 443), UDPDPort(443), Drop()),
				rule(IsIPv4(), L4(47), LogTo(9, "unlisted", 128), RejectAdmin()),
				rule(Drop()),
			}},
			{Name: "sub", Rules: []Rule{rule(Accept())}},
		}},
		{Family: Netdev, Name: "exeat", Chains: []Chain{
			{Name: "egress", Hook: &Hook{Type: "filter", Point: Egress, Drop: true, Devices: []string{"lo"}}, Rules: []Rule{
				rule(Mark(1), Accept()),
				rule(Drop()),
			}},
		}},
	}}
}

func TestWhatNftListsAfterApplyIsWhatTheRulesetPrints(t *testing.T) {
	if !namespace(t) {
		return
	}
	sh(t, "ip link set lo up")
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	r := everything()
	for range 2 { // a second Apply changes nothing
		if err := k.Apply(r); err != nil {
			t.Fatal(err)
		}
		compareRuleset(t, sh(t, "nft list ruleset"), r.String())
	}
}

var (
	counterText = regexp.MustCompile(`counter packets \d+ bytes \d+`)
	expiresText = regexp.MustCompile(` expires \w+`)
	madeAnew    = regexp.MustCompile(`(?m)_+( |$)`) // what a set made anew is called
	setText     = regexp.MustCompile(`(?m)^\tset [^}]*(\{[^}]*\}[^}]*)?\n\t\}\n+`)
	breakText   = regexp.MustCompile(`,\n\s+`)
)

// compareRuleset compares nft's listing with ours, less what traffic and time change.
func compareRuleset(t testing.TB, got, want string) {
	t.Helper()
	clean := func(s string) []string {
		s = counterText.ReplaceAllString(s, "counter packets 0 bytes 0")
		s = expiresText.ReplaceAllString(s, "")
		s = madeAnew.ReplaceAllString(s, "$1")
		s = breakText.ReplaceAllString(s, ", ")
		// Sets made anew are listed after the others.
		sets := setText.FindAllString(s, -1)
		slices.Sort(sets)
		return strings.Split(strings.Join(sets, "")+setText.ReplaceAllString(s, ""), "\n")
	}
	g, w := clean(got), clean(want)
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = strings.TrimSpace(g[i])
		}
		if i < len(w) {
			b = strings.TrimSpace(w[i])
		}
		if a != b {
			t.Errorf("line %d:\n kernel %s\n  ours  %s", i+1, a, b)
		}
	}
}

func TestRulesAreAppliedInAnotherNamespaceByDescriptorOrSocket(t *testing.T) {
	if !namespace(t) {
		return
	}
	ns, tid, end := otherNamespace(t)
	defer end()
	there := func() string {
		return sh(t, fmt.Sprintf("nsenter --net=/proc/%d/task/%d/ns/net nft list ruleset", os.Getpid(), tid))
	}
	r := Ruleset{Tables: []Table{{Family: Inet, Name: "exeat", Chains: []Chain{{Name: "c", Rules: []Rule{NewRule(Drop())}}}}}}
	byNamespace, err := OpenNamespace(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer byNamespace.Close()
	if err := byNamespace.Apply(r); err != nil {
		t.Fatal(err)
	}
	compareRuleset(t, there(), r.String())
	if err := byNamespace.Delete(r.Tables...); err != nil {
		t.Fatal(err)
	}
	var passed *os.File
	if err := inNamespace(ns, func() (err error) { passed, err = NetlinkSocket(); return err }); err != nil {
		t.Fatal(err)
	}
	bySocket, err := OpenSocket(passed)
	if err != nil {
		t.Fatal(err)
	}
	defer bySocket.Close()
	if err := passed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := bySocket.Apply(r); err != nil {
		t.Fatal(err)
	}
	compareRuleset(t, there(), r.String())
	if here := sh(t, "nft list ruleset"); here != "" {
		t.Errorf("our own namespace got:\n%s", here)
	}
}

// otherNamespace makes one; end gives it back.
func otherNamespace(t testing.TB) (ns, tid int, end func()) {
	t.Helper()
	ready, stop := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			tid = unix.Gettid()
			ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		<-stop
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	return ns, tid, func() { close(stop) }
}

func TestARefusedRuleIsNamedAndNothingChanges(t *testing.T) {
	if !namespace(t) {
		return
	}
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	good := JoinedRuleset(basicInput(compiled(t, `"no-network"`)))
	if err := k.Apply(good); err != nil {
		t.Fatal(err)
	}
	bad := JoinedRuleset(basicInput(compiled(t, `"public"`)))
	last := &bad.Tables[0].Chains[len(bad.Tables[0].Chains)-1]
	last.Rules = append(last.Rules, NewRule(Jump("nowhere")))
	err = k.Apply(bad)
	if err == nil || !strings.Contains(err.Error(), "leave: jump nowhere: no such file or directory") {
		t.Errorf("error %v does not name the rule", err)
	}
	compareRuleset(t, sh(t, "nft list ruleset"), good.String())
	if err := k.Apply(good); err != nil {
		t.Fatal(err)
	}
}
