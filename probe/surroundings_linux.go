package probe

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// surroundings are what a program sees of the namespace that it is in.
type surroundings struct {
	// link is that of the default route, or the first one that is up and not lo;
	// nil where there is none.
	link *net.Interface
	// source4 and source6 are our addresses on it, or on lo where there is none.
	source4, source6   netip.Addr
	gateway4, gateway6 netip.Addr
	// seccomp says that system calls are filtered.
	seccomp bool
}

// look finds out where we are.
func look() (surroundings, error) {
	var s surroundings
	links, err := net.Interfaces()
	if err != nil {
		return s, err
	}
	for _, l := range links {
		if l.Flags&net.FlagUp == 0 || l.Flags&net.FlagLoopback != 0 {
			continue
		}
		if s.link == nil || l.Name == defaultLink() {
			s.link = &l
		}
	}
	for _, l := range links {
		if s.link == nil || l.Index == s.link.Index {
			s.addressesOf(l)
		}
	}
	s.gateway4 = defaultGateway("/proc/net/route", readRoute4)
	s.gateway6 = defaultGateway("/proc/net/ipv6_route", readRoute6)
	s.seccomp = statusField("Seccomp:") == "2"
	return s, nil
}

// defaultLink names the link of the IPv4 default route.
func defaultLink() string {
	data, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

// addressesOf takes the first address of each family that is not loopback's.
func (s *surroundings) addressesOf(l net.Interface) {
	addrs, err := l.Addrs()
	if err != nil {
		return // one without: the attacks that need it say so
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		switch addr := p.Addr().Unmap(); {
		case addr.Is4() && !s.source4.IsValid():
			s.source4 = addr
		case addr.Is6() && !s.source6.IsValid():
			s.source6 = addr
		}
	}
}

// defaultGateway reads the next hop of the default route from a table of /proc.
func defaultGateway(path string, read func(fields []string) (netip.Addr, bool)) netip.Addr {
	data, err := os.ReadFile(path)
	if err != nil {
		return netip.Addr{} // no such family here
	}
	for line := range strings.Lines(string(data)) {
		if a, ok := read(strings.Fields(line)); ok {
			return a
		}
	}
	return netip.Addr{}
}

// readRoute4 reads a line of /proc/net/route: addresses are hexadecimal, in the
// machine's order.
func readRoute4(f []string) (netip.Addr, bool) {
	if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
		return netip.Addr{}, false
	}
	n, err := strconv.ParseUint(f[2], 16, 32)
	if err != nil || n == 0 {
		return netip.Addr{}, false
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(n))
	return netip.AddrFrom4(b), true
}

// readRoute6 reads a line of /proc/net/ipv6_route.
func readRoute6(f []string) (netip.Addr, bool) {
	if len(f) < 10 || f[0] != strings.Repeat("0", 32) || f[1] != "00" {
		return netip.Addr{}, false
	}
	b, err := hex.DecodeString(f[4])
	if err != nil {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(b)
	return a, ok && !a.IsUnspecified()
}

// packetsSent counts what the links but lo have sent, in /proc/net/dev. Where that
// cannot be read it never gives the same twice.
func packetsSent() string {
	data, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return time.Now().String()
	}
	var counts strings.Builder
	for line := range strings.Lines(string(data)) {
		name, numbers, ok := strings.Cut(line, ":")
		if f := strings.Fields(numbers); ok && len(f) > 9 && strings.TrimSpace(name) != "lo" {
			counts.WriteString(name + f[9] + " ")
		}
	}
	return counts.String()
}

// statusField reads a line of /proc/self/status.
func statusField(name string) string {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// inetSocket is a line of /proc/net/tcp, tcp6, udp or udp6.
type inetSocket struct {
	local, remote netip.AddrPort
	state, inode  string
}

const tcpListen = "0A"

// inetSockets lists the sockets of the namespace; of a table that is not there
// it lists none.
func inetSockets(tables ...string) []inetSocket {
	var all []inetSocket
	for _, table := range tables {
		data, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue
		}
		scanner := bufio.NewScanner(bytes.NewReader(data))
		for scanner.Scan() {
			f := strings.Fields(scanner.Text())
			if len(f) < 10 {
				continue
			}
			local, ok := parseHexAddrPort(f[1])
			remote, ok2 := parseHexAddrPort(f[2])
			if ok && ok2 {
				all = append(all, inetSocket{local, remote, f[3], f[9]})
			}
		}
	}
	return all
}

// parseHexAddrPort reads "0100007F:1F90": words of 32 bits in the machine's order.
func parseHexAddrPort(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok && err == nil
}
