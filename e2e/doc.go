// Package e2e tests the whole of exeat: the built binaries, real clients and
// real servers, in a network namespace of the test's own (package internet).
//
//	result := world.run(t, []string{"--allow", "pypi.test"}, "curl", "-sS", "https://pypi.test/")
//	result.want(t, 0, "hello from pypi.test")
package e2e
