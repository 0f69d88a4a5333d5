//go:build linux

package internet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// The addresses of the world's DNS server.
var (
	Resolver  = netip.MustParseAddrPort("203.0.113.53:53")
	Resolver6 = netip.MustParseAddrPort("[2001:db8::53]:53")
)

// World is a running little internet. It answers on every address that Isolate
// put on the loopback: HTTPS (HTTP/1.1, h2, gRPC) on 443 and 8443, HTTP on 80
// and 8080 (h2c and gRPC too), the server-first service on 22, an echo of bytes on 7,
// an HTTP proxy (CONNECT) on 3128.
type World struct {
	zone   *zoneServer
	ca     *authority
	caFile string
	seen   seen
	group  *errgroup.Group
	stop   context.CancelFunc
}

// Start brings the world up inside a namespace that Isolate made. The zone's
// names are served at once; dir receives ca.pem and is the root that git.test
// serves (bare repositories in dir/git).
func Start(ctx context.Context, zone Zone, dir string) (*World, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, fmt.Errorf("make the authority: %w", err)
	}
	w := &World{ca: ca, zone: &zoneServer{zone: zone}, caFile: filepath.Join(dir, "ca.pem")}
	if err := os.WriteFile(w.caFile, ca.pem(), 0o644); err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.group, ctx = errgroup.WithContext(ctx)
	if err := w.serve(ctx, dir); err != nil {
		w.stop()
		return nil, errors.Join(err, w.group.Wait())
	}
	return w, nil
}

// Close stops every server and waits for them.
func (w *World) Close() error {
	w.stop()
	return w.group.Wait()
}

// CAFile is the path of the authority's certificate, as SSL_CERT_FILE and
// curl --cacert want it.
func (w *World) CAFile() string { return w.caFile }

// Roots gives a pool that trusts the world's authority.
func (w *World) Roots() *x509.CertPool { return w.ca.pool() }

// Asked gives every question that reached the world's DNS server, in order.
func (w *World) Asked() []Question {
	w.zone.mu.Lock()
	defer w.zone.mu.Unlock()
	return append([]Question(nil), w.zone.asked...)
}

// SetName replaces the records of one name (rebinding, moved services).
func (w *World) SetName(name string, records ...string) {
	w.zone.mu.Lock()
	defer w.zone.mu.Unlock()
	w.zone.zone[name] = records
}

// Seen gives every connection and request that reached an origin, in order.
func (w *World) Seen() []Visit { return w.seen.all() }

func (w *World) serve(ctx context.Context, dir string) error {
	for _, at := range []netip.AddrPort{Resolver, Resolver6} {
		if err := w.serveDNS(ctx, at); err != nil {
			return err
		}
	}
	rpc := grpc.NewServer()
	registerChat(rpc, &w.seen)
	handler := w.handler(dir, rpc)
	for _, port := range []string{"443", "8443"} {
		config := &tls.Config{GetCertificate: w.ca.certificate, NextProtos: []string{"h2", "http/1.1"}}
		if err := w.serveHTTP(ctx, port, handler, config); err != nil {
			return err
		}
	}
	for _, port := range []string{"80", "8080"} {
		if err := w.serveHTTP(ctx, port, handler, nil); err != nil {
			return err
		}
	}
	if err := w.serveTCP(ctx, "22", bannerFirst); err != nil {
		return err
	}
	if err := w.serveTCP(ctx, "3128", w.tunnel); err != nil {
		return err
	}
	return w.serveTCP(ctx, "7", echo)
}

func (w *World) serveDNS(ctx context.Context, at netip.AddrPort) error {
	packets, err := net.ListenPacket("udp", at.String())
	if err != nil {
		return err
	}
	streams, err := net.Listen("tcp", at.String())
	if err != nil {
		return errors.Join(err, packets.Close())
	}
	for _, server := range []*dns.Server{
		{PacketConn: packets, Handler: w.zone},
		{Listener: streams, Handler: w.zone},
	} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		w.group.Go(server.ActivateAndServe)
		w.group.Go(func() error {
			<-ctx.Done()
			<-started
			return server.Shutdown()
		})
	}
	return nil
}

func (w *World) serveHTTP(ctx context.Context, port string, handler http.Handler, config *tls.Config) error {
	ln, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	ln = &countingListener{Listener: ln, seen: &w.seen}
	server := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: time.Minute, ErrorLog: quiet}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(config != nil)
	server.Protocols.SetUnencryptedHTTP2(config == nil)
	w.group.Go(func() error {
		var err error
		if config == nil {
			err = server.Serve(ln)
		} else {
			err = server.ServeTLS(ln, "", "")
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	w.group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return nil
}

func (w *World) serveTCP(ctx context.Context, port string, handle func(net.Conn)) error {
	ln, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	ln = &countingListener{Listener: ln, seen: &w.seen}
	w.group.Go(func() error {
		<-ctx.Done()
		return ln.Close()
	})
	w.group.Go(func() error {
		var live sync.WaitGroup
		defer live.Wait()
		for {
			conn, err := ln.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return nil
			case errors.Is(err, syscall.EMFILE):
				time.Sleep(10 * time.Millisecond) // until clients that were cut are given up
				continue
			case err != nil:
				return err
			}
			stopped := context.AfterFunc(ctx, func() { closeQuietly(conn) })
			live.Go(func() {
				defer stopped()
				defer closeQuietly(conn)
				handle(conn)
			})
		}
	})
	return nil
}
