// Package cli is the command exeat: flags, wiring, exit status; one file a
// command. With the build tag "image" it is what the sidecar's image has of it,
// linked into exeatd: the commands speak to the sidecar that they are in, and
// those that need a container engine, or start something, only say so.
//
//	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
package cli
