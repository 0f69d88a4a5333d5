//go:build linux

package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
)

// TestAReaderOfEventsThatDoesNotRead costs nobody anything, and is told what it lost.
func TestAReaderOfEventsThatDoesNotRead(t *testing.T) {
	both(t, func(t *testing.T, start func(testing.TB, ...string) *box) {
		b, name, _ := flooded(t, start)
		var idle []net.Conn
		for range 8 {
			conn, err := net.Dial("unix", b.socket)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "GET /v1/events?follow=1 HTTP/1.1\r\nHost: exeat\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			idle = append(idle, conn)
		}
		// The ring goes round, past what is on its way to each reader.
		n := scaled(t, 12000, 30000)
		b.strain(t, fmt.Sprintf("8 readers of events that do not read, %d events", n), name, func() {
			flood := b.job(t, "names", "-n", "100000000")
			b.awaitEvent(t, uint64(n))
			flood.stop(t)
		})
		told, lost := 0, uint64(0)
		for _, conn := range idle {
			n, missing := b.account(t, conn)
			told, lost = told+n, lost+missing
		}
		report(t, "8 readers of events that read at last", b.shape, "%d events in order, and notices of %d lost ones; none is missing without a notice", told, lost)
		if lost == 0 {
			t.Error("nothing was lost: the case shows nothing")
		}
		b.replays(t)
	})
}

// replays asks for what has left the ring, without following: it is told what is lost.
func (b *box) replays(t *testing.T) {
	t.Helper()
	told, lost := 0, uint64(0)
	for e, err := range b.Events(t.Context(), api.EventQuery{After: 1}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Kind == audit.KindLost:
			lost += e.Folded
		default:
			if told++; e.ID != 1+lost+uint64(told) {
				t.Fatalf("event %d comes after %d, with notice of %d lost ones", e.ID, told-1, lost)
			}
		}
	}
	report(t, "a replay from event 1", b.shape, "a notice of %d lost ones, and %d events", lost, told)
	if lost == 0 || told == 0 {
		t.Errorf("told of %d lost, given %d", lost, told)
	}
}

// awaitEvent reads events until there have been so many.
func (b *box) awaitEvent(t *testing.T, id uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for e, err := range b.Events(ctx, api.EventQuery{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.ID >= id {
			return
		}
	}
}

// account reads a stream of events, and what follows it where it was ended for not
// being read: every event must come, or be among those that are said to be lost.
func (b *box) account(t *testing.T, conn net.Conn) (told int, lost uint64) {
	t.Helper()
	next := uint64(1)
	for {
		ended := func() error {
			if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				return err
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return err
			}
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("events since %d: %s", next-1, answer.Status)
			}
			for lines := bufio.NewReader(answer.Body); ; {
				if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
					return err
				}
				line, err := lines.ReadBytes('\n')
				if err != nil {
					return err
				}
				var e audit.Event
				if err := json.Unmarshal(line, &e); err != nil {
					return err
				}
				if e.Kind == audit.KindLost {
					lost += e.Folded
					next += e.Folded
					continue
				}
				if told++; e.ID != next {
					t.Errorf("after event %d comes %d, and no word of what is between", next-1, e.ID)
				}
				next = e.ID + 1
			}
		}()
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if errors.Is(ended, os.ErrDeadlineExceeded) {
			return told, lost // there are no more
		}
		var err error
		if conn, err = net.Dial("unix", b.socket); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "GET /v1/events?follow=1&since=%d HTTP/1.1\r\nHost: exeat\r\n\r\n", next-1); err != nil {
			t.Fatal(err)
		}
	}
}
