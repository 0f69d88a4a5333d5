// Package sealed runs a command where there is no way out but ours: new user,
// network, mount, PID and IPC namespaces with loopback only, in which every TCP
// connection and every DNS question is redirected to listeners that are made
// inside and handed out to the engine. The engine stays outside and dials with
// the host's network. No root and no container engine is needed.
//
// The binary executes itself as process 1 of the new namespaces, so its main
// (and TestMain) must begin with Init:
//
//	func main() {
//		sealed.Init()
//		…
//		box, err := sealed.Start(ctx, sealed.Spec{Args: []string{"make", "test"}})
//		if err != nil {
//			return 125
//		}
//		defer box.Close()
//		go proxy.ServeTransparent(ctx, box.TCP()…)
//		err = box.Release() // CMD starts here, never before
//		status, err := box.Wait()
//	}
package sealed
