//go:build linux

package sidecar

import (
	"context"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/policy"
)

// Explain decides req by the policy in force, with the attributions of its
// address.
func (e *Engine) Explain(_ context.Context, req policy.Request) (api.Explanation, error) {
	if req.Addr.IsValid() {
		req.Attributed = e.config.Names.Names(req.Addr)
	}
	out := api.Explanation{
		Name: req.Name, Addr: req.Addr, Port: req.Port, Protocol: req.Protocol.String(), Attributed: req.Attributed,
	}
	c := e.inForce.Load()
	if c == nil {
		out.Reason = policy.ReasonUnprotected
		return out, nil
	}
	d := c.Decide(req)
	out.Verdict, out.Rule, out.Reason, out.Generation = d.Verdict, d.Rule, d.Reason, d.Generation
	return out, nil
}
