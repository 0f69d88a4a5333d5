//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// attempts are what the program can be told to do, by its first argument.
var attempts = map[string]func(args []string) error{
	"get":     get,
	"repeat":  repeat,
	"hold":    hold,
	"drip":    drip,
	"ws":      webSocket,
	"chat":    chat,
	"streams": streams,
	"hello":   hello,
	"raw":     raw,
	"dns":     question,
	"udp":     datagram,
	"tcp":     knock,
	"socket":  socket,
	"uring":   ring,
	"tiocsti": pushInput,
	"unix":    unixSocket,
	"write":   writeDescriptor,
	"kill":    kill,
	"ptrace":  attach,
	"hang":    hang,
}

func main() {
	if len(os.Args) < 2 || attempts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "agent: say what to attempt")
		os.Exit(2)
	}
	if err := attempts[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Println(word(err))
		os.Exit(1)
	}
}

// roots trusts the authority that SSL_CERT_FILE names.
func roots() (*x509.CertPool, error) {
	data, err := os.ReadFile(os.Getenv("SSL_CERT_FILE"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data)
	return pool, nil
}

// dial connects within a time in which every denial must have come.
func dial(address string) (*net.TCPConn, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// word says what went wrong, in words that a test can compare.
func word(err error) string {
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var notFound *net.DNSError
	switch {
	case errors.As(err, &alert):
		return fmt.Sprintf("TLS alert %d", uint8(alert))
	case errors.As(err, &record):
		return "not TLS: " + record.Msg
	case errors.As(err, &notFound) && notFound.IsNotFound:
		return "no such name"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "cut off"
	}
	return err.Error()
}
