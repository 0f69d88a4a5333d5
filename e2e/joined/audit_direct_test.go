//go:build linux

package joined

import (
	"testing"

	"github.com/miekg/dns"
)

// What an answer led to under one policy need not be led to under the next: UDP by
// name goes straight out, so that the rules alone hold it to what its address is.
func TestANameDoesNotOpenASpecialAddressToUDP(t *testing.T) {
	const (
		intranet, metadata, outside = "10.99.0.5:7", "169.254.169.254:7", "203.0.113.23:7"
		plain                       = `{"network_mode": "allowlist", "allowed_hosts": [
			{"host": "intranet.test", "port": 7, "protocol": "udp"}, {"host": "metadata.test", "port": 7, "protocol": "udp"},
			{"host": "mixed.test", "port": 7, "protocol": "udp"}]}`
		lifted = `{"network_mode": "allowlist", "allowed_hosts": [
			{"host": "intranet.test", "port": 7, "protocol": "udp", "private": true},
			{"host": "mixed.test", "port": 7, "protocol": "udp"}]}`
		otherPort = `{"network_mode": "allowlist", "allowed_hosts": [
			{"host": "intranet.test", "port": 443, "private": true}, {"host": "intranet.test", "port": 7, "protocol": "udp"},
			{"host": "mixed.test", "port": 7, "protocol": "udp"}]}`
	)
	far := map[string]*udpEcho{}
	for _, address := range []string{intranet, metadata, outside} {
		far[address] = serveUDP(t, address)
	}
	for name, c := range map[string]struct {
		before, after string
		// open says that the first lets UDP through to the intranet.
		open bool
	}{
		"swapped to from public":                      {`"public"`, plain, true},
		"whose private is gone since":                 {lifted, plain, true},
		"of which another port alone may be private":  {`"no-network"`, otherPort, false},
		"swapped to from public, another one private": {`"public"`, otherPort, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "--mode", "no-network")
			s.swap(t, c.before)
			ask := func() {
				for _, name := range []string{"intranet.test", "metadata.test", "mixed.test"} {
					s.resolve(t, name, dns.TypeA, "203.0.113.53:53")
				}
			}
			ask()
			if c.open {
				s.answersUDP(t, intranet)
			}
			for range 2 { // with what is known from before, and asked anew
				s.swap(t, c.after)
				before := far[intranet].count() + far[metadata].count()
				s.refused(t, "udp", intranet)
				s.refused(t, "udp", metadata)
				if n := far[intranet].count() + far[metadata].count() - before; n > 0 {
					t.Errorf("%d datagrams came through", n)
				}
				ask()
			}
			s.answersUDP(t, outside)
		})
	}
}
