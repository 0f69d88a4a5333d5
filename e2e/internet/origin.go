package internet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
)

// handler is what every HTTP origin serves:
//
//	/                 "hello from HOST"
//	/bytes?n=N        N bytes of a fixed pattern, with Content-Length
//	/endless?every=D  an endless download, a 16 KiB chunk every D (default: as fast as it goes)
//	/paced?n=N&every=D  N bytes of the pattern, a 16 KiB chunk every D
//	/upload           the SHA-256 and length of the request's body
//	/late?after=D     the first byte after D
//	/sse, /ndjson     five events 100 ms apart, flushed one by one
//	/ws               a WebSocket that echoes
//	/git/…            git over smart HTTP
//	/echo-headers     the request's headers
func (w *World) handler(dir string, rpc *grpc.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(rw http.ResponseWriter, r *http.Request) {
		say(rw, "hello from %s\n", r.Host)
	})
	mux.HandleFunc("/bytes", serveBytes)
	mux.HandleFunc("/endless", serveEndless)
	mux.HandleFunc("/paced", serveBytes)
	mux.HandleFunc("/upload", serveUpload)
	mux.HandleFunc("/late", func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(duration(r, "after", time.Second)):
			say(rw, "at last\n")
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/sse", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		drip(rw, r, "data: event %d\n\n")
	})
	mux.HandleFunc("/ndjson", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/x-ndjson")
		drip(rw, r, "{\"event\":%d}\n")
	})
	mux.HandleFunc("/ws", serveWebSocket)
	mux.HandleFunc("/echo-headers", func(rw http.ResponseWriter, r *http.Request) {
		if err := r.Header.Write(rw); err != nil {
			return
		}
	})
	if git, err := exec.LookPath("git"); err == nil {
		mux.Handle("/git/", &cgi.Handler{
			Path: git, Args: []string{"http-backend"}, Root: "/git", Dir: dir, Logger: quiet,
			Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(dir, "git"), "GIT_HTTP_EXPORT_ALL=1"},
		})
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		to := ""
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			to = local.String()
		}
		w.seen.add(Visit{To: to, Host: r.Host, Path: r.URL.Path})
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			rpc.ServeHTTP(rw, r)
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

// pattern is the content of every download: a 16 KiB block that differs in each byte's place.
var pattern = func() []byte {
	block := make([]byte, 16<<10)
	for i := range block {
		block[i] = byte(i*7 + i>>8)
	}
	return block
}()

// PatternSum gives the hexadecimal SHA-256 of the first n bytes of the pattern
// that /bytes serves.
func PatternSum(n int64) string {
	sum := sha256.New()
	for n > 0 {
		chunk := pattern[:min(n, int64(len(pattern)))]
		sum.Write(chunk)
		n -= int64(len(chunk))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func serveBytes(rw http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if err != nil || n < 0 {
		http.Error(rw, "n must be a number of bytes", http.StatusBadRequest)
		return
	}
	rw.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	rw.Header().Set("Content-Type", "application/octet-stream")
	every := duration(r, "every", 0)
	for n > 0 {
		chunk := pattern[:min(n, int64(len(pattern)))]
		if _, err := rw.Write(chunk); err != nil {
			return
		}
		n -= int64(len(chunk))
		if every == 0 {
			continue
		}
		select {
		case <-time.After(every):
		case <-r.Context().Done():
		}
	}
}

func serveEndless(rw http.ResponseWriter, r *http.Request) {
	every := duration(r, "every", 0)
	flush := http.NewResponseController(rw)
	for r.Context().Err() == nil {
		if _, err := rw.Write(pattern); err != nil {
			return
		}
		if every > 0 {
			if err := flush.Flush(); err != nil {
				return
			}
			select {
			case <-time.After(every):
			case <-r.Context().Done():
			}
		}
	}
}

func serveUpload(rw http.ResponseWriter, r *http.Request) {
	sum := sha256.New()
	n, err := io.Copy(sum, r.Body)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	say(rw, "%x %d\n", sum.Sum(nil), n)
}

func drip(rw http.ResponseWriter, r *http.Request, format string) {
	flush := http.NewResponseController(rw)
	for i := range 5 {
		say(rw, format, i)
		if err := flush.Flush(); err != nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func serveWebSocket(rw http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return
	}
	defer func() { closeQuietly(closer(conn.CloseNow)) }()
	conn.SetReadLimit(2 << 20)
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if err := conn.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}

type closer func() error

func (c closer) Close() error { return c() }

func duration(r *http.Request, key string, fallback time.Duration) time.Duration {
	d, err := time.ParseDuration(r.FormValue(key))
	if err != nil {
		return fallback
	}
	return d
}

// say writes to a client that may be gone; then there is nobody to tell.
func say(w io.Writer, format string, args ...any) {
	if _, err := fmt.Fprintf(w, format, args...); err != nil {
		return
	}
}
