package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
)

// keepAlive is how often a quiet SSE stream says that it is there.
const keepAlive = 15 * time.Second

// getEvents gives the events that are kept and, with follow, those to come. A
// reader that is too slow is told how many it lost; one that does not read at
// all is cut after Config.WriteTimeout. Neither delays the engine.
func (s *Server) getEvents(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	if id := r.Header.Get("Last-Event-ID"); id != "" && !values.Has("since") {
		values.Set("since", id)
	}
	query, problems := api.ParseEventQuery(values, time.Now())
	if len(problems) > 0 {
		return api.Invalid(problems)
	}
	if err := noDeadlines(w); err != nil {
		return err
	}
	stream := &eventStream{
		w: w, control: http.NewResponseController(w), limit: s.config.WriteTimeout, query: query, last: query.After,
		sse: acceptsSSE(r),
	}
	w.Header().Set("Content-Type", stream.contentType())
	w.Header().Set("Cache-Control", "no-store")
	if query.Follow {
		return s.follow(r, stream)
	}
	return s.replay(stream)
}

// noDeadlines takes the connection's deadlines for one call away: those of a
// stream are set write by write.
func noDeadlines(w http.ResponseWriter) error {
	control := http.NewResponseController(w)
	if err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{})); err != nil {
		return fmt.Errorf("deadlines of a stream: %w", err)
	}
	return nil
}

func acceptsSSE(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// replay gives what is kept now. A reader that is slow may see some of it leave the
// ring before its turn, and is told so.
func (s *Server) replay(stream *eventStream) error {
	batch := make([]audit.Event, 128)
	n, lost := s.config.Log.Read(stream.last, batch)
	if n == 0 {
		return stream.flush()
	}
	// Where it begins, which after 0 or an ID of another start only this tells.
	stream.last = batch[0].ID - 1 - lost
	for end := s.config.Log.Last(); ; {
		for i := range batch[:n] {
			if batch[i].ID > end {
				return errors.Join(stream.announce(end+1, batch[i].Time), stream.flush())
			}
			if err := stream.send(&batch[i]); err != nil {
				return err
			}
		}
		if stream.last >= end {
			return stream.flush()
		}
		n, _ = s.config.Log.Read(stream.last, batch) // the IDs tell what is lost
	}
}

// follow gives what is kept and what comes, until the peer or the server goes.
func (s *Server) follow(r *http.Request, stream *eventStream) error {
	subscription := s.config.Log.Subscribe(stream.last, 64)
	defer subscription.Close()
	stream.last = subscription.Start()
	if err := stream.flush(); err != nil { // the header, so that the peer knows it is connected
		return err
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-tick.C:
			if err := stream.comment(); err != nil {
				return err
			}
		case e, ok := <-subscription.C():
			if !ok {
				return nil
			}
			if err := stream.send(&e); err != nil {
				return err
			}
			if len(subscription.C()) == 0 {
				if err := stream.flush(); err != nil {
					return err
				}
			}
		}
	}
}

// eventStream writes events as NDJSON or as server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	query   api.EventQuery
	sse     bool
	// last is the ID of the last event that was seen, sent or not.
	last uint64
}

func (s *eventStream) contentType() string {
	if s.sse {
		return "text/event-stream"
	}
	return "application/x-ndjson"
}

// send writes e if the query lets it through, after what is missing before it.
func (s *eventStream) send(e *audit.Event) error {
	if err := s.announce(e.ID, e.Time); err != nil {
		return err
	}
	s.last = e.ID
	if !s.query.Matches(e) {
		return nil
	}
	return s.write(e)
}

// announce says how many events are missing before the next one.
func (s *eventStream) announce(next uint64, at time.Time) error {
	missing := next - s.last - 1
	if missing == 0 {
		return nil
	}
	s.last += missing
	return s.write(&audit.Event{Kind: audit.KindLost, Time: at, Folded: missing})
}

func (s *eventStream) write(e *audit.Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode event %d: %w", e.ID, err)
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(s.limit)); err != nil {
		return err
	}
	switch {
	case !s.sse:
		_, err = s.w.Write(append(data, '\n'))
	case e.ID == 0:
		_, err = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", e.Kind, data)
	default:
		_, err = fmt.Fprintf(s.w, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, data)
	}
	return err
}

func (s *eventStream) comment() error {
	if !s.sse {
		return nil
	}
	if _, err := io.WriteString(s.w, ": still here\n\n"); err != nil {
		return err
	}
	return s.flush()
}

func (s *eventStream) flush() error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.limit)); err != nil {
		return err
	}
	return s.control.Flush()
}
