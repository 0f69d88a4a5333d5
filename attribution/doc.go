// Package attribution remembers for which names the resolver handed out an
// address, so that the proxy and the firewall can name a connection or packet
// that names nothing itself.
package attribution
