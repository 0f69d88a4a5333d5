package policy

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Each document below earns at least one message. The golden file is there to be
// read: can a person act on each line without the manual?
func messageDocuments() []string {
	target := func(t string) string { return `{"network_mode": "allowlist", "allowed_hosts": [` + t + `]}` }
	documents := []string{
		``, ` `, `public`, `none`, `{`, `{"network_mode": "public",}`, `"public" "public"`, `"public"` + "\n}", "\xef\xbb\xbf\"public\"", "\"\xff\"",
		`null`, `true`, `7`, `["pypi.org"]`, `"allowlist"`, `"denylist"`, `"none"`, `"deny-all"`, `"off"`, `"open"`, `"allow-all"`, `"Public"`, `"no_network"`, `"whitelist"`, `"blacklist"`, `"pubilc"`, `"bridge"`, `""`,
		`{}`, `{"allowed_hosts": ["a.test"]}`, `{"denied_hosts": ["a.test"]}`, `{"network_mode": null}`, `{"network_mode": 1}`, `{"network_mode": "none"}`, `{"network_mode": "bridge"}`,
		`{"network_mode": "public", "network_mode": "public"}`, `{"mode": "public"}`, `{"networkMode": "public"}`, `{"network_mode": "public", "x": 1}`, `{"network_mode": "public", "a b": 1, "": 2}`,
		`{"network_mode": "allowlist", "allowed_host": ["a.test"]}`, `{"network_mode": "allowlist", "allow": ["a.test"]}`,
		`{"network_mode": "public", "allowed_hosts": ["a.test"]}`, `{"network_mode": "public", "denied_hosts": ["a.test"]}`,
		`{"network_mode": "no-network", "allowed_hosts": []}`, `{"network_mode": "no-network", "denied_hosts": []}`,
		`{"network_mode": "denylist", "allowed_hosts": ["a.test"]}`, `{"network_mode": "denylist"}`, `{"network_mode": "denylist", "denied_hosts": []}`,
		`{"network_mode": "denylist", "denied_hosts": ["a.test"]}`,
		`{"network_mode": "allowlist", "allowed_hosts": "a.test"}`, `{"network_mode": "allowlist", "allowed_hosts": null}`, `{"network_mode": "allowlist", "allowed_hosts": {}}`,
	}
	for _, t := range []string{
		`null`, `1`, `[]`, `""`, `"*"`, `"*:443"`, `"*."`, `"**.test"`, `"*.*.test"`, `"a.*.test"`, `"api*.test:443"`, `"a.*"`,
		`"*.203.0.113.1"`, `"*.203.0.113.0/24"`, `"*.2001:db8::1"`, `"*.127.1"`,
		`" a.test"`, `"a test"`, `"a.test\n"`, `"a\u0000.test"`, `"https://a.test/simple"`, `"https://a.test:8443/x?y"`, `"ftp://u:p@a.test/x"`, `"//a.test"`, `"u@a.test:22"`, `"a.test?x"`, `"a.test#x"`, `"a.test/simple"`, `"203.0.113.1/index.html"`, `"https://*"`,
		`"a..test"`, `".a.test"`, `"-a.test"`, `"a-.test"`, `"a!.test"`, `"a,b.test"`, `"."`, `":443"`,
		`"` + strings.Repeat("a", 64) + `.test"`, `"` + strings.Repeat("abcdefg.", 40) + `test"`, `"*.` + strings.Repeat("abcdefg.", 31) + `test"`,
		`"a.test:"`, `"a.test:0"`, `"a.test:00443"`, `"a.test:+443"`, `"a.test:65536"`, `"a.test:https"`, `"a.test:443:80"`,
		`"1.2.3"`, `"127.1:80"`, `"0x7f000001"`, `"2130706433"`, `"010.0.0.1"`, `"256.1.1.1"`, `"1.2.3.4.5"`, `"a.123"`, `"0x"`, `"１２７.0.0.1"`, `"٠.test"`,
		`"203.0.113.7/24"`, `"203.0.113.7/24:443"`, `"2001:db8::1/32"`, `"[2001:db8::1/32]:443"`, `"203.0.113.0/33"`, `"203.0.113.0/"`, `"203.0.113.0/024"`, `"203.0.113.0/255.255.255.0"`, `"203.0.113.0/-1"`, `"10/8"`, `"10.1/16"`, `"010.0.0.0/8"`, `"2001:db8::/129"`, `"2001:db8::/32:443"`, `"[2001:db8::]/32"`, `"[203.0.113.0/24]:443"`, `"::ffff:203.0.113.0/90"`, `"gggg::/16"`,
		`"fe80::1%eth0"`, `"[fe80::1%eth0]:443"`, `"fe80::%eth0/64"`, `"[2001:db8::1"`, `"[2001:db8::1]443"`, `"[203.0.113.1]:443"`, `"[a.test]:443"`, `"2001:db8:1:2:3:4:5:6:443"`, `"2001:db8::g"`, `"2001:::1"`,
		`"pypi.org：443"`, `"a\u2024b\u200b.test"`, `"xn--\u00fc.test"`,
		`{}`, `{"port": 443}`, `{"host": null}`, `{"host": 1}`, `{"host": "a b"}`, `{"hostname": "a.test"}`, `{"host": "a.test", "host": "b.test"}`, `{"host": "a.test", "ports": [1]}`, `{"host": "a.test", "proto": "tcp"}`, `{"host": "a.test", "note": "x"}`,
		`{"host": "a.test", "port": "443"}`, `{"host": "a.test", "port": "https"}`, `{"host": "a.test", "port": null}`, `{"host": "a.test", "port": 443.0}`, `{"host": "a.test", "port": 4.43e2}`, `{"host": "a.test", "port": 0}`, `{"host": "a.test", "port": -1}`, `{"host": "a.test", "port": 65536}`, `{"host": "a.test", "port": 443.5}`,
		`{"host": "a.test:443", "port": 80}`, `{"host": "a.test:443", "port": 443}`,
		`{"host": "a.test", "protocol": null}`, `{"host": "a.test", "protocol": "TCP"}`, `{"host": "a.test", "protocol": "https"}`, `{"host": "a.test", "protocol": "quic"}`, `{"host": "a.test", "protocol": "icmp"}`, `{"host": "a.test", "protocol": "sctp"}`,
		`{"host": "a.test", "protocol": "udp"}`, `{"host": "a.test", "protocol": "any"}`, `{"host": "a.test", "private": "yes"}`, `{"host": "a.test", "private": null}`, `{"host": "10.0.0.1", "private": true}`, `{"host": "10.0.0.0/8", "private": false}`,
		`"*.com"`, `"*.github.io"`, `"*.amazonaws.com"`, `{"host": "q.test", "port": 443, "protocol": "udp"}`, `{"host": "q.test", "port": 443, "protocol": "any"}`,
	} {
		documents = append(documents, target(t))
	}
	return documents
}

func TestMessages(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Every error and warning of a policy, under the document that earns it.\n# Refreshed by `go test ./policy -run TestMessages -update`; read it when you do.\n")
	for _, document := range messageDocuments() {
		_, warnings, err := Parse([]byte(document))
		if err == nil && len(warnings) == 0 {
			t.Errorf("%s earns no message", document)
		}
		fmt.Fprintf(&b, "\n%s\n", visible(document))
		if problems, ok := err.(Errors); ok {
			for _, p := range problems {
				fmt.Fprintf(&b, "  error    %s\n", p)
			}
		}
		if err == nil {
			for _, w := range warnings {
				fmt.Fprintf(&b, "  warning  %s\n", w)
			}
		}
	}
	golden(t, "testdata/messages.golden", b.String())
}

// visible shows what a terminal would not.
func visible(document string) string {
	if strings.TrimSpace(document) == "" || strings.Contains(document, "\n") || !utf8.ValidString(document) || strings.HasPrefix(document, "\xef\xbb\xbf") {
		return fmt.Sprintf("(in Go's quotes) %q", document)
	}
	return document
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if i >= len(gotLines) || i >= len(wantLines) || gotLines[i] != wantLines[i] {
			t.Fatalf("%s differs at line %d (refresh with -update and read the change)\n got %q\nwant %q", file, i+1, lineAt(gotLines, i), lineAt(wantLines, i))
		}
	}
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

func TestADocumentOver16MiBIsAnError(t *testing.T) {
	big := `"public"` + strings.Repeat(" ", maxDocument)
	_, _, err := Parse([]byte(big))
	problems, ok := err.(Errors)
	if !ok {
		t.Fatal(err)
	}
	wantProblems(t, map[string][]string{"": {"16 MiB"}}, problems)
	if _, _, err := Parse([]byte(big[:maxDocument])); err != nil {
		t.Errorf("exactly 16 MiB: %v", err)
	}
}

func TestDeepNestingIsAnError(t *testing.T) {
	for _, document := range []string{
		strings.Repeat("[", 1<<20), strings.Repeat("[", 5000) + strings.Repeat("]", 5000), strings.Repeat(`{"a":`, 1<<20),
	} {
		if _, _, err := Parse([]byte(document)); err == nil {
			t.Error("legal")
		}
		if _, _, err := ReadPlan(PlanInput{File: &PhasesSource{Name: "x.toml", Data: []byte("a = " + document)}}); err == nil && len(document) > 100000 {
			t.Error("legal as TOML")
		}
	}
}
