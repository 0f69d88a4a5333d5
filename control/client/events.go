package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/exeat/exeat/control/api"
)

// maxLine bounds one event; a line of the log is far shorter.
const maxLine = 1 << 20

// Events gives the events of the query, as they come. It ends after what is kept,
// or with Follow when the engine ends; an error is the last thing it gives. A
// context that ends gives its error. Breaking out of the loop closes the stream.
func (c *Client) Events(ctx context.Context, query api.EventQuery) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		stream, cancel := context.WithCancel(ctx)
		defer cancel()
		path := "/v1/events"
		if values := query.Values(); len(values) > 0 {
			path += "?" + values.Encode()
		}
		response, err := c.do(stream, http.MethodGet, path, nil, "application/x-ndjson")
		if err != nil {
			yield(api.Event{}, err)
			return
		}
		err = readEvents(response.Body, func(e api.Event) bool { return yield(e, nil) })
		cancel() // before the close, which would drain an endless body
		closeErr := response.Body.Close()
		if errors.Is(err, errBroken) {
			return
		}
		if err == nil && closeErr != nil && !errors.Is(closeErr, context.Canceled) {
			err = closeErr
		}
		if err != nil {
			yield(api.Event{}, c.unreachable(ctx, err))
		}
	}
}

// errBroken says that the loop was broken out of.
var errBroken = errors.New("the loop ended")

func readEvents(body io.Reader, yield func(api.Event) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var e api.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the engine's events: %w", err)
		}
		if !yield(e) {
			return errBroken
		}
	}
	return lines.Err()
}
