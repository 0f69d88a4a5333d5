// Package torture wears exeat out: random swaps among live flows of every kind,
// checked by a packet tap against a model; kills at random moments; state that
// cannot be read or written; floods. Both shapes, the built binaries, the little
// internet (package internet) at the far side.
//
// The tests are short unless EXEAT_TORTURE is set to a factor (`make torture`):
//
//	b := startSealed(t, "--allow", "t1.torture.test")
//	flows := b.job(t, "flows", "-n", "50")
package torture
