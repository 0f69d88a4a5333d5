// Package attribution remembers for which names the resolver handed out an
// address, so that the proxy and the firewall can name a connection or packet
// that names nothing itself. An attribution lives as long as its TTL and a grace
// after it, and while any flow uses it; the table is bounded.
//
//	table := attribution.New(attribution.Grace, nil)
//	table.Add("pypi.org", addrs, 300*time.Second) // before the answer is written
//	names := table.Names(destination)
//	release := table.Hold(destination, names[0]) // for as long as the flow is open
//	defer release()
package attribution
