package inside

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func run(t *testing.T, words ...string) (status int, stderr string) {
	t.Helper()
	program, ok := Find(words[0])
	if !ok {
		t.Fatalf("no program %s", words[0])
	}
	var out bytes.Buffer
	call := Call{Args: words[1:], Env: func(string) string { return "" }, In: strings.NewReader(""), Out: &out, Err: &out}
	return program(t.Context(), call), out.String()
}

func TestHealthChecks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]int{
		"test -f " + file:                           0,
		"test -f /no/such":                          1,
		"[ -f " + file + " ]":                       0,
		"[ ! -e " + file + " ]":                     1,
		"[ -f '" + file + "' ] || exit 1":           0,
		"[ -f /no/such ] || exit 3":                 3,
		"test -s " + file + " && test -e /":         0,
		"test -d " + file + "; true":                0,
		"test -f " + file + " > /dev/null 2>&1":     0,
		"false || false":                            1,
		"false && exit 9; exit":                     1,
		"test a = a && test a != b && [ -n \"x\" ]": 0,
		"test -q x":                                 2,
		"[ -f x":                                    2,
		"cat $(ls)":                                 2,
		"true | true":                               2,
		"echo $HOME":                                2,
		"&& true":                                   2,
		"true &&":                                   2,
		"":                                          2,
		"'open":                                     2,
		"/no/such/program":                          127,
	} {
		if got, stderr := run(t, "sh", "-c", line); got != want {
			t.Errorf("sh -c %q: status %d, want %d\n%s", line, got, want, stderr)
		}
	}
	if got, _ := run(t, "sh"); got != 2 {
		t.Errorf("sh: status %d, want 2", got)
	}
}

func FuzzShell(f *testing.F) {
	f.Add("test -f /tmp/x || exit 1")
	f.Add(`[ "a" = 'b' ] && true; :`)
	f.Fuzz(func(t *testing.T, line string) {
		steps, err := parseShell(line)
		if err != nil {
			return
		}
		for _, s := range steps {
			if len(s.words) == 0 {
				t.Errorf("%q has a command of no words", line)
			}
		}
	})
}

func TestNetworkPolicy(t *testing.T) {
	for line, want := range map[string]string{
		"allow-all":        `"public"`,
		"deny-all":         `"no-network"`,
		"allow":            `{"network_mode":"allowlist","allowed_hosts":[]}`,
		"allow a.test *.b": `{"network_mode":"allowlist","allowed_hosts":["a.test","*.b"]}`,
		"deny-all a.test":  "",
		"open":             "",
		"":                 "",
	} {
		got, err := policyOf(strings.Fields(line))
		if string(got) != want || (err != nil) != (want == "") {
			t.Errorf("%q: %s, error %v; want %s", line, got, err, want)
		}
	}
}

func TestTheFirstPolicyOfHarbor(t *testing.T) {
	for mode, want := range map[string]string{
		"": "--mode public", "public": "--mode public", "no-network": "--mode no-network",
		"allowlist": "--mode allowlist --allow=a.test --allow=b.test", "denylist": "", "Public": "",
	} {
		args, err := harborArgs(mode, "  a.test\tb.test ")
		if (err != nil) != (want == "") || err == nil && !strings.HasSuffix(strings.Join(args, " "), want) {
			t.Errorf("%q: %v, error %v; want %s", mode, args, err, want)
		}
	}
}
