// Package joined tests exeatd as a whole: the built binary in a network namespace
// of its own, a sandbox that shares it, and the little internet (package
// internet) at the other end of a link.
//
//	s := start(t, "--allow", "pypi.test")
//	s.refused(t, "203.0.113.66:22")
package joined
