// Package client calls the control API of one engine, over its Unix socket or
// over any stream that reaches it.
//
//	c := client.New("/run/user/1000/exeat/demo.sock")
//	defer c.Close()
//	status, err := c.Status(ctx)
//	if errors.Is(err, client.ErrUnreachable) {
//		os.Exit(3)
//	}
//	for event, err := range c.Events(ctx, api.EventQuery{Follow: true}) {
//		…
//	}
package client
