package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

// ErrUnreachable says that no engine answered. What an engine refuses is an
// *api.Error instead.
var ErrUnreachable = errors.New("the sandbox's control socket can't be reached")

// maxAnswer bounds an answer that is read whole: a policy of the largest size
// and what comes with it, or 50,000 counters.
const maxAnswer = 64 << 20

// Client calls one engine. Its methods are safe for concurrent use.
type Client struct {
	http  *http.Client
	where string
}

// New makes a client of the engine whose socket is at path.
func New(path string) *Client {
	return NewDialer(path, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	})
}

// NewDialer makes a client that reaches the engine by dial; where names it in
// messages.
func NewDialer(where string, dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{where: where, http: &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
		Proxy:              nil, // HTTP_PROXY has no say in this
	}}}
}

// Close closes what connections are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status is GET /v1/status.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return get[api.Status](ctx, c, "/v1/status")
}

// Capabilities is GET /v1/capabilities.
func (c *Client) Capabilities(ctx context.Context) (policy.Capabilities, error) {
	return get[policy.Capabilities](ctx, c, "/v1/capabilities")
}

// Policy is GET /v1/policy.
func (c *Client) Policy(ctx context.Context) (api.PolicyState, error) {
	return get[api.PolicyState](ctx, c, "/v1/policy")
}

// Swap is PUT /v1/policy: when it returns nil, the new policy is in force whole.
func (c *Client) Swap(ctx context.Context, req api.SwapRequest) (api.SwapResult, error) {
	return send[api.SwapResult](ctx, c, http.MethodPut, "/v1/policy", req)
}

// SwapDocument is Swap with the policy as it was written, so that the engine
// finds the problems and names them as the author wrote them. req.Policy is not
// looked at.
func (c *Client) SwapDocument(ctx context.Context, document []byte, req api.SwapRequest) (api.SwapResult, error) {
	var zero api.SwapResult
	if !json.Valid(document) {
		return zero, api.Invalid([]policy.Problem{{Path: "policy", Message: "is not JSON"}})
	}
	body := struct {
		Policy json.RawMessage `json:"policy"`
		api.EnterRequest
		Phase string `json:"phase,omitempty"`
	}{document, api.EnterRequest{IfGeneration: req.IfGeneration, For: req.For, Then: req.Then}, req.Phase}
	return send[api.SwapResult](ctx, c, http.MethodPut, "/v1/policy", body)
}

// Check is POST /v1/policy/check.
func (c *Client) Check(ctx context.Context, document policy.Document) (api.CheckResult, error) {
	return send[api.CheckResult](ctx, c, http.MethodPost, "/v1/policy/check", api.CheckRequest{Policy: &document})
}

// Explain is POST /v1/explain; the answers are in the order of the targets.
func (c *Client) Explain(ctx context.Context, targets ...string) ([]api.Explanation, error) {
	result, err := send[api.ExplainResult](ctx, c, http.MethodPost, "/v1/explain", api.ExplainRequest{Targets: targets})
	return result.Explanations, err
}

// Phases is GET /v1/phases.
func (c *Client) Phases(ctx context.Context) (api.Phases, error) {
	return get[api.Phases](ctx, c, "/v1/phases")
}

// SetPhases is PUT /v1/phases.
func (c *Client) SetPhases(ctx context.Context, phases []api.Phase) (api.Phases, error) {
	return send[api.Phases](ctx, c, http.MethodPut, "/v1/phases", api.Phases{Phases: phases})
}

// EnterPhase is POST /v1/phases/{name}.
func (c *Client) EnterPhase(ctx context.Context, name string, req api.EnterRequest) (api.SwapResult, error) {
	return send[api.SwapResult](ctx, c, http.MethodPost, "/v1/phases/"+url.PathEscape(name), req)
}

// RenewLease is POST /v1/lease.
func (c *Client) RenewLease(ctx context.Context, d api.Duration) (api.Lease, error) {
	return send[api.Lease](ctx, c, http.MethodPost, "/v1/lease", api.LeaseRequest{For: d})
}

// Flows is GET /v1/flows.
func (c *Client) Flows(ctx context.Context) ([]api.Flow, error) {
	list, err := get[api.FlowList](ctx, c, "/v1/flows")
	return list.Flows, err
}

// CutFlow is DELETE /v1/flows/{id}.
func (c *Client) CutFlow(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/flows/"+url.PathEscape(id), nil)
	return err
}

// Summary is GET /v1/summary.
func (c *Client) Summary(ctx context.Context) (api.Summary, error) {
	return get[api.Summary](ctx, c, "/v1/summary")
}

// Probe is POST /v1/probe: what can be tried from beside the sandbox. It takes
// seconds, and more on a busy machine.
func (c *Client) Probe(ctx context.Context, req api.ProbeRequest) (api.ProbeReport, error) {
	return send[api.ProbeReport](ctx, c, http.MethodPost, "/v1/probe", req)
}

// Health is GET /v1/healthz: nil where an engine answers.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodGet, "/v1/healthz", nil)
	return err
}

// Ready is GET /v1/readyz: nil when ready, an *api.Error with CodeNotReady that
// names the parts when not.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodGet, "/v1/readyz", nil)
	return err
}

// Metrics is GET /v1/metrics, in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	return c.call(ctx, http.MethodGet, "/v1/metrics", nil)
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	return decode[T](c.call(ctx, http.MethodGet, path, nil))
}

func send[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	data, err := json.Marshal(body)
	if err != nil {
		var zero T
		return zero, fmt.Errorf("encode the request: %w", err)
	}
	return decode[T](c.call(ctx, method, path, data))
}

func decode[T any](data []byte, err error) (T, error) {
	var answer T
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return answer, fmt.Errorf("the engine's answer: %w", err)
	}
	return answer, nil
}

// call makes one request and reads the answer whole.
func (c *Client) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	response, err := c.do(ctx, method, path, body, "application/json")
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	err = errors.Join(err, response.Body.Close())
	switch {
	case err != nil:
		return nil, c.unreachable(ctx, err)
	case len(data) > maxAnswer:
		return nil, fmt.Errorf("the engine's answer is over %d bytes", maxAnswer)
	}
	return data, nil
}

// do makes one request; an answer that is no success is an error. The caller
// closes the body.
func (c *Client) do(ctx context.Context, method, path string, body []byte, accept string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://exeat"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("control request: %w", err)
	}
	request.Header.Set("Accept", accept)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	return nil, c.refusal(ctx, response)
}

// refusal reads the error of an answer.
func (c *Client) refusal(ctx context.Context, response *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return c.unreachable(ctx, err)
	}
	refused := &api.Error{}
	if json.Unmarshal(data, refused) != nil || refused.Code == "" {
		return &api.Error{
			Status: response.StatusCode, Code: api.CodeInternal,
			Message: fmt.Sprintf("%s answered %s: %s", c.where, response.Status, strings.TrimSpace(string(data[:min(len(data), 200)]))),
		}
	}
	return refused
}

// unreachable tells an engine that does not answer from a caller who gave up.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("%s: %w", c.where, cause)
	}
	var inner *url.Error // its text repeats a made-up URL
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("%w: %s: %w", ErrUnreachable, c.where, err)
}
