package control

import (
	"bytes"
	_ "embed" // the description is part of the server
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/gorilla/mux"

	"github.com/exeat/exeat/control/api"
)

//go:embed openapi.yaml
var description []byte

// Description is the OpenAPI 3 document of the API, in YAML.
func Description() []byte { return bytes.Clone(description) }

// call answers one request; an error is answered for it.
type call func(w http.ResponseWriter, r *http.Request) error

// routes are those of openapi.yaml: a test holds the two together.
func (s *Server) routes() *mux.Router {
	router := mux.NewRouter().UseEncodedPath().SkipClean(true)
	for _, route := range []struct {
		method, path string
		call         call
	}{
		{"GET", "/v1/status", s.getStatus},
		{"GET", "/v1/capabilities", s.getCapabilities},
		{"GET", "/v1/policy", s.getPolicy},
		{"PUT", "/v1/policy", s.putPolicy},
		{"POST", "/v1/policy/check", s.checkPolicy},
		{"POST", "/v1/explain", s.explain},
		{"GET", "/v1/phases", s.getPhases},
		{"PUT", "/v1/phases", s.putPhases},
		{"POST", "/v1/phases/{name}", s.enterPhase},
		{"POST", "/v1/lease", s.renewLease},
		{"GET", "/v1/events", s.getEvents},
		{"GET", "/v1/flows", s.getFlows},
		{"DELETE", "/v1/flows/{id}", s.cutFlow},
		{"GET", "/v1/summary", s.getSummary},
		{"POST", "/v1/probe", s.probe},
		{"GET", "/v1/healthz", s.healthz},
		{"GET", "/v1/readyz", s.readyz},
		{"GET", "/v1/metrics", s.getMetrics},
		{"GET", "/v1/openapi.yaml", s.getDescription},
	} {
		router.Handle(route.path, s.handle(route.call)).Methods(route.method)
	}
	router.NotFoundHandler = s.handle(noSuchCall)
	router.MethodNotAllowedHandler = s.handle(noSuchMethod)
	return router
}

func noSuchCall(_ http.ResponseWriter, r *http.Request) error {
	return &api.Error{
		Status: http.StatusNotFound, Code: api.CodeNotFound,
		Message: fmt.Sprintf("no call %q: GET /v1/openapi.yaml describes all", r.URL.Path),
	}
}

func noSuchMethod(_ http.ResponseWriter, r *http.Request) error {
	return &api.Error{
		Status: http.StatusMethodNotAllowed, Code: api.CodeMethod,
		Message: fmt.Sprintf("no %s of %q: GET /v1/openapi.yaml describes all calls", r.Method, r.URL.Path),
	}
}

// handle puts the permission check before every call, and answers its error.
func (s *Server) handle(f call) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused := permissionOf(r.Context()); refused != nil {
			s.fail(w, &api.Error{Status: http.StatusForbidden, Code: api.CodeForbidden, Message: refused.Error()})
			return
		}
		body := &boundedBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), ctx: r.Context(), through: s.large}
		defer body.leave()
		r.Body = body
		started := &startedWriter{ResponseWriter: w}
		defer s.survive(started)
		err := f(started, r)
		switch {
		case err == nil:
		case started.started: // too late for an answer: the peer went away, most likely
			s.errorLog().Printf("control: %s %q: %v", r.Method, r.URL.Path, err)
		default:
			s.fail(w, err)
		}
	})
}

// survive keeps a panic in one call from being the end of the engine.
func (s *Server) survive(w *startedWriter) {
	cause := recover()
	switch {
	case cause == nil:
		return
	case cause == http.ErrAbortHandler || w.started:
		panic(cause) // net/http logs it and closes the connection
	}
	s.errorLog().Printf("control: panic: %v\n%s", cause, debug.Stack())
	s.fail(w, fmt.Errorf("a fault in the engine: %v", cause))
}

// startedWriter knows whether an answer has begun.
type startedWriter struct {
	http.ResponseWriter
	started bool
}

// WriteHeader begins the answer.
func (w *startedWriter) WriteHeader(status int) {
	w.started = true
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the answer and writes.
func (w *startedWriter) Write(p []byte) (int, error) {
	w.started = true
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *startedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// fail answers with err.
func (s *Server) fail(w http.ResponseWriter, err error) {
	var answer *api.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &answer):
	case errors.As(err, &tooLarge):
		answer = &api.Error{
			Status: http.StatusRequestEntityTooLarge, Code: api.CodeTooLarge,
			Message: fmt.Sprintf("the body is over %d bytes", tooLarge.Limit),
		}
	default:
		answer = &api.Error{Status: http.StatusInternalServerError, Code: api.CodeInternal, Message: err.Error()}
	}
	if writeErr := writeJSON(w, answer.Status, answer); writeErr != nil {
		s.errorLog().Printf("control: answering %q: %v", strings.TrimSpace(err.Error()), writeErr)
	}
}

// writeJSON answers with v, encoded before the header goes out.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err = w.Write(append(body, '\n'))
	return err
}
