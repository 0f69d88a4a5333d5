//go:build linux

package containers

import (
	"strings"
	"testing"
)

// tinyproxyConf logs each CONNECT with what was asked for.
const tinyproxyConf = `User root
Group root
Port 8888
Timeout 60
LogLevel Connect
LogFile "/tmp/tinyproxy.log"
PidFile "/tmp/tinyproxy.pid"
MaxClients 20
ConnectPort 443
`

// TestAnUpstreamProxy: everything is reached through a real proxy, in a container of
// its own, whose log says who was asked for: what is allowed, and nothing else.
func TestAnUpstreamProxy(t *testing.T) {
	each(t, func(t *testing.T, e *engine) {
		network := e.userDefined(t)
		proxy := e.alone(t, "--network", network)
		e.inWith(tinyproxyConf, proxy, "sh", "-c", "cat >/tmp/tinyproxy.conf").want(t, 0)
		e.do(t, "exec", "--detach", proxy, "tinyproxy", "-d", "-c", "/tmp/tinyproxy.conf")
		address := e.do(t, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", proxy)
		asked := func() []string {
			var asked []string
			for line := range strings.Lines(e.in(proxy, "cat", "/tmp/tinyproxy.log").stdout) {
				if _, request, found := strings.Cut(line, "Request (file descriptor "); found && strings.Contains(request, "CONNECT ") {
					asked = append(asked, strings.Fields(request[strings.Index(request, "CONNECT "):])[1])
				}
			}
			return asked
		}
		eventually(t, func() bool { return e.in(proxy, "curl", "-sS", "http://"+address+":8888/").status == 0 })

		name, box := e.up(t, "--network", network, "--allow", "pypi.test", "--allow", "git.test", "--upstream-proxy", "http://"+address+":8888")
		e.in(box, "curl", "-sS", "-m", "20", "https://pypi.test/").want(t, 0, "hello from pypi.test")
		e.in(box, "git", "clone", "-q", "https://git.test/git/project.git", "/tmp/project").want(t, 0)
		for _, url := range []string{"https://evil.test/", "https://203.0.113.66/"} {
			r := e.in(box, "curl", "-sS", "-k", "-m", "20", url)
			if r.status == 0 || r.status == curlTimeout {
				t.Errorf("%s: status %d, want a refusal at once", url, r.status)
			}
		}
		// The proxy is exeat's to use, not the sandbox's.
		r := e.in(box, "curl", "-sS", "-k", "-m", "20", "--proxy", "http://"+address+":8888", "https://evil.test/")
		if r.status == 0 || r.status == curlTimeout {
			t.Errorf("the proxy itself: status %d, want a refusal at once", r.status)
		}
		got := strings.Join(asked(), " ")
		for _, want := range []string{"203.0.113.10:443", "203.0.113.14:443"} {
			if !strings.Contains(got, want) {
				t.Errorf("the proxy was asked for %s, want %s among it", got, want)
			}
		}
		for _, denied := range []string{"203.0.113.66", "evil"} {
			if strings.Contains(got, denied) {
				t.Errorf("the proxy was asked for %s", got)
			}
		}
		t.Run("that is gone", func(t *testing.T) {
			e.do(t, "kill", "--signal", "KILL", proxy)
			if e.reaches(box, "https://pypi.test/") {
				t.Error("without its proxy, pypi.test is reached straight")
			}
			e.exeat(t, "status", name).want(t, 0)
		})
	})
}
