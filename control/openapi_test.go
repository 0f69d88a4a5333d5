package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/gorilla/mux"

	"github.com/exeat/exeat/audit"
	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

func loadDescription(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(Description())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestEveryRouteIsDescribedAndEveryDescriptionIsARoute(t *testing.T) {
	log := audit.New(audit.Config{})
	defer func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}()
	server, err := New(Config{Engine: newEngine(t), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	var served, described []string
	err = server.router.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		if err != nil {
			return err
		}
		methods, err := route.GetMethods()
		for _, m := range methods {
			served = append(served, m+" "+path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range loadDescription(t).Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if !slices.Equal(served, described) {
		t.Errorf("served\n%s\ndescribed\n%s", strings.Join(served, "\n"), strings.Join(described, "\n"))
	}
}

func TestTheDescriptionListsEveryWord(t *testing.T) {
	schemas := loadDescription(t).Components.Schemas
	words := func(schema string) []string {
		var all []string
		for _, v := range schemas[schema].Value.Enum {
			all = append(all, v.(string))
		}
		return all
	}
	var kinds []string
	for _, k := range audit.Kinds() {
		kinds = append(kinds, string(k))
	}
	if got := words("Kind"); !slices.Equal(got, kinds) {
		t.Errorf("kinds %q, want %q", got, kinds)
	}
	for _, reason := range words("Reason") {
		if _, problems := api.ParseEventQuery(map[string][]string{"reason": {reason}}, time.Time{}); len(problems) > 0 {
			t.Errorf("reason %q: %v", reason, problems)
		}
	}
	if n := len(words("Reason")); n != 15 {
		t.Errorf("%d reasons, want the 15 of policy.md section 5", n)
	}
}

func TestTheDescriptionHasEveryMemberOfAnEvent(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	written := map[string]bool{}
	for _, kind := range audit.Kinds() {
		data, err := json.Marshal(audit.Event{
			ID: 1, Time: at, Kind: kind, DecisionID: "d", Reason: policy.ReasonRule, Rule: "r", Generation: 1, Phase: "p",
			Channel: audit.ChannelTLS, Name: "n", Addr: netip.MustParseAddr("192.0.2.1"), Port: 1, QType: "A", FlowID: "f",
			BytesOut: 1, BytesIn: 1, Duration: time.Second, Error: audit.ErrorUnreachable, Message: "m", Revoked: 1, Folded: 1, Since: at,
		})
		if err != nil {
			t.Fatal(err)
		}
		var members map[string]any
		if err := json.Unmarshal(data, &members); err != nil {
			t.Fatal(err)
		}
		for name := range members {
			written[name] = true
		}
	}
	described := loadDescription(t).Components.Schemas["Event"].Value.Properties
	for name := range described {
		if !written[name] {
			t.Errorf("%q is described and never written", name)
		}
	}
	for name := range written {
		if described[name] == nil {
			t.Errorf("%q is written and not described", name)
		}
	}
}

// exchange is one request and what it must be answered with.
type exchange struct {
	about  string
	method string
	path   string
	body   string
	header http.Header
	status int
	// has is a part of the answer.
	has string
	// invalid says that the request does not follow the description, on purpose.
	invalid bool
	before  func(*serving)
}

func exchanges() []exchange {
	lease := `{"policy": "no-network", "for": "10m", "then": "run", "phase": "evaluation", "if_generation": 3}`
	udp := `{"policy": {"network_mode": "allowlist", "allowed_hosts": [{"host": "a.example.org", "port": 53, "protocol": "udp"}]}}`
	faulty := `{"policy": {"network_mode": "allowlist", "allowed_hosts": ["a b", "ok.org", "x:0"]}, "for": "-1s", "nonsense": 1}`
	fail := func(err error) func(*serving) { return func(s *serving) { s.engine.swapErr = err } }
	return []exchange{
		{about: "the status", method: "GET", path: "/v1/status", status: 200, has: `"shape":"sealed"`},
		{about: "the capabilities, null among them", method: "GET", path: "/v1/capabilities", status: 200, has: `"icmp":null`},
		{about: "the policy in force", method: "GET", path: "/v1/policy", status: 200, has: `"generation":3`},
		{about: "a swap", method: "PUT", path: "/v1/policy", body: `{"policy": "public"}`, status: 200, has: `"revoked":2`},
		{about: "a swap with everything", method: "PUT", path: "/v1/policy", body: lease, status: 200, has: `"then":"run"`},
		{
			about: "a swap that warns", method: "PUT", path: "/v1/policy", status: 200, has: `"warnings":[{`,
			body: `{"policy": {"network_mode": "allowlist", "allowed_hosts": ["*.com"]}}`,
		},
		{
			about: "a faulty swap is told every problem", method: "PUT", path: "/v1/policy", body: faulty, status: 400, invalid: true,
			has: `"path":"policy.allowed_hosts[2]`,
		},
		{
			about: "a swap of an old generation", method: "PUT", path: "/v1/policy", body: `{"policy": "public", "if_generation": 2}`,
			status: 412, has: `"current_generation":3`,
		},
		{about: "a swap to what can't be held", method: "PUT", path: "/v1/policy", body: udp, status: 422, has: `capability-missing`},
		{
			about: "a swap that the kernel refuses", method: "PUT", path: "/v1/policy", body: `{"policy": "public"}`, status: 503,
			has: `kernel-refused`, before: fail(api.KernelRefused(errors.New("ENOMEM"), 3)),
		},
		{
			about: "a swap that fails otherwise", method: "PUT", path: "/v1/policy", body: `{"policy": "public"}`, status: 500,
			has: `internal`, before: fail(errors.New("something else")),
		},
		{
			about: "a fault in the engine", method: "PUT", path: "/v1/policy", body: `{"policy": "public"}`, status: 500,
			has: `a fault in the engine`, before: func(s *serving) { s.engine.panics = true },
		},
		{
			about: "a check says what would change", method: "POST", path: "/v1/policy/check", status: 200, has: `"diff":{"allowed":["new.example.org`,
			body: `{"policy": {"network_mode": "allowlist", "allowed_hosts": ["pypi.org", "new.example.org"]}}`,
		},
		{about: "a check of what can't be held", method: "POST", path: "/v1/policy/check", body: udp, status: 422, has: `target_udp`},
		{
			about: "an explanation", method: "POST", path: "/v1/explain", body: `{"targets": ["pypi.org", "192.0.2.1:53/udp"]}`, status: 200,
			has: `"target":"192.0.2.1:53/udp"`,
		},
		{
			about: "an explanation of nonsense", method: "POST", path: "/v1/explain", body: `{"targets": ["pypi.org", "a b"]}`, status: 400,
			has: `"path":"targets[1]"`,
		},
		{about: "no phases", method: "GET", path: "/v1/phases", status: 200, has: `"phases":[]`},
		{
			about: "phases are set", method: "PUT", path: "/v1/phases", status: 200, has: `"name":"run"`,
			body: `{"phases": [{"name": "run", "policy": "public", "source": "file"}, {"name": "step.a b.agent", "policy": "no-network"}]}`,
		},
		{
			about: "faulty phases are told every problem", method: "PUT", path: "/v1/phases", status: 400, invalid: true,
			has:  `"path":"phases[1].policy"`,
			body: `{"phases": [{"name": "public", "policy": "public"}, {"policy": "pubic", "extra": 1}, 7]}`,
		},
		{
			about: "a phase is entered", method: "POST", path: "/v1/phases/step.a%20b.agent", status: 200, has: `"phase":"step.a b.agent"`,
			before: func(s *serving) {
				s.engine.phases = []api.Phase{{Name: "step.a b.agent", Policy: policy.Document{Mode: policy.ModeNoNetwork}}}
			},
		},
		{about: "no such phase", method: "POST", path: "/v1/phases/nope", body: `{"for": "1m"}`, status: 404, has: `want one of run`},
		{about: "no lease", method: "POST", path: "/v1/lease", body: `{"for": "30s"}`, status: 409, has: `no-lease`},
		{
			about: "a lease is renewed", method: "POST", path: "/v1/lease", body: `{"for": "30s"}`, status: 200, has: `"then":"no-network"`,
			before: func(s *serving) { s.engine.state.Lease = &api.Lease{} },
		},
		{about: "a lease without an end", method: "POST", path: "/v1/lease", body: `{}`, status: 400, invalid: true, has: `"path":"for"`},
		{
			about: "events", method: "GET", path: "/v1/events?verdict=deny&reason=unlisted&reason=denied&kind=decision&name=*.example.org",
			status: 200, has: `"name":"a.example.org"`,
		},
		{
			about: "events as a browser reads them", method: "GET", path: "/v1/events", status: 200, has: "event: decision\ndata: {",
			header: http.Header{"Accept": {"text/event-stream"}},
		},
		{
			about: "a faulty filter is told every problem", method: "GET", path: "/v1/events?verdict=maybe&since=yesterday&x=1", status: 400,
			invalid: true, has: `"path":"since"`,
		},
		{about: "flows", method: "GET", path: "/v1/flows", status: 200, has: `"client":"198.18.0.1:50000"`},
		{about: "a flow is cut", method: "DELETE", path: "/v1/flows/f1", status: 204},
		{about: "no such flow", method: "DELETE", path: "/v1/flows/nope", status: 404, has: `not-found`},
		{about: "the summary", method: "GET", path: "/v1/summary", status: 200, has: `"target":"a.example.org:443"`},
		{about: "the probe", method: "POST", path: "/v1/probe", body: `{"cases": ["B01"], "safe": true}`, status: 200, has: `"verdict":"leak"`},
		{about: "health", method: "GET", path: "/v1/healthz", status: 200, has: `{"ok":true}`},
		{about: "ready", method: "GET", path: "/v1/readyz", status: 200, has: `{"ready":true}`},
		{
			about: "not ready", method: "GET", path: "/v1/readyz", status: 503, has: `"path":"resolver","message":"no upstream answers"`,
			before: func(s *serving) { s.engine.ready = false },
		},
		{
			about: "the metrics", method: "GET", path: "/v1/metrics", status: 200,
			has: `exeat_decisions_total{reason="unlisted",verdict="deny"} 1`,
		},
		{about: "the description", method: "GET", path: "/v1/openapi.yaml", status: 200, has: "openapi: 3"},
	}
}

func TestTheServerFollowsItsDescription(t *testing.T) {
	doc := loadDescription(t)
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, x := range exchanges() {
		t.Run(x.about, func(t *testing.T) {
			s := start(t, func(c *Config) { c.Prober = prober{} })
			s.log.Record(audit.Event{
				Kind: audit.KindDecision, Name: "a.example.org", Port: 443, Reason: policy.ReasonUnlisted, Channel: audit.ChannelTLS,
			})
			if x.before != nil {
				x.before(s)
			}
			route := x.drive(t, s, router)
			seen[route] = true
		})
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !seen[method+" "+path] {
				t.Errorf("%s %s is not driven", method, path)
			}
		}
	}
}

// drive makes the request over the real socket and holds both sides of it to the
// description. It gives the route.
func (x *exchange) drive(t *testing.T, s *serving, router routers.Router) string {
	t.Helper()
	request, err := http.NewRequest(x.method, "http://exeat"+x.path, strings.NewReader(x.body))
	if err != nil {
		t.Fatal(err)
	}
	if x.header != nil {
		request.Header = x.header
	}
	if x.body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	route, parameters, err := router.FindRoute(request)
	if err != nil {
		t.Fatal(err)
	}
	input := &openapi3filter.RequestValidationInput{Request: request, Route: route, PathParams: parameters}
	if err := openapi3filter.ValidateRequest(context.Background(), input); (err != nil) != x.invalid {
		t.Errorf("the description says of the request: %v", err)
	}
	request.Body = io.NopCloser(strings.NewReader(x.body))
	response, data := s.roundTrip(t, request)
	if response.StatusCode != x.status || !strings.Contains(string(data), x.has) {
		t.Errorf("status %d, %s\nwant %d with %s", response.StatusCode, data, x.status, x.has)
	}
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: response.StatusCode, Header: response.Header,
		Body: io.NopCloser(bytes.NewReader(data)), Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	output.Options.ExcludeResponseBody = !strings.HasPrefix(response.Header.Get("Content-Type"), "application/json")
	if err := openapi3filter.ValidateResponse(context.Background(), output); err != nil {
		t.Errorf("the description says of the answer: %v", err)
	}
	if isNDJSON(response) {
		followSchema(t, data, route.Spec.Components.Schemas["Event"].Value)
	}
	return x.method + " " + route.Path
}

func isNDJSON(r *http.Response) bool { return r.Header.Get("Content-Type") == "application/x-ndjson" }

func followSchema(t *testing.T, lines []byte, schema *openapi3.Schema) {
	t.Helper()
	for line := range bytes.Lines(lines) {
		var v any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		if err := schema.VisitJSON(v); err != nil {
			t.Errorf("event %s: %v", line, err)
		}
	}
}

func (s *serving) roundTrip(t testing.TB, request *http.Request) (*http.Response, []byte) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.path)
	}}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return response, data
}
