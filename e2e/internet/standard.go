package internet

import "fmt"

// Standard is the zone that the demo and most tests use.
func Standard() Zone {
	zone := Zone{
		"pypi.test":      {"A 203.0.113.10", "AAAA 2001:db8::10"},
		"registry.test":  {"A 203.0.113.11", "AAAA 2001:db8::11"},
		"api.test":       {"A 203.0.113.12", "AAAA 2001:db8::12"},
		"files.test":     {"A 203.0.113.13", "AAAA 2001:db8::13"},
		"git.test":       {"A 203.0.113.14", "AAAA 2001:db8::14"},
		"ssh.test":       {"A 203.0.113.15"},
		"six.test":       {"AAAA 2001:db8::16"},
		"cdn-a.test":     {"A 203.0.113.20"},
		"cdn-b.test":     {"A 203.0.113.20"},
		"evil.test":      {"A 203.0.113.66", "AAAA 2001:db8::66"},
		"www.alias.test": {"CNAME pypi.test."},
		"loop-a.test":    {"CNAME loop-b.test."},
		"loop-b.test":    {"CNAME loop-a.test."},
		"txt.test":       {"TXT \"a record\"", "A 203.0.113.21"},
		"https.test":     {"A 203.0.113.22", "HTTPS 1 . alpn=h2 ipv4hint=203.0.113.22,10.99.0.5 ech=AEX+DQA="},
		"intranet.test":  {"A 10.99.0.5"},
		"metadata.test":  {"A 169.254.169.254"},
		"rebind.test":    {"A 127.0.0.1"},
		"mixed.test":     {"A 10.99.0.5", "A 203.0.113.23"},
		"alias-to-evil.test": {
			"CNAME evil.test.",
		},
	}
	for i := range 40 {
		zone["many.test"] = append(zone["many.test"], fmt.Sprintf("A 198.51.100.%d", 10+i))
	}
	return zone
}
