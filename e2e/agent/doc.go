// Command agent is the program that the end-to-end tests run inside sandboxes: an
// ordinary Go client that knows nothing of exeat, and the attempts at ways round
// that no common tool can make. It prints one line an attempt.
//
//	exeat run --allow pypi.test -- agent get https://pypi.test/
//	exeat run --allow pypi.test -- agent socket 17 3 0
package main
