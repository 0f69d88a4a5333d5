//go:build linux

package sealed

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Init()
	goleak.VerifyTestMain(m)
}
