//go:build linux

package joined

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
)

// flow is a connection of the sandbox that keeps talking.
type flow struct {
	conn net.Conn
	sent atomic.Int64
	dead atomic.Pointer[error]
	done chan struct{}
}

// talk opens a connection to an echo service and exchanges lines over it until it
// ends.
func (s *sidecar) talk(t testing.TB, address string) *flow {
	t.Helper()
	conn, err := s.Dial("tcp", address)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	f := &flow{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for {
			if err := exchange(conn); err != nil {
				f.dead.Store(&err)
				return
			}
			f.sent.Add(1)
		}
	}()
	t.Cleanup(func() { conn.Close(); <-f.done })
	return f
}

// lives says that a flow moves on.
func (f *flow) lives(t testing.TB, what string) {
	t.Helper()
	before := f.sent.Load()
	for deadline := time.Now().Add(2 * time.Second); f.sent.Load() == before; time.Sleep(time.Millisecond) {
		if err := f.dead.Load(); err != nil {
			t.Errorf("%s died: %v", what, *err)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s stands still", what)
			return
		}
	}
}

// died says that a flow has ended, at once.
func (f *flow) died(t testing.TB, what string) {
	t.Helper()
	select {
	case <-f.done:
	case <-time.After(500 * time.Millisecond):
		t.Errorf("%s lives on", what)
	}
}

func TestASwapCutsWhatItForbidsAndTouchesNothingElse(t *testing.T) {
	s := start(t, "--allow", "203.0.113.7:7", "--allow", "203.0.113.8:7", "--allow", "[2001:db8::8]:7")
	stays, goes, goes6 := s.talk(t, "203.0.113.7:7"), s.talk(t, "203.0.113.8:7"), s.talk(t, "[2001:db8::8]:7")
	for _, f := range []*flow{stays, goes, goes6} {
		f.lives(t, "a flow before the swap")
	}
	result := s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["203.0.113.7:7"]}`)
	if result.Generation != 2 || result.Revoked != 2 {
		t.Errorf("result %+v, want generation 2 and 2 flows revoked", result)
	}
	goes.died(t, "the forbidden flow")
	goes6.died(t, "the forbidden IPv6 flow")
	stays.lives(t, "the allowed flow")
	s.refused(t, "tcp", "203.0.113.8:7")
	s.swap(t, `"no-network"`)
	stays.died(t, "the flow under no-network")
}

func TestSwapsUnderLoadLeakNothingAndRefuseNothingAllowed(t *testing.T) {
	const closed, open = "203.0.113.66:7", "203.0.113.7:7"
	forbidden := serveUDP(t, closed)
	s := start(t, "--allow", open)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var tried, reached, allowed, failed atomic.Int64
	firstFailure := make(chan error, 1)
	work.Go(func() {
		conn, err := s.Dial("udp", closed)
		if err != nil {
			return
		}
		defer conn.Close()
		for ctx.Err() == nil {
			tried.Add(1)
			if _, err := io.WriteString(conn, "leak"); err == nil {
				reached.Add(1)
			}
		}
	})
	for range 2 {
		work.Go(func() {
			for ctx.Err() == nil {
				conn, err := s.Dial("tcp", open)
				if err == nil {
					err = exchange(conn)
					conn.Close()
				}
				allowed.Add(1)
				if err != nil {
					failed.Add(1)
					select {
					case firstFailure <- err:
					default:
					}
				}
			}
		})
	}
	lasting := s.talk(t, open)
	for i := range 60 {
		document := fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s","198.51.100.0/%d","pypi.test"]}`, open, 24+i%8)
		if i%3 == 2 { // the whole way, not a patch
			document = fmt.Sprintf(`{"network_mode":"allowlist","allowed_hosts":["%s"],"denied_hosts":["evil%d.test"]}`, open, i)
		}
		s.swap(t, document)
	}
	cancel()
	work.Wait()
	lasting.lives(t, "the flow that was always allowed")
	t.Logf("%d forbidden datagrams tried, %d allowed connections", tried.Load(), allowed.Load())
	if n := forbidden.count(); n > 0 || reached.Load() > 0 {
		t.Errorf("%d forbidden datagrams arrived, %d were not refused", n, reached.Load())
	}
	if failed.Load() > 0 {
		t.Errorf("%d of %d allowed connections failed: %v", failed.Load(), allowed.Load(), <-firstFailure)
	}
}

func TestALeaseEndsInNoNetwork(t *testing.T) {
	s := start(t, "--mode", "public")
	f := s.talk(t, "203.0.113.7:7")
	if _, err := s.Swap(t.Context(), request(t, `"public"`, 400*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	f.lives(t, "a flow under the lease")
	lab.Eventually(t, "the end of the lease", func() bool {
		state, err := s.Policy(t.Context())
		return err == nil && state.Policy.Mode == "no-network"
	})
	f.died(t, "a flow after the lease")
	s.refused(t, "tcp", "203.0.113.7:7")
}

func request(t *testing.T, document string, lease time.Duration) api.SwapRequest {
	t.Helper()
	var req api.SwapRequest
	d := mustParse(t, document)
	req.Policy = &d
	req.For = api.Duration(lease)
	return req
}

func TestAProxiedDownloadLivesThroughASwapThatAllowsIt(t *testing.T) {
	s := start(t, "--allow", "pypi.test", "--allow", "files.test")
	stays := s.download(t, "pypi.test")
	goes := s.download(t, "files.test")
	lab.Eventually(t, "both downloads", func() bool { return stays.n.Load() > 1 && goes.n.Load() > 1 })
	s.swap(t, `{"network_mode":"allowlist","allowed_hosts":["pypi.test"]}`)
	lab.Eventually(t, "the end of the forbidden download", func() bool { return goes.over.Load() })
	before := stays.n.Load()
	lab.Eventually(t, "the allowed download", func() bool { return stays.n.Load() > before+1 })
	if stays.over.Load() {
		t.Error("the allowed download ended")
	}
	if !strings.Contains(s.Stdout.String(), `"reason":"revoked"`) {
		lab.Eventually(t, "the event of the revoked flow", func() bool { return strings.Contains(s.Stdout.String(), `"revoked"`) })
	}
}

// download is a transfer over TLS that does not end by itself.
type download struct {
	n    atomic.Int64
	over atomic.Bool
}

// download begins one from a name, whose address our resolver is asked for.
func (s *sidecar) download(t *testing.T, name string) *download {
	t.Helper()
	answer := s.resolve(t, name, dns.TypeA, "198.51.100.1:53")
	if len(answer.Answer) == 0 {
		t.Fatalf("%s does not resolve", name)
	}
	conn, err := s.Dial("tcp", net.JoinHostPort(answer.Answer[0].(*dns.A).A.String(), "443"))
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(conn, &tls.Config{ServerName: name, RootCAs: world.Roots()})
	if _, err := io.WriteString(secure, "GET /endless?every=5ms HTTP/1.1\r\nHost: "+name+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	d, done := &download{}, make(chan struct{})
	go func() {
		defer close(done)
		defer d.over.Store(true)
		buf := make([]byte, 64<<10)
		for {
			if _, err := secure.Read(buf); err != nil {
				return
			}
			d.n.Add(1)
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return d
}
