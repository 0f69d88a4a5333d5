// Package internet is the little internet of the demo and of the end-to-end
// tests: a network namespace whose loopback carries documentation ranges, with a
// DNS server, TLS and HTTP origins under a throw-away authority, a server-first
// service and a git server, all real servers on real sockets.
//
//	inside, status, err := internet.Isolate(internet.KeepUser)
//	if !inside { os.Exit(status) }
//	world, err := internet.Start(ctx, internet.Standard())
//	defer world.Close()
package internet
