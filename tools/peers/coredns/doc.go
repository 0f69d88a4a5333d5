// Command coredns is CoreDNS with the plugins that the bench configures and no other, so that
// nothing else of its many dependencies is fetched and built.
//
// Example:
//
//	cd tools/peers && go build -o ../../bin/peers/ ./coredns
package main
