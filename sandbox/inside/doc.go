// Package inside is what the sidecar's binary does besides when it is called by
// another name, through an engine's exec: reach the control socket, and stand in
// for Harbor's egress sidecar (its command network-policy, and as much of test and
// sh as a health check takes, for the image has neither).
//
//	if program, ok := inside.Find(os.Args[0]); ok {
//		os.Exit(program(ctx, inside.Call{Args: os.Args[1:], Env: os.Getenv, …}))
//	}
package inside
