package policy

import "strings"

// modeWords are words that people write for a mode, beside near spellings.
func modeMeant(word string) (Mode, bool) {
	plain := strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(word))
	switch plain {
	case "public", "open", "allowall", "all", "any", "on", "internet", "full", "unrestricted", "enabled", "online", "true":
		return ModePublic, true
	case "nonetwork", "none", "denyall", "off", "no", "isolated", "blockall", "disabled", "offline", "closed", "nointernet", "private", "false":
		return ModeNoNetwork, true
	case "allowlist", "allow", "allowed", "whitelist", "allowedhosts", "restricted":
		return ModeAllowlist, true
	case "denylist", "deny", "denied", "blacklist", "blocklist", "block", "deniedhosts":
		return ModeDenylist, true
	}
	if near, found := nearest(plain, []string{"public", "nonetwork", "allowlist", "denylist"}); found {
		return map[string]Mode{
			"public": ModePublic, "nonetwork": ModeNoNetwork, "allowlist": ModeAllowlist, "denylist": ModeDenylist,
		}[near], true
	}
	return "", false
}

// fieldMeant guesses the legal field that a written one was meant as.
func fieldMeant(field string, legal []string) (string, bool) {
	plain := strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(field))
	aliases := map[string]string{
		"mode": "network_mode", "network": "network_mode", "policy": "network_mode", "type": "network_mode",
		"allow": "allowed_hosts", "allowed": "allowed_hosts", "allowlist": "allowed_hosts", "allowhosts": "allowed_hosts",
		"alloweddomains": "allowed_hosts", "whitelist": "allowed_hosts", "hosts": "allowed_hosts", "domains": "allowed_hosts",
		"deny": "denied_hosts", "denied": "denied_hosts", "denylist": "denied_hosts", "denyhosts": "denied_hosts",
		"denieddomains": "denied_hosts", "blocked": "denied_hosts", "blockedhosts": "denied_hosts", "blocklist": "denied_hosts", "blacklist": "denied_hosts",
		"hostname": "host", "name": "host", "domain": "host", "address": "host", "ip": "host", "cidr": "host", "target": "host",
		"ports": "port", "proto": "protocol", "transport": "protocol", "protocols": "protocol",
	}
	if meant, found := aliases[plain]; found {
		for _, l := range legal {
			if l == meant {
				return meant, true
			}
		}
	}
	for _, l := range legal {
		if strings.ReplaceAll(l, "_", "") == plain {
			return l, true
		}
	}
	return nearest(strings.ToLower(field), legal)
}

// nearest is the candidate within two edits of word, if one is nearer than its
// own length makes meaningless.
func nearest(word string, candidates []string) (string, bool) {
	if len(word) > 64 {
		return "", false
	}
	best, bestDistance := "", 3
	for _, c := range candidates {
		if d := EditDistance(word, c); d < bestDistance && 2*d < len(c) {
			best, bestDistance = c, d
		}
	}
	return best, best != ""
}

// EditDistance is the Levenshtein distance in bytes, for whoever guesses what was meant.
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
