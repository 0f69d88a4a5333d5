package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Event is something that happened to a container.
type Event struct {
	// What is the engine's word: "start", "die".
	What string
	Time time.Time
}

// Events gives the starts and ends of a container from now on, until ctx ends. An
// error is the last thing it gives.
func (e *Engine) Events(ctx context.Context, container string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		cmd := e.Command(ctx, "events", "--filter", "container="+container, "--format", "{{json .}}")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			yield(Event{}, fmt.Errorf("%s events: %w", e.name, err))
			return
		}
		going := true
		for lines := bufio.NewScanner(out); going && lines.Scan(); {
			event, err := parseEvent(lines.Bytes())
			if err != nil || event.What != "" {
				going = yield(event, err)
			}
		}
		cancel()
		if err := cmd.Wait(); err != nil && ctx.Err() == nil {
			going = going && yield(Event{}, fmt.Errorf("%s events: %w", e.name, err))
		}
		if going {
			yield(Event{}, errors.New("the engine ended its events"))
		}
	}
}

// parseEvent reads one line of Docker's or Podman's events. What concerns no
// container, or is no start or end, has no What.
func parseEvent(line []byte) (Event, error) {
	var e struct {
		Type, Status, Action string
		TimeNano             int64     `json:"timeNano"`
		Time                 eventTime `json:"time"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("the engine's events: %w", err)
	}
	what := e.Status
	switch {
	case e.Type != "container":
		return Event{}, nil
	case what == "died":
		what = "die"
	}
	if what != "start" && what != "die" {
		return Event{}, nil
	}
	at := time.Time(e.Time)
	if e.TimeNano != 0 {
		at = time.Unix(0, e.TimeNano)
	}
	return Event{what, at}, nil
}

// eventTime is a time as Podman writes it; Docker's seconds are left out, for it
// has nanoseconds besides.
type eventTime time.Time

// UnmarshalJSON implements json.Unmarshaler.
func (t *eventTime) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '"' {
		return nil
	}
	var parsed time.Time
	if err := json.Unmarshal(data, &parsed); err != nil {
		return err
	}
	*t = eventTime(parsed)
	return nil
}
