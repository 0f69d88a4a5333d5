// Package lab is the laboratory that the end-to-end suites share: the built
// binaries in a namespace with the little internet (package internet), network
// namespaces for sandboxes and sidecars, an exeatd in one, and a ring that notes
// what is put on a link.
//
//	func TestMain(m *testing.M) {
//		os.Exit(lab.Main{Name: "e2e/joined", Build: []string{"../../cmd/exeatd"}, Inside: inside}.Run(m))
//	}
//
//	s := lab.Prepare(t, binary, "--allow", "pypi.test")
//	s.Begin(t)
//	s.AwaitReady(t)
//	conn, err := s.Dial("tcp", "203.0.113.10:443")
package lab
