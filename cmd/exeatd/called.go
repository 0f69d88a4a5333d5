//go:build linux

package main

import (
	"context"
	"os"
	"path"

	"github.com/exeat/exeat/sandbox/inside"
)

// calledOtherwise runs what this binary is by another name (the image has it under
// several: packages cli and inside). ours is false where it was called as exeatd.
func calledOtherwise(ctx context.Context) (status int, ours bool) {
	if path.Base(os.Args[0]) == "exeat" {
		return exeat(ctx)
	}
	program, ok := inside.Find(os.Args[0])
	if !ok {
		return 0, false
	}
	return program(ctx, inside.Call{
		Args: os.Args[1:], Env: os.Getenv, In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
	}), true
}
