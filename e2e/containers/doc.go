// Package containers tests the sidecar with real container engines: Docker and
// Podman, started by the tests in namespaces of their own, with images that are
// built FROM scratch or from a debootstrap folder. Nothing is pulled, and nothing
// of it is left on the machine.
//
//	CI=true go test ./e2e/containers -run TestBothFamilies
package containers
