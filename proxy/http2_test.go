//go:build linux

package proxy

//lint:file-ignore SA1019 net/http offers no way to serve one connection that is accepted and partly read already.

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/policy"
)

// web2 puts an h2c origin at a documentation address.
func (r *rig) web2(at string, handler http.HandlerFunc) {
	r.t.Helper()
	r.origin(at, func(c *net.TCPConn) {
		(&http2.Server{}).ServeConn(c, &http2.ServeConnOpts{Handler: handler})
	})
}

// client2 is an HTTP/2 client with prior knowledge; all its streams share the
// connection to the listener at.
func (r *rig) client2(at string) *http2.ClientConn {
	r.t.Helper()
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(context.Context, string, string, *tls.Config) (net.Conn, error) { return nil, net.ErrClosed }}
	cc, err := tr.NewClientConn(dialTCP(r.t, at))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cc.Close() })
	return cc
}

func (r *rig) get2(cc *http2.ClientConn, url string) (*http.Response, string) {
	r.t.Helper()
	q, err := http.NewRequest("GET", url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := cc.RoundTrip(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(b)
}

func TestEachStreamIsJudged(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	r.host("b.wild.test", false, "203.0.113.11")
	r.web2("203.0.113.10:80", whoAmI)
	r.web2("203.0.113.11:80", whoAmI)
	cc := r.client2(r.transparent("203.0.113.66:80"))
	for _, tc := range []struct {
		url    string
		status int
		body   string
	}{
		{"http://allowed.test/1", 200, "GET allowed.test /1"},
		{"http://evil.test/2", 403, ""},
		{"http://b.wild.test/3?a;b", 200, "GET b.wild.test /3?a;b"},
		{"http://allowed.test/4", 200, "GET allowed.test /4"},
		{"http://203.0.113.10/5", 403, ""},
	} {
		resp, body := r.get2(cc, tc.url)
		if resp.StatusCode != tc.status || tc.body != "" && body != tc.body {
			t.Errorf("%s: %s %q", tc.url, resp.Status, body)
		}
		if denied := resp.Header.Get("Proxy-Status") != ""; denied != (tc.status == 403) {
			t.Errorf("%s: %v", tc.url, resp.Header)
		}
	}
	if d := r.dials(); fmt.Sprint(d) != "[203.0.113.10:80 203.0.113.11:80]" {
		t.Errorf("dialled %v", d)
	}
	d := r.log.decisions()
	if len(d) != 5 || d[1].Reason != policy.ReasonUnlisted || d[1].Name != "evil.test" || d[0].Channel != audit.ChannelHTTP {
		t.Errorf("decisions %+v", d)
	}
	if n := r.flows.Rejudge(r.swap(`{"network_mode":"allowlist","allowed_hosts":["*.wild.test"]}`)); n != 1 {
		t.Errorf("%d cut, want 1", n)
	}
}

// testService echoes each message of a stream at once, and ends it with an error
// in its trailers.
type testService struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (testService) FullDuplexCall(s grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	for {
		q, err := s.Recv()
		if err == io.EOF {
			return status.Error(codes.DataLoss, "told in the trailers")
		}
		if err != nil {
			return err
		}
		if err := s.Send(&grpc_testing.StreamingOutputCallResponse{Payload: q.Payload}); err != nil {
			return err
		}
	}
}

func TestGRPCOverH2C(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	server := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, testService{})
	ln := listenLoopback(t)
	go func() {
		if err := server.Serve(ln); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(server.Stop)
	r.place("203.0.113.10:50051", ln.Addr().String())
	at := r.transparent("203.0.113.10:50051")
	dial := func(authority string) grpc_testing.TestServiceClient {
		conn, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(authority))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return grpc_testing.NewTestServiceClient(conn)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := dial("allowed.test:50051").FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		body := bytes.Repeat([]byte{byte(i)}, 1+i*5000)
		if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: body}}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil || !bytes.Equal(resp.Payload.Body, body) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.DataLoss {
		t.Errorf("ended with %v, want the upstream's trailers", err)
	}
	denied, err := dial("evil.test").FullDuplexCall(ctx)
	if err == nil {
		_, err = denied.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("unlisted authority: %v", err)
	}
}

// TestAnHTTP2ServerThatSpeaksFirstDecidesNothing: its settings come before the
// client's preface, and the streams are judged all the same (B54).
func TestAnHTTP2ServerThatSpeaksFirstDecidesNothing(t *testing.T) {
	r := newRig(t, onlyAllowed)
	r.host("allowed.test", true, "203.0.113.10")
	spoke := make(chan struct{})
	r.origin("203.0.113.10:50051", func(c *net.TCPConn) {
		if err := http2.NewFramer(c, c).WriteSettings(); err != nil {
			return
		}
		close(spoke)
		if _, err := io.Copy(io.Discard, c); err != nil {
			return
		}
	})
	c := dialTCP(t, r.transparent("203.0.113.10:50051"))
	<-spoke
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n > 0 || !isTimeout(err) {
		t.Fatalf("read %d, %v, want nothing yet", n, err)
	}
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	tr := &http2.Transport{AllowHTTP: true}
	cc, err := tr.NewClientConn(c)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if resp, _ := r.get2(cc, "http://evil.test/"); resp.StatusCode != 403 {
		t.Errorf("%s", resp.Status)
	}
}

func TestHTTP2WithoutANetworkIsAnswered(t *testing.T) {
	r := newRig(t, `"no-network"`)
	resp, _ := r.get2(r.client2(r.transparent("203.0.113.66:80")), "http://allowed.test/")
	if resp.StatusCode != 403 || r.log.decision(t).Reason != policy.ReasonMode {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
}
