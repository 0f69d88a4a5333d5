package dnsfilter

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// maxNameservers is how many nameserver lines libc heeds (resolv.conf(5)).
const maxNameservers = 3

// ReadResolvConf reads the nameserver and search lines of resolv.conf(5). It is
// for files that the sandbox cannot write: the host's, in the sealed shape
// (bypass B46).
func ReadResolvConf(path string) (upstreams []Upstream, search []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read resolver configuration: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			addr, err := netip.ParseAddr(fields[1])
			if err != nil || len(upstreams) == maxNameservers {
				continue // as libc does: a line it cannot use is no line
			}
			upstreams = append(upstreams, Upstream{Addr: netip.AddrPortFrom(addr.Unmap(), dnsPort)})
		case "search", "domain":
			search = search[:0]
			for _, domain := range fields[1:] {
				if domain = strings.ToLower(strings.TrimSuffix(domain, ".")); domain != "" {
					search = append(search, domain)
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return upstreams, search, nil
}
