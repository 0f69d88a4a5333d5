// Package proxy is the TCP half of the data plane: it takes connections that
// were redirected to it (or that ask for it by CONNECT or an absolute URI), reads
// what they name, has the policy judge that, dials an address that was resolved
// here for the judged name, and hands both sockets to the kernel.
//
//	p, err := proxy.New(proxy.Config{
//		Policy:  &inForce, // an atomic.Pointer[policy.Compiled]
//		Log:     log,
//		Names:   table,
//		Resolve: resolve,
//		Flows:   proxy.NewFlows(log),
//	})
//	err = p.ServeTransparent(ctx, listener)
package proxy
