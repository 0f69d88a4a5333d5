//go:build !linux

package probe

import "context"

// Case is one way of carrying a row of the catalogue out.
type Case struct {
	ID, Attack, Expected string
	Disturbs             bool
}

// Cases gives none: there is nothing to probe on this system.
func Cases() []Case { return nil }

// Child runs nothing on this system.
func Child([]string) int { return 2 }

func runCases(context.Context, Options, []Case) (Report, error) { return Report{}, ErrUnsupported }
