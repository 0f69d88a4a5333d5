//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// step is one thing that the agent is told to try, one line of JSON each way.
type step struct {
	// Do is the kind of attempt: get, resolve, tcp, udp, download, downloaded, notice.
	Do string `json:"do"`
	// Target is a URL, a name, or an address with a port.
	Target string `json:"target,omitempty"`
	// At is the address to dial whatever the URL's host resolves to.
	At string `json:"at,omitempty"`
	// ServerName is sent instead of the URL's host.
	ServerName string `json:"server_name,omitempty"`
}

// outcome is what became of a step.
type outcome struct {
	Result string `json:"result"`
	TookMS int64  `json:"took_ms"`
	Bytes  int64  `json:"bytes,omitempty"`
}

// agent is the program inside the sandbox. It knows nothing of exeat: it uses
// the network as any program does.
type agent struct {
	roots    *x509.CertPool
	download transfer
}

// transfer is the long download that the demo cuts.
type transfer struct {
	bytes atomic.Int64
	wait  sync.WaitGroup
	mu    sync.Mutex
	end   string
}

// runAgent obeys the steps on stdin until it is closed.
func runAgent(caFile string, in io.Reader, out io.Writer) error {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	a := &agent{roots: x509.NewCertPool()}
	a.roots.AppendCertsFromPEM(pem)
	lines := bufio.NewScanner(in)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var s step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return err
		}
		began := time.Now()
		o := a.try(s)
		o.TookMS = time.Since(began).Milliseconds()
		if err := answers.Encode(o); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (a *agent) try(s step) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch s.Do {
	case "get":
		return outcome{Result: a.get(ctx, s)}
	case "resolve":
		return outcome{Result: resolve(ctx, s.Target)}
	case "tcp":
		return outcome{Result: greet(ctx, s.Target)}
	case "udp":
		return outcome{Result: datagram(s.Target)}
	case "download":
		a.startDownload(s)
		return outcome{Result: "running"}
	case "downloaded":
		a.download.mu.Lock()
		defer a.download.mu.Unlock()
		return outcome{Result: a.download.end, Bytes: a.download.bytes.Load()}
	}
	return outcome{Result: "unknown step " + s.Do}
}

// client makes one that trusts the little internet, and dials At where it is given.
func (a *agent) client(s step) *http.Client {
	dialer := &net.Dialer{}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: a.roots, ServerName: s.ServerName},
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if s.At != "" {
				address = s.At
			}
			return dialer.DialContext(ctx, network, address)
		},
	}}
}

func (a *agent) get(ctx context.Context, s step) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Target, nil)
	if err != nil {
		return err.Error()
	}
	response, err := a.client(s).Do(request)
	if err != nil {
		return word(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return word(err)
	}
	text := strings.TrimSpace(string(body))
	if response.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d: %s", response.StatusCode, text)
	}
	return "200"
}

// resolve asks as a stub resolver does, with EDNS so that the reason comes along.
func resolve(ctx context.Context, name string) string {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), dns.TypeA)
	query.SetEdns0(1232, false)
	// The address is of no account: every question goes to exeat's resolver.
	reply, _, err := new(dns.Client).ExchangeContext(ctx, query, "192.0.2.53:53")
	if err != nil {
		return word(err)
	}
	text := dns.RcodeToString[reply.Rcode]
	if opt := reply.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if ede, ok := o.(*dns.EDNS0_EDE); ok && ede.ExtraText != "" {
				text += ": " + ede.ExtraText
			}
		}
	}
	return text
}

// greet reads the greeting of a server that speaks first.
func greet(ctx context.Context, address string) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return word(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return word(err)
	}
	return "greeted: " + strings.TrimSpace(line)
}

func datagram(address string) string {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return word(err)
	}
	defer conn.Close()
	for range 2 { // what a first datagram met is told on the second (ICMP)
		if _, err := conn.Write([]byte("beacon")); err != nil {
			return word(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err.Error()
		}
		if _, err := conn.Read(make([]byte, 64)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return word(err)
		}
	}
	return "sent"
}

func (a *agent) startDownload(s step) {
	a.download.wait.Go(func() {
		response, err := a.client(s).Get(s.Target)
		if err == nil {
			_, err = io.Copy(counter{&a.download.bytes}, response.Body)
			err = errors.Join(err, response.Body.Close())
		}
		a.download.mu.Lock()
		defer a.download.mu.Unlock()
		a.download.end = word(err)
	})
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// word says in a word or two what went wrong, as far as a program can tell.
func word(err error) string {
	var remote *net.OpError // crypto/tls wraps an alert in one with this Op
	var notFound *net.DNSError
	switch {
	case err == nil:
		return "complete"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return "TLS alert: " + strings.TrimPrefix(remote.Err.Error(), "tls: ")
	case errors.As(err, &notFound) && notFound.IsNotFound:
		return "no such name"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "not permitted"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "cut off"
	}
	return err.Error()
}
