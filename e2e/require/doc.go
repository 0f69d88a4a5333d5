// Package require says what a test needs of the machine it runs on. Where that
// is missing the test is skipped, loudly; under CI=true (or EXEAT_CI=true) it
// fails instead, so that a green run has run everything. Every skip in the tree
// goes through it, and `make test` lists them at its end.
//
//	func TestGitClone(t *testing.T) {
//		require.UserNamespaces(t)
//		git := require.Tool(t, "git")
package require
