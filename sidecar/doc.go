// Package sidecar is the engine: it holds the policy in force, swaps it whole,
// and stands the resolver, the proxy, the log and the control API up around it,
// in whatever shape a command gives it (sealed or joined). In the joined shape Keep
// is process 1, which holds what must outlive a crash, and Work the process that it
// starts, and starts again.
//
//	engine, err := sidecar.New(sidecar.Config{Shape: sidecar.Sealed, Policy: doc, …})
//	err = engine.Serve(ctx, sidecar.Listeners{…})
package sidecar
