// Package control serves the control API: HTTP/1.1 and JSON over a Unix socket in
// the file system, for the peers that its kernel credentials allow. The bodies
// are those of package api; openapi.yaml describes every call.
//
//	server, err := control.New(control.Config{Engine: engine, Log: log})
//	ln, err := control.Listen("/run/user/1000/exeat/demo.sock")
//	err = server.Serve(ctx, ln) // until ctx ends
package control
