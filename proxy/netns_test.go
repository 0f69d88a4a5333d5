//go:build linux

package proxy

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
	"github.com/exeat/exeat/policy"
)

// inNamespace is set in the copy of the test binary that has a network namespace
// of its own.
const inNamespace = "EXEAT_PROXY_TEST_NAMESPACE"

// TestRedirectedByTheKernel runs this binary again in a user and network
// namespace of its own, where nft redirects the documentation ranges to a proxy.
func TestRedirectedByTheKernel(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		return // inside, where TestInsideTheNamespace is what runs
	}
	require.UserNamespaces(t)
	for _, program := range []string{"nft", "ip", "curl"} {
		require.Tool(t, program)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInsideTheNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func sh(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func TestInsideTheNamespace(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		return // outside: TestRedirectedByTheKernel runs it inside
	}
	sh(t, `ip link set lo up
ip addr add 198.18.0.1/32 dev lo
ip -6 addr add fd00:1::1/128 dev lo nodad
ip route add default dev lo src 198.18.0.1
ip -6 route add default dev lo src fd00:1::1`)
	cert := newCertificates(t, "allowed.test")
	r := newRig(t, onlyAllowed, func(c *Config) { c.OriginalDst = nil })
	r.host("allowed.test", true, "203.0.113.10", "2001:db8::10")
	r.origin("203.0.113.10:443", tlsEcho(cert, "four\n"))
	r.origin("[2001:db8::10]:443", tlsEcho(cert, "six\n"))
	r.origin("203.0.113.10:22", greeter)
	r.web("203.0.113.10:80", whoAmI)
	for _, listen := range []string{"198.18.0.1:0", "[fd00:1::1]:0"} {
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(listen)))
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort(ln.Addr().String())
		family, far := "ip", "203.0.113.0/24"
		if at.Addr().Is6() {
			family, far = "ip6", "2001:db8::/32"
		}
		sh(t, fmt.Sprintf(`nft -f - <<'EOF'
table %[1]s test {
	chain output {
		type nat hook output priority -100; policy accept;
		%[1]s daddr %[2]s meta l4proto tcp dnat to %[3]s
	}
}
EOF`, family, far, at))
		r.serve(func() error { return r.proxy.ServeTransparent(r.ctx, ln) })
		t.Run("a client of the listener itself, "+listen, func(t *testing.T) { wantReset(t, at.String()) })
	}
	proxy := r.explicit()

	t.Run("TLS over both families", func(t *testing.T) {
		for dst, want := range map[string]string{"203.0.113.10:443": "four\n", "[2001:db8::10]:443": "six\n"} {
			conn := tls.Client(dialTCP(t, dst), &tls.Config{ServerName: "allowed.test", RootCAs: cert.pool})
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != want {
				t.Errorf("%s: read %q, %v", dst, line, err)
			}
		}
	})
	t.Run("server first", func(t *testing.T) {
		if line, err := bufio.NewReader(dialTCP(t, "203.0.113.10:22")).ReadString('\n'); err != nil || line != "220 hello\r\n" {
			t.Errorf("read %q, %v", line, err)
		}
	})
	t.Run("an address nobody was told of", func(t *testing.T) {
		c := dialTCP(t, "203.0.113.50:22")
		if _, err := io.WriteString(c, "\x00\x01"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("read: %v, want a reset", err)
		}
	})
	t.Run("curl", func(t *testing.T) { testCurl(t, proxy.String()) })
	var special int
	for _, d := range r.log.decisions() {
		if d.Reason == policy.ReasonSpecialAddress {
			special++
		}
	}
	if special != 2 {
		t.Errorf("%d connections to the listeners themselves were refused, want 2", special)
	}
}

// testCurl drives curl over the redirect and over the explicit proxy.
func testCurl(t *testing.T, proxy string) {
	cases := []struct {
		name string
		args []string
		want string
	}{
		{"plain", []string{"http://allowed.test/a"}, "GET allowed.test /a 200/000"},
		{"two requests on one connection", []string{"http://allowed.test/a", "http://allowed.test/b"}, "GET allowed.test /a 200/000GET allowed.test /b 200/000"},
		{"an unlisted host", []string{"-H", "Host: evil.test", "http://allowed.test/"}, "403/000"},
		{"by proxy", []string{"-x", proxy, "http://allowed.test/a"}, "GET allowed.test /a 200/000"},
		{"by tunnel", []string{"-p", "-x", proxy, "http://allowed.test/a"}, "GET allowed.test /a 200/200"},
		{"a refused tunnel", []string{"-p", "-x", proxy, "http://evil.test/a"}, "000/403"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			args := append([]string{
				"-sS", "--max-time", "5", "--noproxy", "", "--resolve", "allowed.test:80:203.0.113.10",
				"-w", " %{http_code}/%{http_connect}",
			}, tc.args...)
			out, err := exec.Command("curl", args...).CombinedOutput()
			if !strings.HasSuffix(strings.TrimSpace(string(out)), tc.want) {
				t.Errorf("curl %q: %v %q, want %q", tc.args, err, out, tc.want)
			}
		})
	}
}
