package probe

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// netlinkMessage is a request with an acknowledgement: header, body, and
// attributes that hold strings or bytes.
func netlinkMessage(typ, flags uint16, sequence uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, body...)
}

func attribute(typ uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// linkRequest makes or removes a link of kind dummy.
func linkRequest(typ, flags uint16, name string) []byte {
	body := make([]byte, unix.SizeofIfInfomsg)
	body = append(body, attribute(unix.IFLA_IFNAME, append([]byte(name), 0))...)
	body = append(body, attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("dummy")))...)
	return netlinkMessage(typ, unix.NLM_F_ACK|flags, 1, body)
}

// tableRequest makes or removes an nftables table, in a transaction.
func tableRequest(typ uint16) []byte {
	subsystem := uint16(unix.NFNL_SUBSYS_NFTABLES)
	begin := append([]byte{unix.AF_UNSPEC, 0}, binary.BigEndian.AppendUint16(nil, subsystem)...)
	table := append([]byte{unix.NFPROTO_INET, 0, 0, 0}, attribute(unix.NFTA_TABLE_NAME, []byte("exeat_probe\x00"))...)
	b := netlinkMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 1, begin)
	b = append(b, netlinkMessage(subsystem<<8|typ, unix.NLM_F_ACK|unix.NLM_F_CREATE, 2, table)...)
	return append(b, netlinkMessage(unix.NFNL_MSG_BATCH_END, 0, 3, begin)...)
}

// netlinkError reads the first acknowledgement.
func netlinkError(b []byte) error {
	if len(b) < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return errors.New("netlink: no acknowledgement")
	}
	errno := -int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:]))
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError("netlink", unix.Errno(errno))
}
