package control

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gorilla/mux"
)

// Bounds of what one peer can ask for.
const (
	maxBody     = 16<<20 + 64<<10 // a policy of the largest size, and its envelope
	maxHeader   = 16 << 10
	maxConns    = 256
	drainPeriod = 5 * time.Second
)

// Config is what a Server is made of.
type Config struct {
	Engine Engine
	Log    EventLog
	// Prober is nil where the engine has no probe.
	Prober Prober
	Access Access
	// Owner is whose socket it is; nil is our own uid.
	Owner *uint32
	// Authorize, where not nil, is asked after Access has allowed a peer.
	Authorize func(Peer) error
	// ErrorLog gets what can't be told to the peer; nil discards it.
	ErrorLog *log.Logger
	// HeaderTimeout, BodyTimeout and WriteTimeout bound a slow peer (default 10 s,
	// 30 s, 30 s); WriteTimeout is for each write of a stream.
	HeaderTimeout, BodyTimeout, WriteTimeout time.Duration
}

// Defaults sets what is unset.
func (c *Config) Defaults() {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{{&c.HeaderTimeout, 10 * time.Second}, {&c.BodyTimeout, 30 * time.Second}, {&c.WriteTimeout, 30 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
}

// Validate gives all that is wrong.
func (c *Config) Validate() error {
	var errs []error
	if c.Engine == nil {
		errs = append(errs, errors.New("control: no engine"))
	}
	if c.Log == nil {
		errs = append(errs, errors.New("control: no log"))
	}
	return errors.Join(errs...)
}

// Server answers the control API.
type Server struct {
	config  Config
	uid     uint32
	router  *mux.Router
	metrics http.Handler
	large   *turnstile
}

// New makes a server.
func New(c Config) (*Server, error) {
	c.Defaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Server{config: c, uid: uint32(os.Geteuid()), large: newTurnstile(c.HeaderTimeout)}
	if c.Owner != nil {
		s.uid = *c.Owner
	}
	metrics, err := newMetrics(c.Engine, c.Log, c.Prober)
	if err != nil {
		return nil, fmt.Errorf("control: metrics: %w", err)
	}
	s.metrics = metrics
	s.router = s.routes()
	return s, nil
}

// Serve answers on ln, which gives *net.UnixConn, until ctx ends; then streams
// end, calls in progress have 5 s, and every goroutine is gone when it returns.
// It closes ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler:           s.router,
		ReadHeaderTimeout: s.config.HeaderTimeout,
		ReadTimeout:       s.config.BodyTimeout,
		WriteTimeout:      s.config.BodyTimeout + s.config.WriteTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          s.errorLog(),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       s.permit,
	}
	limited := &countedListener{Listener: ln, limit: maxConns}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(limited) }()
	select {
	case err := <-failed:
		return errors.Join(fmt.Errorf("control: serving: %w", err), server.Close())
	case <-ctx.Done():
	}
	cancel()
	drain, stop := context.WithTimeout(context.WithoutCancel(ctx), drainPeriod)
	defer stop()
	err := server.Shutdown(drain)
	if err != nil {
		err = errors.Join(fmt.Errorf("control: calls still in progress were cut: %w", err), server.Close())
	}
	<-failed
	limited.wait()
	return err
}

func (s *Server) errorLog() *log.Logger {
	if s.config.ErrorLog != nil {
		return s.config.ErrorLog
	}
	return log.New(discard{}, "", 0)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
