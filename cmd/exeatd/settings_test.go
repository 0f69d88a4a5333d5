//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/exeat/exeat/policy"
	"github.com/exeat/exeat/sidecar"
)

// readSettings reads settings as exeatd does.
func readSettings(t *testing.T, args, environ []string, file string) (sidecar.JoinedConfig, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "exeatd.toml")
		if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	s, flags := &settings{}, pflag.NewFlagSet("exeatd", pflag.ContinueOnError)
	s.register(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	return s.read(&program{environ: environ, out: null, err: null}, flags)
}

func TestAFlagWinsOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	const file = `name = "file"
on-breach = "report"
allow = ["file.test", "other.test"]
sandbox-net-raw = "no"
strict-destinations = true
schedule = "7s"
control-uid = 1000
`
	c, err := readSettings(t, []string{"--name", "flag"}, []string{"EXEAT_NAME=env", "EXEAT_ON_BREACH=deny", "EXEAT_ALLOW=env.test:443\n10.0.0.0/8  b.test", "OTHER=1"}, file)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "flag" || c.OnBreach != sidecar.BreachDeny || c.NetRaw || !c.StrictDestinations || c.Schedule.Seconds() != 7 {
		t.Errorf("got %+v", c)
	}
	if c.ControlUID == nil || *c.ControlUID != 1000 {
		t.Errorf("control uid %v", c.ControlUID)
	}
	if got := len(c.Policy.Allowed); got != 3 || c.Policy.Allowed[0].String() != "env.test:443" {
		t.Errorf("allowed %v", c.Policy.Allowed)
	}
}

func TestWithoutAPolicyNothingIsAllowed(t *testing.T) {
	c, err := readSettings(t, nil, nil, "")
	if err != nil || c.Policy.Mode != policy.ModeNoNetwork || c.Control != defaultControl || !c.NetRaw || c.OnBreach != sidecar.BreachDeny {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestEveryMistakeIsNamedWithItsRemedy(t *testing.T) {
	for name, test := range map[string]struct {
		args, environ []string
		file          string
		want          []string
	}{
		"an unknown key of the file":       {file: "allwo = [\"a.test\"]", want: []string{"allwo is no setting"}},
		"a string where a list belongs":    {file: "allow = \"a.test\"", want: []string{"allow: want an array of strings"}},
		"a number in a list":               {file: "allow = [1]", want: []string{"want strings in the array"}},
		"a table":                          {file: "[allow]\nx=1", want: []string{"want an array"}},
		"not TOML":                         {file: "allow", want: []string{"--config"}},
		"a bad duration in the variables":  {environ: []string{"EXEAT_DRAIN=soon"}, want: []string{"EXEAT_DRAIN", `"soon"`}},
		"two ways to say the policy":       {args: []string{"--policy", "x", "--allow", "a.test"}, want: []string{"--policy: excludes --allow"}},
		"a phase of nothing":               {args: []string{"--phase", "run"}, want: []string{"--phases FILE"}},
		"a target that is none":            {args: []string{"--allow", "a_b..test"}, want: []string{"allowed_hosts"}},
		"a floor that is none":             {args: []string{"--floor", "1.2.3"}, want: []string{"--floor", `"1.2.3"`}},
		"a resolver that is none":          {args: []string{"--resolver", "dns.test"}, want: []string{"--resolver", "dns.test"}},
		"a port that is none":              {args: []string{"--inbound", "80/sctp"}, want: []string{"--inbound", "PORT/tcp"}},
		"port 0":                           {args: []string{"--inbound", "0"}, want: []string{"--inbound"}},
		"a reaction that is none":          {args: []string{"--on-breach", "panic"}, want: []string{"deny or report"}},
		"neither yes nor no":               {args: []string{"--sandbox-net-raw", "maybe"}, want: []string{"yes or no"}},
		"a user by name":                   {args: []string{"--control-uid", "me"}, want: []string{"--control-uid", "want a number"}},
		"a proxy with another scheme":      {args: []string{"--upstream-proxy", "socks5://u:secret@h:1"}, want: []string{"want http://"}},
		"a pin without an address":         {args: []string{"--add-host", "db"}, want: []string{"NAME=ADDR"}},
		"a file that nothing would keep":   {args: []string{"--resolver-from-file"}, want: []string{"--state DIR"}},
		"a policy that is not there":       {args: []string{"--policy", "/nonexistent/p.json"}, want: []string{"--policy", "no such file"}},
		"a time that is over":              {args: []string{"--drain", "0s"}, want: []string{"--drain"}},
		"a name that makes no file's name": {args: []string{"--name", "a/b"}, want: []string{"--name"}},
		"several at once":                  {args: []string{"--on-breach", "x", "--name", "/", "--floor", "?"}, want: []string{"--on-breach", "--name", "--floor"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSettings(t, test.args, test.environ, test.file)
			if err == nil {
				t.Fatal("no error")
			}
			if _, ok := err.(*usageError); !ok {
				t.Errorf("a %T, want a usage error: %v", err, err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q repeats a password", err)
			}
		})
	}
}

func TestInboundPorts(t *testing.T) {
	for text, want := range map[string][]policy.Opening{
		"8080":     {{Port: 8080}},
		"8080/tcp": {{Port: 8080}},
		"53/udp":   {{Port: 53, Protocol: policy.UDP}},
		"all":      {{}, {Protocol: policy.UDP}},
	} {
		got, err := parseInbound(text)
		if err != nil || len(got) != len(want) || got[0] != want[0] {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestStatusesOfTheCommand(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want int
		says string
	}{
		"help":            {[]string{"--help"}, statusDone, ""},
		"version":         {[]string{"version"}, statusDone, ""},
		"an unknown flag": {[]string{"--polcy", "x"}, statusUsage, "unknown flag"},
		"an argument":     {[]string{"serve"}, statusUsage, "unexpected argument"},
		"nobody to ask":   {[]string{"healthcheck", "--control", "/nonexistent.sock"}, statusFailed, "can't be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			if got := run(t.Context(), test.args, nil, out, out); got != test.want {
				t.Errorf("status %d, want %d", got, test.want)
			}
			said, err := os.ReadFile(out.Name())
			if err != nil || !strings.Contains(string(said), test.says) {
				t.Errorf("said %q, %v; want %q", said, err, test.says)
			}
		})
	}
}
