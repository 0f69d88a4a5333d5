package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/exeat/exeat/e2e/internet"
)

// patience bounds whatever must be answered.
const patience = 20 * time.Second

// resolver asks anybody: the question comes to exeat.
var resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, "198.51.100.1:53")
}}

// dial connects to a name or an address.
func dial(ctx context.Context, network, host, port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if net.ParseIP(host) == nil {
		addrs, err := resolver.LookupHost(ctx, host+".")
		if err != nil {
			return nil, err
		}
		host = addrs[0]
	}
	return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(host, port))
}

// flow is a connection over which bytes go there and back.
type flow interface {
	exchange() error
	Close() error
}

// openers open the kinds of flow; explicit is the address of the explicit proxy.
var openers = map[string]func(ctx context.Context, host, explicit string) (flow, error){
	"tls": func(ctx context.Context, host, _ string) (flow, error) {
		c, err := dial(ctx, "tcp", host, "443")
		if err != nil {
			return nil, err
		}
		// Whom we talk to the far side's taps tell.
		return newRequests(tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}), host), nil
	},
	"http": func(ctx context.Context, host, _ string) (flow, error) {
		c, err := dial(ctx, "tcp", host, "80")
		if err != nil {
			return nil, err
		}
		return newRequests(c, host), nil
	},
	"h2c":    openChat,
	"opaque": openEcho,
	"direct": openEcho,
	"connect": func(ctx context.Context, host, explicit string) (flow, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", explicit)
		if err != nil {
			return nil, err
		}
		if err := connectTo(c, host+":7"); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return echo{c}, nil
	},
	"udp": func(ctx context.Context, host, _ string) (flow, error) {
		c, err := dial(ctx, "udp", host, "7")
		return datagrams{c}, err
	},
}

func openEcho(ctx context.Context, host, _ string) (flow, error) {
	c, err := dial(ctx, "tcp", host, "7")
	return echo{c}, err
}

func connectTo(c net.Conn, authority string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// message is what goes there and back.
const message = "there and back again, 32 bytes.\n"

type echo struct{ net.Conn }

func (e echo) exchange() error {
	if err := e.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(e, message); err != nil {
		return err
	}
	_, err := io.ReadFull(e, make([]byte, len(message)))
	return err
}

// datagrams may be lost: three in a row are an end.
type datagrams struct{ net.Conn }

func (d datagrams) exchange() error {
	var err error
	for range 3 {
		if _, err = io.WriteString(d, message); err != nil {
			return err
		}
		if err = d.SetReadDeadline(time.Now().Add(patience / 4)); err != nil {
			return err
		}
		if _, err = d.Read(make([]byte, 64)); err == nil || !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			return err
		}
	}
	return err
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// requests are HTTP/1 requests over one connection.
type requests struct {
	net.Conn
	host string
	in   *bufio.Reader
}

func newRequests(c net.Conn, host string) *requests {
	return &requests{c, host, bufio.NewReader(c)}
}

func (r *requests) exchange() error {
	if err := r.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(r, "GET /bytes?n=32 HTTP/1.1\r\nHost: %s\r\n\r\n", r.host); err != nil {
		return err
	}
	answer, err := http.ReadResponse(r.in, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return err
}

// chat is a gRPC stream over an h2c connection of its own.
type chat struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
}

func openChat(ctx context.Context, host, _ string) (flow, error) {
	dialled := false
	conn, err := grpc.NewClient("passthrough:///"+host+":8080", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dialled {
				return nil, errors.New("one connection is enough")
			}
			dialled = true
			return dial(ctx, "tcp", host, "8080")
		}))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := internet.Chat(ctx, conn)
	if err != nil {
		cancel()
		return nil, errors.Join(err, conn.Close())
	}
	return &chat{conn, stream, cancel}, nil
}

func (c *chat) exchange() error {
	late := time.AfterFunc(patience, c.cancel)
	defer late.Stop()
	if err := c.stream.SendMsg(wrapperspb.String(message)); err != nil {
		return errors.Join(err, c.stream.RecvMsg(new(wrapperspb.StringValue)))
	}
	return c.stream.RecvMsg(new(wrapperspb.StringValue))
}

// Close implements flow.
func (c *chat) Close() error {
	c.cancel()
	return c.conn.Close()
}

// oneLine writes an error so that it fits the protocol.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
