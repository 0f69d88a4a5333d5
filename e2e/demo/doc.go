// Command demo is `make demo`: a scripted agent under a guard whose policy is
// swapped live through three phases, in a little internet of its own. It needs no
// root, no container engine and no network, and ends with status 0 only when all
// went as expected.
//
//	go build -o bin/exeat-demo ./e2e/demo && bin/exeat-demo bin/exeat
package main
