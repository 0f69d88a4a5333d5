//go:build linux

package joined

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/e2e/lab"
	"github.com/exeat/exeat/policy"
)

// dialTimeout bounds every connection; atOnce, ten times what is promised, is what
// a denial may take where others use the machine too.
const (
	dialTimeout = 20 * time.Second
	atOnce      = 500 * time.Millisecond
)

// noResolver among the flags keeps the world's resolver from them.
const noResolver = "no resolver"

// sidecar is an exeatd in a namespace of its own, and the sandbox beside it.
type sidecar struct{ *lab.Sidecar }

// start starts exeatd in a namespace of its own and waits until it is ready.
func start(t testing.TB, flags ...string) *sidecar {
	t.Helper()
	s := prepare(t, flags...)
	s.Begin(t)
	s.AwaitReady(t)
	return s
}

// prepare makes a sidecar that is not started yet.
func prepare(t testing.TB, flags ...string) *sidecar {
	t.Helper()
	resolver := []string{"--resolver", "203.0.113.53"}
	if slices.Contains(flags, noResolver) {
		resolver = nil
		flags = slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == noResolver })
	}
	return &sidecar{lab.Prepare(t, binary, append(resolver, flags...)...)}
}

// swap puts a policy in force.
func (s *sidecar) swap(t testing.TB, document string) api.SwapResult {
	t.Helper()
	d := mustParse(t, document)
	result, err := s.Swap(t.Context(), api.SwapRequest{Policy: &d})
	if err != nil {
		t.Fatalf("swap to %s: %v", document, err)
	}
	return result
}

func mustParse(t testing.TB, document string) policy.Document {
	t.Helper()
	var d policy.Document
	if err := d.UnmarshalJSON([]byte(document)); err != nil {
		t.Fatal(err)
	}
	return d
}

// refused says that an address is refused to the sandbox, at once.
func (s *sidecar) refused(t testing.TB, network, address string) {
	t.Helper()
	took, err := s.try(network, address)
	if !lab.Refused(err) {
		t.Errorf("%s %s: %v, want it refused", network, address, err)
	}
	if took > atOnce {
		t.Errorf("%s %s: refused after %s, want at once", network, address, took)
	}
}

// try sends to an address, and says how long that took.
func (s *sidecar) try(network, address string) (took time.Duration, err error) {
	err = s.In(func() error {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		conn, err := net.DialTimeout(network, address, dialTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		if strings.HasPrefix(network, "udp") {
			_, err = conn.Write([]byte("hello"))
		}
		return err
	})
	return took, err
}

// echoes says that an address is reached: what it is sent comes back.
func (s *sidecar) echoes(t testing.TB, address string) {
	t.Helper()
	conn, err := s.Dial("tcp", address)
	if err != nil {
		t.Errorf("%s: %v", address, err)
		return
	}
	defer conn.Close()
	if err := exchange(conn); err != nil {
		t.Errorf("%s: %v", address, err)
	}
}

// exchange sends a line to an echo service and wants it back.
func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "ping\n"); err != nil {
		return err
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != "ping\n" {
		return fmt.Errorf("echo of %q", got)
	}
	return nil
}

// resolve asks for a name as the sandbox does; server is whom it means to ask.
func (s *sidecar) resolve(t testing.TB, name string, qtype uint16, server string) *dns.Msg {
	t.Helper()
	conn, err := s.Dial("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	ctx, cancel := context.WithTimeout(t.Context(), dialTimeout)
	defer cancel()
	answer, _, err := new(dns.Client).ExchangeWithConnContext(ctx, question, &dns.Conn{Conn: conn})
	if err != nil {
		t.Errorf("ask for %s: %v", name, err)
		return new(dns.Msg)
	}
	return answer
}

// curl fetches a URL from the sandbox; the answer is the body, or what curl said.
func (s *sidecar) curl(t testing.TB, args ...string) (body string, ok bool) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := s.In(func() error {
		cmd := exec.Command("curl", append([]string{"-sS", "--max-time", "20", "--cacert", world.CAFile()}, args...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd.Run()
	})
	if err != nil {
		return stderr.String(), false
	}
	return stdout.String(), true
}
