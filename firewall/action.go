package firewall

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func verdict(text string, kind expr.VerdictKind, chain string) Statement {
	return Statement{text: text, exprs: []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}}
}

// Accept is `accept`.
func Accept() Statement { return verdict("accept", expr.VerdictAccept, "") }

// Drop is `drop`.
func Drop() Statement { return verdict("drop", expr.VerdictDrop, "") }

// Return is `return`.
func Return() Statement { return verdict("return", expr.VerdictReturn, "") }

// Jump is `jump CHAIN`.
func Jump(chain string) Statement { return verdict("jump "+chain, expr.VerdictJump, chain) }

// Goto is `goto CHAIN`.
func Goto(chain string) Statement { return verdict("goto "+chain, expr.VerdictGoto, chain) }

// Count is `counter`.
func Count() Statement {
	return Statement{text: "counter packets 0 bytes 0", exprs: []expr.Any{&expr.Counter{}}}
}

// NoTrack is `notrack`.
func NoTrack() Statement { return Statement{text: "notrack", exprs: []expr.Any{&expr.Notrack{}}} }

// Redirect is `redirect to :PORT`, in a nat chain, after an L4 match.
func Redirect(port uint16) Statement {
	return Statement{
		text: fmt.Sprintf("redirect to :%d", port),
		exprs: []expr.Any{
			&expr.Immediate{Register: 1, Data: big16(port)},
			&expr.Redir{RegisterProtoMin: 1, Flags: expr.NF_NAT_RANGE_PROTO_SPECIFIED},
		},
	}
}

// RejectTCP is `reject with tcp reset`; the rule must have matched TCP.
func RejectTCP() Statement {
	return Statement{text: "reject with tcp reset", exprs: []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
}

// RejectAdmin is `reject with icmpx admin-prohibited`.
func RejectAdmin() Statement {
	return Statement{
		text:  "reject with icmpx admin-prohibited",
		exprs: []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}},
	}
}

// LogTo is `log prefix "P" group G snaplen N`.
func LogTo(group uint16, prefix string, snaplen uint32) Statement {
	return Statement{
		text: fmt.Sprintf("log prefix %q group %d snaplen %d", prefix, group, snaplen),
		exprs: []expr.Any{&expr.Log{
			Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
			Group: group, Snaplen: snaplen, Data: []byte(prefix),
		}},
	}
}

// Mark is `meta mark M`, NotMark `meta mark != M`, SetMark `meta mark set M`.
func Mark(m uint32) Statement { return markMatch(m, true) }

// NotMark is `meta mark != M`.
func NotMark(m uint32) Statement { return markMatch(m, false) }

func markMatch(m uint32, same bool) Statement {
	not, op := eq(same)
	return Statement{text: fmt.Sprintf("meta mark %s0x%08x", not, m), exprs: metaCmp(expr.MetaKeyMARK, op, native32(m))}
}

// SetMark is `meta mark set M`.
func SetMark(m uint32) Statement {
	return Statement{text: fmt.Sprintf("meta mark set 0x%08x", m), exprs: metaSet(expr.MetaKeyMARK, m)}
}

// Priority is `meta priority P`.
func Priority(p uint32) Statement {
	return Statement{text: "meta priority " + tcHandle(p), exprs: metaCmp(expr.MetaKeyPRIORITY, expr.CmpOpEq, native32(p))}
}

// NotPriority is `meta priority != P`.
func NotPriority(p uint32) Statement {
	return Statement{text: "meta priority != " + tcHandle(p), exprs: metaCmp(expr.MetaKeyPRIORITY, expr.CmpOpNeq, native32(p))}
}

// SetPriority is `meta priority set P`.
func SetPriority(p uint32) Statement {
	return Statement{text: "meta priority set " + tcHandle(p), exprs: metaSet(expr.MetaKeyPRIORITY, p)}
}

func metaSet(key expr.MetaKey, v uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: native32(v)},
		&expr.Meta{Key: key, SourceRegister: true, Register: 1},
	}
}

// tcHandle prints a priority as nft does, which takes it for a traffic class.
func tcHandle(p uint32) string {
	switch p {
	case 0:
		return "none"
	case 0xffffffff:
		return "root"
	}
	return fmt.Sprintf("%x:%x", p>>16, p&0xffff)
}

// ct state bits (linux/netfilter/nf_conntrack_common.h, NF_CT_STATE_BIT).
const (
	StateInvalid     uint32 = 1
	StateEstablished uint32 = 2
	StateRelated     uint32 = 4
	StateNew         uint32 = 8
	StateUntracked   uint32 = 64
)

// CTState is `ct state a,b`.
func CTState(bits uint32) Statement {
	var words []string
	for _, s := range []struct {
		bit  uint32
		name string
	}{{StateInvalid, "invalid"}, {StateEstablished, "established"}, {StateRelated, "related"}, {StateNew, "new"}, {StateUntracked, "untracked"}} {
		if bits&s.bit != 0 {
			words = append(words, s.name)
		}
	}
	return Statement{text: "ct state " + strings.Join(words, ","), exprs: ctBits(expr.CtKeySTATE, bits, expr.CmpOpNeq)}
}

func ctBits(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	zero := make([]byte, 4)
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native32(bits), Xor: zero},
		&expr.Cmp{Op: op, Register: 1, Data: zero},
	}
}

// statusDNAT is IPS_DST_NAT.
const statusDNAT = 1 << 5

// CTDNAT is `ct status dnat`: the flow was redirected.
func CTDNAT() Statement {
	return Statement{text: "ct status dnat", exprs: ctBits(expr.CtKeySTATUS, statusDNAT, expr.CmpOpNeq)}
}

// CTNotDNAT is `ct status ! dnat`.
func CTNotDNAT() Statement {
	return Statement{text: "ct status ! dnat", exprs: ctBits(expr.CtKeySTATUS, statusDNAT, expr.CmpOpEq)}
}

func ctDirection(word string, b byte) Statement {
	return Statement{text: "ct direction " + word, exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{b}},
	}}
}

// CTOriginal is `ct direction original`.
func CTOriginal() Statement { return ctDirection("original", 0) }

// CTReply is `ct direction reply`.
func CTReply() Statement { return ctDirection("reply", 1) }

// CTMark is `ct mark M`.
func CTMark(m uint32) Statement { return ctMark(m, true) }

// CTNotMark is `ct mark != M`.
func CTNotMark(m uint32) Statement { return ctMark(m, false) }

func ctMark(m uint32, same bool) Statement {
	not, op := eq(same)
	return Statement{text: fmt.Sprintf("ct mark %s0x%08x", not, m), exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: native32(m)},
	}}
}

// SetCTMark is `ct mark set M`.
func SetCTMark(m uint32) Statement {
	return Statement{text: fmt.Sprintf("ct mark set 0x%08x", m), exprs: []expr.Any{
		&expr.Immediate{Register: 1, Data: native32(m)},
		&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: 1},
	}}
}

// CTCountOver is `ct count over N`; the rule must have matched new flows.
func CTCountOver(n uint32) Statement {
	return Statement{text: fmt.Sprintf("ct count over %d", n), exprs: []expr.Any{&expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV}}}
}

func fibLocal(text string, f expr.Fib, op expr.CmpOp) Statement {
	f.ResultADDRTYPE, f.Register = true, 1
	return Statement{text: text, exprs: []expr.Any{&f, &expr.Cmp{Op: op, Register: 1, Data: native32(unix.RTN_LOCAL)}}}
}

// FromLocal is `fib saddr type local`.
func FromLocal() Statement {
	return fibLocal("fib saddr type local", expr.Fib{FlagSADDR: true}, expr.CmpOpEq)
}

// FromForeign is `fib saddr type != local`: the source is no address of ours.
func FromForeign() Statement {
	return fibLocal("fib saddr type != local", expr.Fib{FlagSADDR: true}, expr.CmpOpNeq)
}

// ToLocal is `fib daddr type local`.
func ToLocal() Statement {
	return fibLocal("fib daddr type local", expr.Fib{FlagDADDR: true}, expr.CmpOpEq)
}

// ToForeign is `fib daddr type != local`.
func ToForeign() Statement {
	return fibLocal("fib daddr type != local", expr.Fib{FlagDADDR: true}, expr.CmpOpNeq)
}

// HasSocket is `meta skuid 0-4294967295`: the packet belongs to a full socket
// of somebody. The kernel's own (RST, TIME_WAIT ACK, ND, ARP) have none.
func HasSocket() Statement {
	return Statement{text: "meta skuid 0-4294967295", exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: make([]byte, 4), ToData: []byte{255, 255, 255, 255}},
	}}
}

// UID is `meta skuid U`.
func UID(uid uint32) Statement {
	return Statement{text: fmt.Sprintf("meta skuid %d", uid), exprs: metaCmp(expr.MetaKeySKUID, expr.CmpOpEq, native32(uid))}
}

// InCgroup matches sockets made in the control group with the id at the level.
func InCgroup(level uint32, id uint64) Statement {
	return Statement{text: fmt.Sprintf("socket cgroupv2 level %d %d", level, id), exprs: []expr.Any{
		&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: level, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native64(id)},
	}}
}

// SocketMarked is `socket mark != 0`: the local socket that the packet belongs to, in
// input too, bears some mark.
func SocketMarked() Statement {
	return Statement{text: "socket mark != 0x00000000", exprs: []expr.Any{
		&expr.Socket{Key: expr.SocketKeyMark, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native32(0)},
	}}
}
