//go:build !linux && !image

package cli

import (
	"context"

	"github.com/exeat/exeat/sealed"
)

func atStart() {}

func (s *streams) runSealed(context.Context, runInput) error { return sealed.ErrUnsupported }
