// Package sandbox drives container engines (Docker, Podman) through their own
// command line, so that contexts, remotes and rootless set-ups work: it starts
// the sidecar, puts containers behind it, looks for what would undo the guard,
// and reaches the control socket through the engine's exec stream.
//
//	engine, err := sandbox.Find(ctx, "")
//	car, err := engine.Start(ctx, sandbox.Spec{Name: "task-17", Image: sandbox.DefaultImage})
//	c := engine.Client(car)
package sandbox
