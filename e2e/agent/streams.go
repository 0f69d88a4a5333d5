//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/exeat/exeat/e2e/internet"
)

// chat holds a bidirectional gRPC stream: plain|tls HOST:PORT.
func chat(args []string) error {
	creds := insecure.NewCredentials()
	if args[0] == "tls" {
		pool, err := roots()
		if err != nil {
			return err
		}
		creds = credentials.NewTLS(&tls.Config{RootCAs: pool})
	}
	conn, err := grpc.NewClient(args[1], grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stream, err := internet.Chat(ctx, conn)
	if err != nil {
		return err
	}
	for i := range 5 {
		said := fmt.Sprintf("message %d", i)
		if err := stream.SendMsg(wrapperspb.String(said)); err != nil {
			return err
		}
		heard := new(wrapperspb.StringValue)
		if err := stream.RecvMsg(heard); err != nil {
			return err
		}
		if heard.GetValue() != said {
			return fmt.Errorf("heard %q", heard.GetValue())
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		return fmt.Errorf("end of the stream: %w", err)
	}
	fmt.Println("5 messages echoed")
	return nil
}

// streams makes one h2c connection to ADDR, with prior knowledge, and one request
// on it for each authority.
func streams(args []string) error {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	session, err := transport.NewClientConn(context.Background(), "http", args[0])
	if err != nil {
		return err
	}
	defer session.Close()
	for _, authority := range args[1:] {
		request, err := http.NewRequest(http.MethodGet, "http://"+authority+"/", nil)
		if err != nil {
			return err
		}
		response, err := session.RoundTrip(request)
		if err != nil {
			fmt.Println(authority, word(err))
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		fmt.Printf("%s %d %s\n", authority, response.StatusCode, strings.TrimSpace(string(body)))
		if err != nil {
			return err
		}
	}
	return nil
}

// hello makes a TLS handshake with ADDR, naming NAME, and asks for / there.
func hello(args []string) error {
	flags := flag.NewFlagSet("hello", flag.ExitOnError)
	piece := flags.Int("piece", 0, "send the ClientHello in records of so many bytes, each byte a segment")
	ech := flags.String("ech", "", "an ECHConfigList in base64")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pool, err := roots()
	if err != nil {
		return err
	}
	tcp, err := dial(flags.Arg(0))
	if err != nil {
		return err
	}
	defer tcp.Close()
	if err := tcp.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
		return err
	}
	config := &tls.Config{RootCAs: pool, ServerName: flags.Arg(1), NextProtos: []string{"http/1.1"}}
	if flags.Arg(1) == "" {
		config.InsecureSkipVerify = true
	}
	if *ech != "" {
		if config.EncryptedClientHelloConfigList, err = base64.StdEncoding.DecodeString(*ech); err != nil {
			return err
		}
	}
	conn := tls.Client(&choppy{Conn: tcp, piece: *piece}, config)
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", flags.Arg(1)); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	fmt.Printf("%s\n", lastLine(answer))
	return err
}

// choppy cuts the first record that is written into many small ones.
type choppy struct {
	net.Conn
	piece int
}

func (c *choppy) Write(p []byte) (int, error) {
	piece := c.piece
	c.piece = 0
	if piece == 0 || len(p) < 5 {
		return c.Conn.Write(p)
	}
	for body := p[5:]; len(body) > 0; {
		n := min(piece, len(body))
		record := append([]byte{p[0], p[1], p[2], byte(n >> 8), byte(n)}, body[:n]...)
		body = body[n:]
		for i := range record { // TCP_NODELAY is Go's default: a segment a byte
			if _, err := c.Conn.Write(record[i : i+1]); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func lastLine(text []byte) []byte {
	text = bytes.TrimSpace(text)
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

// raw sends what standard input holds to ADDR, and prints what comes back until
// the end, escaped, and how it ended.
func raw(args []string) error {
	conn, err := dial(args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
		return err
	}
	said, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if _, err := conn.Write(said); err != nil {
		return err
	}
	if len(args) > 1 && args[1] == "half" {
		// A connection that was reset meanwhile tells so below.
		if err := conn.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
			return err
		}
	}
	answer, err := io.ReadAll(conn)
	fmt.Printf("%q\n", answer)
	return err
}

// question asks udp|tcp SERVER NAME TYPE, or sends a message written in hex.
func question(args []string) error {
	query := new(dns.Msg)
	if len(args) == 3 {
		data, err := hex.DecodeString(args[2])
		if err != nil {
			return err
		}
		return rawQuestion(args[0], args[1], data)
	}
	query.SetQuestion(dns.Fqdn(args[2]), dns.StringToType[args[3]])
	query.SetEdns0(1232, false)
	query.IsEdns0().Option = append(query.IsEdns0().Option,
		&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte("smuggled")})
	reply, _, err := (&dns.Client{Net: args[0], Timeout: 10 * time.Second}).Exchange(query, args[1])
	if err != nil {
		return err
	}
	fmt.Print(dns.RcodeToString[reply.Rcode], " ", len(reply.Answer))
	for _, rr := range reply.Answer {
		fmt.Print(" | ", strings.ReplaceAll(rr.String(), "\t", " "))
	}
	if opt := reply.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if extended, ok := o.(*dns.EDNS0_EDE); ok {
				fmt.Printf(" | EDE %d %s", extended.InfoCode, extended.ExtraText)
			}
		}
	}
	fmt.Println()
	return nil
}

func rawQuestion(network, server string, data []byte) error {
	conn, err := dns.DialTimeout(network, server, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(data); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, err := conn.Read(reply)
	if err != nil {
		return err
	}
	if n < 12 {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	fmt.Println(dns.RcodeToString[int(reply[3]&0xf)])
	return nil
}
