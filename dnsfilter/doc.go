// Package dnsfilter is the sandbox's only resolver. Every question is judged
// before any packet leaves: a denied one is answered here, with the reason in an
// Extended DNS Error (RFC 8914) and in the log; an allowed one is rebuilt from
// nothing and asked of upstreams that the sandbox cannot choose. Answers are
// checked address by address, and who was told which address is written to the
// attribution table and the kernel's sets before the answer goes out.
//
// One parser reads what clients send (question.go), one function judges it
// (judge.go), one writer answers it on the wire (respond.go), over UDP and TCP,
// from the cache and from upstream. Replies of upstreams are unpacked by
// miekg/dns and repacked from the few records that belong to the question.
//
//	server, err := dnsfilter.New(dnsfilter.Config{
//		Policy:    &inForce, // atomic.Pointer[policy.Compiled]
//		Log:       log,
//		Names:     names,
//		Upstreams: []dnsfilter.Upstream{upstream},
//	})
//	…
//	err = server.Serve(ctx, packetConns, listeners)
package dnsfilter
