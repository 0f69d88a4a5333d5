//go:build linux && image

package main

import (
	"context"
	"os"

	"github.com/exeat/exeat/cmd/exeat/cli"
)

// exeat is the command of that name, which the image has in the same binary.
func exeat(ctx context.Context) (status int, ours bool) {
	return cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr), true
}
