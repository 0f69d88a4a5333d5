//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

const gib = 1 << 30

// python is an interpreter that every user may run (a pyenv shim is root's own).
func python(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return require.Tool(t, "python3")
}

// TestOrdinaryClientsWorkUnderAnAllowlist: none of them is told of exeat.
func TestOrdinaryClientsWorkUnderAnAllowlist(t *testing.T) {
	allow := []string{"--allow", "pypi.test", "--allow", "six.test", "--allow", "many.test", "--allow", "ssh.test:22"}
	for _, test := range []struct {
		name  string
		tool  string
		args  []string
		want  []string
		event string
	}{
		{"curl, HTTP/1.1 over TLS", "curl", []string{"-sS", "--http1.1", "-w", "%{http_version}", "https://pypi.test/"}, []string{"hello from pypi.test", "1.1"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"curl, HTTP/2", "curl", []string{"-sS", "--http2", "-w", "%{http_version}", "https://pypi.test/"}, []string{"hello from pypi.test", "2"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"curl, HTTP/2 in clear with prior knowledge", "curl", []string{"-sS", "--http2-prior-knowledge", "-w", "%{http_version}", "http://pypi.test/"}, []string{"hello from pypi.test", "2"}, "allow rule http pypi.test:80 (pypi.test)"},
		{"curl, HTTP/1.1 in clear", "curl", []string{"-sS", "http://pypi.test/"}, []string{"hello from pypi.test"}, "allow rule http pypi.test:80 (pypi.test)"},
		{"curl, TLS on another port", "curl", []string{"-sS", "https://pypi.test:8443/"}, []string{"hello from pypi.test"}, "allow rule tls pypi.test:8443 (pypi.test)"},
		{"curl, IPv6 alone", "curl", []string{"-sS", "https://six.test/"}, []string{"hello from six.test"}, "allow rule tls six.test:443 (six.test)"},
		{"curl, a name of forty addresses", "curl", []string{"-sS", "http://many.test/"}, []string{"hello from many.test"}, "allow rule http many.test:80 (many.test)"},
		{"curl, HEAD and an upload", "curl", []string{"-sS", "-I", "http://pypi.test/", "--next", "-sS", "-d", "body", "http://pypi.test/upload"}, []string{"200 OK", "230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5 4"}, "allow rule http pypi.test:80 (pypi.test)"},
		{"openssl s_client", "openssl", []string{"s_client", "-connect", "pypi.test:443", "-servername", "pypi.test", "-verify_return_error", "-CAfile", "@CA", "-brief"}, []string{"Verification: OK"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"openssl s_client, TLS 1.2", "openssl", []string{"s_client", "-tls1_2", "-connect", "pypi.test:443", "-servername", "pypi.test", "-CAfile", "@CA", "-brief"}, []string{"Protocol version: TLSv1.2"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"python, urllib", "python3", []string{"-c", "import urllib.request as r; print(r.urlopen('https://pypi.test/').read())"}, []string{"hello from pypi.test"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"go, net/http", "agent", []string{"get", "https://pypi.test/", "http://pypi.test/"}, []string{"HTTP/2.0 200 hello from pypi.test", "HTTP/1.1 200 hello"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"WebSocket over TLS", "agent", []string{"ws", "https://pypi.test/ws"}, []string{"echoed"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"WebSocket in clear", "agent", []string{"ws", "http://pypi.test/ws"}, []string{"echoed"}, "allow rule http pypi.test:80 (pypi.test)"},
		{"gRPC stream over TLS", "agent", []string{"chat", "tls", "pypi.test:443"}, []string{"5 messages echoed"}, "allow rule tls pypi.test:443 (pypi.test)"},
		{"gRPC stream in clear", "agent", []string{"chat", "plain", "pypi.test:8080"}, []string{"5 messages echoed"}, "allow rule http pypi.test:8080 (pypi.test)"},
		{"a server that speaks first", "agent", []string{"tcp", "ssh.test:22"}, []string{"SSH-2.0-little_internet"}, "allow rule opaque ssh.test:22 (ssh.test:22)"},
		{"a protocol of its own, half closed", "sh", []string{"-c", "printf ping | AGENT raw pypi.test:7 half"}, []string{`"ping"`}, "allow rule opaque pypi.test:7 (pypi.test)"},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.name, func(t *testing.T) {
				tool, args := test.tool, append([]string(nil), test.args...)
				switch tool {
				case "agent":
					tool = agent
				case "python3":
					tool = python(t)
				default:
					require.Tool(t, tool)
				}
				for i := range args {
					args[i] = strings.NewReplacer("AGENT", agent, "@CA", world.CAFile()).Replace(args[i])
				}
				s, log := guarded(allow...).as(u).logged(t)
				s.run(t, append([]string{tool}, args...)...).want(t, 0, test.want...)
				if strings.HasPrefix(test.name, "gRPC") { // that client asks for its service's configuration, too
					log.wantOnly(t, test.event, "deny unlisted dns _grpc_config.pypi.test")
					return
				}
				log.wantOnly(t, test.event)
			})
		})
	}
}

func TestSSHSpeaksToAnAllowedHost(t *testing.T) {
	require.Tool(t, "ssh")
	each(t, func(t *testing.T, u user) {
		s, log := guarded("--allow", "ssh.test:22").as(u).logged(t)
		// The little server only echoes what the client says after the banners: the
		// client gets as far as reading that as a key exchange.
		r := s.run(t, "ssh", "-v", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "git@ssh.test")
		if !strings.Contains(r.stderr, "little_internet") {
			t.Errorf("ssh did not hear the banner: %s", r.stderr)
		}
		log.wantOnly(t, "allow rule opaque ssh.test:22 (ssh.test:22)")
	})
}

func TestGitClonesOverHTTPS(t *testing.T) {
	git := require.Tool(t, "git")
	lab.NeedWorld(t)
	work := t.TempDir()
	for _, line := range [][]string{
		{"init", "-q", "-b", "main", work},
		{"-C", work, "-c", "user.name=a", "-c", "user.email=a@a.test", "commit", "-q", "--allow-empty", "-m", "the first"},
		{"clone", "-q", "--bare", work, filepath.Join(scratch, "git", "project.git")},
	} {
		if out, err := exec.Command(git, line...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", line, err, out)
		}
	}
	each(t, func(t *testing.T, u user) {
		s, log := guarded("--allow", "git.test:443").as(u).logged(t)
		s.dir = directoryOf(t, u)
		s.sh(t, "git clone -q https://git.test/git/project.git && git -C project log --format=%s").want(t, 0, "the first")
		log.wantOnly(t, "allow rule tls git.test:443 (git.test:443)")
		// One that is not allowed fails at once and says why it does not resolve.
		r := s.sh(t, "git clone -q https://evil.test/git/other.git")
		r.want(t, 128, "evil.test")
		if r.took > 20*time.Second {
			t.Errorf("the denial took %s", r.took)
		}
	})
}

// TestEachStreamOfACleartextConnectionIsJudged: a denied :authority beside an
// allowed one on the same HTTP/2 connection.
func TestEachStreamOfACleartextConnectionIsJudged(t *testing.T) {
	s, log := guarded("--allow", "pypi.test", "--allow", "api.test").logged(t)
	r := s.run(t, agent, "streams", "pypi.test:80", "pypi.test", "evil.test", "api.test", "pypi.test")
	r.want(t, 0, "pypi.test 200 hello from pypi.test", "evil.test 403", "exeat: evil.test:80 denied: unlisted (decision ", "api.test 200 hello from api.test")
	log.wantOnly(t, "allow rule http pypi.test:80 (pypi.test)", "deny unlisted http evil.test:80", "allow rule http api.test:80 (api.test)")
	for _, v := range world.Seen() {
		if v.Host == "evil.test" {
			t.Errorf("visit %+v reached an origin", v)
		}
	}
}

// TestWhatComesInPiecesArrivesInPieces: five events 100 ms apart, over TLS and in
// clear.
func TestWhatComesInPiecesArrivesInPieces(t *testing.T) {
	for _, url := range []string{"http://pypi.test/sse", "https://pypi.test/sse", "http://pypi.test/ndjson", "https://pypi.test/ndjson"} {
		t.Run(url, func(t *testing.T) {
			r := guarded("--allow", "pypi.test").run(t, agent, "drip", url)
			r.want(t, 0)
			lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
			if len(lines) != 5 {
				t.Fatalf("%d events: %q", len(lines), r.stdout)
			}
			apart := 0
			for _, line := range lines[1:] {
				gap, err := strconv.Atoi(strings.Fields(line)[0])
				if err != nil {
					t.Fatal(err)
				}
				if gap >= 30 {
					apart++
				}
			}
			// A machine that is busy delays one and so brings the next nearer.
			if apart < 3 {
				t.Errorf("want the events about 100 ms after one another: %q", r.stdout)
			}
		})
	}
}

// TestTheFirstByteMayTakeLongerThanAnyTimeout waits a real 70 s, over TLS and in
// clear, while the other tests run.
func TestTheFirstByteMayTakeLongerThanAnyTimeout(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://pypi.test/late?after=70s", "http://pypi.test/late?after=70s"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			s, log := guarded("--allow", "pypi.test").logged(t)
			r := s.run(t, "curl", "-sS", url)
			r.want(t, 0, "at last")
			if r.took < 70*time.Second {
				t.Errorf("it took %s, want a real 70 s", r.took)
			}
			channel, port := "tls", "443"
			if strings.HasPrefix(url, "http:") {
				channel, port = "http", "80"
			}
			log.wantOnly(t, "allow rule "+channel+" pypi.test:"+port+" (pypi.test)")
		})
	}
}

// TestAGibibyteComesAndGoesWhole, by checksum, and the log knows how much it was.
func TestAGibibyteComesAndGoesWhole(t *testing.T) {
	t.Parallel()
	sum := internet.PatternSum(gib)
	for _, test := range []struct{ name, line, want string }{
		{"down, over TLS", "curl -sS 'https://files.test/bytes?n=1073741824' | sha256sum", sum},
		{"down, in clear", "curl -sS 'http://files.test/bytes?n=1073741824' | sha256sum", sum},
		{"up, over TLS", "head -c 1073741824 /dev/zero | curl -sS -T - https://files.test/upload", "49bc20df15e412a64472421e13fe86ff1c5165e18b2afccf160d4dc19fe68a14 1073741824"},
		{"up, in clear", "head -c 1073741824 /dev/zero | curl -sS -T - http://files.test/upload", "49bc20df15e412a64472421e13fe86ff1c5165e18b2afccf160d4dc19fe68a14 1073741824"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, log := guarded("--allow", "files.test").logged(t)
			s.sh(t, test.line).want(t, 0, test.want)
			moved := uint64(0)
			for _, e := range log.events(t) {
				if e.Kind == audit.KindFlow && e.Verdict == policy.Allow {
					moved += e.BytesIn + e.BytesOut
				}
			}
			if moved < gib || moved > gib+gib/50 {
				t.Errorf("the log says %d bytes moved, want a gibibyte and a little", moved)
			}
		})
	}
}

// TestThreeThousandConnectionsLeakNoDescriptor, counted in the engine's /proc.
func TestThreeThousandConnectionsLeakNoDescriptor(t *testing.T) {
	t.Parallel()
	name, addr := fresh(t)
	l := guarded("--allow", name).start(t)
	l.sh(agent+" repeat 50 https://"+name+"/").want(t, 0, "map[200:50]")
	before := descriptors(t, l.cmd.Process.Pid)
	l.sh(agent+" repeat 1500 https://"+name+"/").want(t, 0, "map[200:1500]")
	l.sh(agent+" repeat 1500 http://"+name+"/").want(t, 0, "map[200:1500]")
	eventually(t, func() string {
		if after := descriptors(t, l.cmd.Process.Pid); after > before+8 {
			return strconv.Itoa(after) + " descriptors after 3,000 connections, " + strconv.Itoa(before) + " before"
		}
		return ""
	})
	l.end().want(t, 0)
	flows := sum(l.events(t), func(e audit.Event) bool { return e.Kind == audit.KindFlow })
	if accepted := arrivals(addr); flows != uint64(accepted) || accepted < 3050 {
		t.Errorf("the log accounts for %d flows, and %d connections arrived", flows, accepted)
	}
}

// arrivals counts the connections that reached an address of the world.
func arrivals(addr string) (n int) {
	for _, v := range world.Seen() {
		if v.Host == "" && strings.HasPrefix(v.To, addr+":") {
			n++
		}
	}
	return n
}

// descriptors counts those of a process that nobody but root may look into.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		require.Root(t)
		t.Fatal(err)
	}
	return len(entries)
}
