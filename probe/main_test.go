package probe

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(Child(os.Args[2:]))
	}
	if os.Getenv(insideVariable) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

const insideVariable = "EXEAT_PROBE_TEST_INSIDE"
