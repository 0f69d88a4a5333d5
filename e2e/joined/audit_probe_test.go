//go:build linux

package joined

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/control/api"
)

// A sandbox sees the ports of the probe's sockets (/proc/net has the whole
// namespace's). What it asks from the same port of another protocol or family is
// its own, and in the log, as a decision of the probe's own socket would not be.
func TestASandboxHidesNothingBeforeAProbe(t *testing.T) {
	s := start(t, "--allow", "pypi.test")
	probed := make(chan error, 1)
	go func() {
		_, err := s.Probe(t.Context(), api.ProbeRequest{Safe: true})
		probed <- err
	}()
	var asked []string
	err := s.In(func() error {
		seen := map[string]bool{}
		for {
			for table, beside := range map[string]string{"tcp": "udp4", "tcp6": "udp6", "udp6": "udp4", "udp": "udp6"} {
				ports, err := localPorts(table)
				if err != nil {
					return err
				}
				for _, port := range ports {
					name := fmt.Sprintf("port%d-%s-%s.evil.test", port, table, beside)
					if port < 61000 || seen[name] {
						continue
					}
					seen[name] = true
					if askFrom(beside, port, name) {
						asked = append(asked, name)
					}
				}
			}
			select {
			case err := <-probed:
				return err
			case <-time.After(time.Millisecond):
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(asked) == 0 {
		t.Fatal("no port of a probe was met")
	}
	for _, name := range asked {
		s.says(t, name)
	}
}

// localPorts are those of the namespace's sockets of one table, but of listeners.
func localPorts(table string) ([]int, error) {
	f, err := os.Open("/proc/thread-self/net/" + table)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ports []int
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] == "0A" {
			continue
		}
		_, hex, found := strings.Cut(fields[1], ":")
		if port, err := strconv.ParseUint(hex, 16, 16); err == nil && found {
			ports = append(ports, int(port))
		}
	}
	return ports, nil
}

// askFrom asks for a name from a port, if that can be had; true when there was an answer.
func askFrom(network string, port int, name string) bool {
	from := &net.UDPAddr{IP: net.IPv4zero, Port: port}
	to := "203.0.113.53:53"
	if network == "udp6" {
		from.IP, to = net.IPv6unspecified, "[2001:db8::53]:53"
	}
	d := net.Dialer{LocalAddr: from, Timeout: time.Second}
	conn, err := d.Dial(network, to)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return false
	}
	answered := &dns.Conn{Conn: conn}
	if answered.WriteMsg(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)) != nil {
		return false
	}
	_, err = answered.ReadMsg()
	return err == nil
}
