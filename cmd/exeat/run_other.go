//go:build !linux

package main

import (
	"context"

	"github.com/exeat/exeat/sealed"
)

func atStart() {}

func (s *streams) runSealed(context.Context, runInput) error { return sealed.ErrUnsupported }
