//go:build !linux

package require

import "testing"

// UserNamespaces skips the test: only Linux has them.
func UserNamespaces(t testing.TB) {
	t.Helper()
	Skip(t, "needs Linux user namespaces")
}
