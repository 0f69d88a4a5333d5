// Package bypass runs the whole catalogue of ways round (package probe, rows B01
// to B79) against the enforcement: the packets in a laboratory whose far side
// counts markers, under three capability sets, and the names and the host's own
// ways out in a sealed sandbox. Every case is first shown to get out where
// nothing is enforced.
//
//	go test ./e2e/bypass
package bypass
