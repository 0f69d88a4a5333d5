package sealed

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// TCP are the listeners to which every TCP connection is redirected, one for
// each family; SO_ORIGINAL_DST tells where it was meant to go.
func (s *Sandbox) TCP() []*net.TCPListener { return s.transparent }

// Explicit are the listeners for clients that know that they have a proxy.
func (s *Sandbox) Explicit() []*net.TCPListener { return s.explicit }

// DNS are the sockets that all of port 53 comes to.
func (s *Sandbox) DNS() ([]*net.UDPConn, []*net.TCPListener) { return s.dnsUDP, s.dnsTCP }

// Kernel is the ruleset inside.
func (s *Sandbox) Kernel() *Kernel { return s.kernel }

// Warnings are what the user should know about this sandbox.
func (s *Sandbox) Warnings() []string { return s.warnings }

// Root says whether CMD runs as root, and UID as whom.
func (s *Sandbox) Root() bool { return s.who.root }

// UID is the user that CMD runs as.
func (s *Sandbox) UID() int { return s.who.uid }

// GID is the group that CMD runs as.
func (s *Sandbox) GID() int { return s.who.gid }

// Pid is that of the sandbox's process 1, as we see it.
func (s *Sandbox) Pid() int { return s.process.Pid }

// ProxyAddr is where the explicit proxy is reached from inside.
func (s *Sandbox) ProxyAddr() string {
	return fmt.Sprintf("127.0.0.1:%d", s.ports[fileExplicit4])
}

// Release starts CMD, with env added to its environment: what could not be known
// before the sandbox stood. An *ExecError says that it could not be started.
func (s *Sandbox) Release(env ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return errors.New("the command was started already")
	}
	s.released = true
	err := s.send(message{Kind: kindRelease, Env: env})
	var m message
	if err == nil {
		m, err = s.receive()
	}
	switch {
	case err != nil:
		err = fmt.Errorf("start the command: %w", err)
	case m.Kind == kindFailed:
		err = &ExecError{Status: m.Status, Message: m.Text}
	}
	if err != nil {
		close(s.ended)
		return err
	}
	go s.follow()
	return nil
}

func (s *Sandbox) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = s.conn.Write(b)
	return err
}

func (s *Sandbox) receive() (message, error) {
	m, files, err := s.receiveFiles()
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return m, err
}

// follow hears what becomes of CMD until it ends.
func (s *Sandbox) follow() {
	defer close(s.ended)
	if s.term != nil {
		stop := s.term.onContinue(s.resume)
		defer stop()
	}
	for {
		m, err := s.receive()
		if err != nil {
			return // process 1 was killed: Wait says so
		}
		switch m.Kind {
		case kindStopped:
			// In our group it is the terminal that stops us with it.
			if s.term != nil && !s.term.suspend() {
				s.resume()
			}
		case kindExited:
			s.status, s.known = m.Status, true
			if err := s.send(message{Kind: kindTaken, Status: m.Status}); err != nil {
				return // process 1 is gone, too
			}
			return
		}
	}
}

// resume lets a stopped CMD go on, with the terminal where the shell gave it to us.
func (s *Sandbox) resume() {
	// That it cannot be told means that it has ended: follow hears of it.
	if err := s.send(message{Kind: kindContinue, Foreground: s.term.foreground()}); err != nil {
		return
	}
}

// Wait returns CMD's status, 128+n where signal n killed it, once no process of
// the sandbox is left.
func (s *Sandbox) Wait() (int, error) {
	<-s.ended
	<-s.reaped
	s.term.restore()
	if !s.known {
		return 128 + int(unix.SIGKILL), fmt.Errorf("the sandbox's process 1 ended with CMD in it: %v", s.state)
	}
	return s.status, nil
}

// Signal sends CMD a signal: its process group where it has one of its own (it
// was given the terminal), else the process.
func (s *Sandbox) Signal(sig syscall.Signal) error {
	return s.send(message{Kind: kindSignal, Signal: int(sig)})
}

// relayed are the signals that somebody may send to the command and hits us.
var relayed = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
}

// RelaySignals passes the signals that we get on to CMD until stop is called,
// and keeps them from ending us. What the terminal sends to a group that CMD
// shares with us has reached it already, and is not sent twice.
func (s *Sandbox) RelaySignals() (stop func()) {
	c := make(chan os.Signal, 16)
	for _, sig := range relayed {
		// nohup: what we ignore CMD ignores too.
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	done := make(chan struct{})
	quit := make(chan struct{})
	go s.relaySignals(c, quit, done)
	return func() {
		signal.Stop(c)
		close(quit)
		<-done
	}
}

func (s *Sandbox) relaySignals(c <-chan os.Signal, quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case <-quit:
			return
		case sig := <-c:
			switch sig {
			case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
				if s.term == nil && groupHasTerminal() {
					continue
				}
			}
			if err := s.Signal(sig.(syscall.Signal)); err != nil {
				continue // CMD has ended
			}
		}
	}
}

// Close ends whatever still runs in the sandbox, waits for it, and gives all
// descriptors back.
func (s *Sandbox) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	if s.stopKill != nil {
		s.stopKill()
	}
	s.kill()
	<-s.reaped
	err := ignoreClosed(s.conn.Close())
	s.mu.Lock()
	if !s.released {
		s.released = true
		close(s.ended)
	}
	s.mu.Unlock()
	<-s.ended
	s.term.restore()
	for _, l := range [][]*net.TCPListener{s.transparent, s.explicit, s.dnsTCP} {
		for _, l := range l {
			err = errors.Join(err, ignoreClosed(l.Close()))
		}
	}
	for _, c := range s.dnsUDP {
		err = errors.Join(err, ignoreClosed(c.Close()))
	}
	if s.rules != nil {
		err = errors.Join(err, s.rules.Close())
	}
	if s.log != nil {
		err = errors.Join(err, ignoreClosed(s.log.Close()))
	}
	return err
}

func (s *Sandbox) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
