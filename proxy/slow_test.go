//go:build linux

package proxy

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// TestAHeadThatIsNeverWholeIsNotWaitedFor is bypass B40: of the first request of a
// connection, and of any after it.
func TestAHeadThatIsNeverWholeIsNotWaitedFor(t *testing.T) {
	const whole = "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
	for name, before := range map[string]string{"the first": "", "the second": whole} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, onlyAllowed, func(c *Config) { c.Limits.SniffTimeout = 300 * time.Millisecond })
			r.host("allowed.test", true, "203.0.113.10")
			r.web("203.0.113.10:80", whoAmI)
			c := dialTCP(t, r.transparent("203.0.113.10:80"))
			in := bufio.NewReader(c)
			if before != "" {
				if _, err := io.WriteString(c, before); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(in, nil)
				if err != nil || resp.StatusCode != 200 {
					t.Fatalf("%+v, %v", resp, err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.test\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v, want the connection to end", err)
			}
			r.log.find(t, "limit", func(e audit.Event) bool {
				return e.Kind == audit.KindDecision && e.Verdict == policy.Deny && e.Reason == policy.ReasonLimit
			})
		})
	}
}
