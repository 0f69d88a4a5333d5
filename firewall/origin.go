package firewall

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Questioned says which resolver a DNS question over UDP was sent to, before the
// rules brought it to us; false where the kernel knows of none from client.
func (k *Kernel) Questioned(client netip.AddrPort) (resolver netip.AddrPort, known bool, err error) {
	err = k.sock.dump(ctGet, unix.NLM_F_DUMP, nfgen(unix.AF_UNSPEC, 0), func(_ unix.NlMsghdr, data []byte) error {
		if len(data) < 4 {
			return errShortMessage
		}
		var one flow
		var tupleErr error
		err := attributes(data[4:], func(typ uint16, b []byte) {
			if typ == ctTupleOrig {
				one, tupleErr = parseTuple(b)
			}
		})
		if err != nil || tupleErr != nil {
			return err // a flow of another family is none of ours
		}
		if (one.proto == unix.IPPROTO_UDP || one.proto == unix.IPPROTO_TCP) && one.local == client && one.remote.Port() == 53 {
			resolver, known = one.remote, true
		}
		return nil
	})
	return resolver, known, err
}
