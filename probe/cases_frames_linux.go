package probe

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const notWithoutPacket = "no packet socket without NET_RAW; with it, the egress hook drops"

// frame is what a packet socket sends.
type frame struct {
	loopback  bool
	ethertype uint16
	payload   func(*attempt) []byte
	// option is one of SOL_PACKET's, 0 for none; mark goes on the socket.
	option, mark int
}

// frameCases go below IP, which takes NET_RAW.
func frameCases() []Case {
	udpFrom := func(from func(*attempt) netip.Addr) func(*attempt) []byte {
		return func(a *attempt) []byte {
			return ipv4{proto: unix.IPPROTO_UDP, from: from(a), to: a.IPv4, payload: udpDatagram(udpPort, a.marker)}.bytes()
		}
	}
	ours := udpFrom((*attempt).rawSource)
	foreign := udpFrom(fixed("192.0.2.9"))
	plain := func(a *attempt) []byte { return []byte(a.marker) }
	tagged := func(a *attempt) []byte { return append([]byte{0, 7, 0x88, 0xb5}, a.marker...) }
	c := func(id, attack string, f frame) Case {
		return Case{ID: id, Attack: attack, Expected: notWithoutPacket, try: func(a *attempt) sight { return a.sendFrame(f) }}
	}
	return of(
		OwnCapabilities,
		c("B05", "a packet socket", frame{ethertype: unix.ETH_P_IP, payload: ours}),
		c("B05", "a packet socket past the queueing discipline", frame{ethertype: unix.ETH_P_IP, payload: ours, option: unix.PACKET_QDISC_BYPASS}),
		c("B05", "an odd ethertype", frame{ethertype: 0x88b5, payload: plain}),
		c("B05", "a VLAN tag", frame{ethertype: unix.ETH_P_8021Q, payload: tagged}),
		c("B07", "a packet socket with a guessed mark", frame{ethertype: unix.ETH_P_IP, payload: ours, mark: 0x70726f62}),
		c("B08", "an ARP payload", frame{ethertype: unix.ETH_P_ARP, payload: (*attempt).arpPayload}),
		c("B15", "a frame on lo for the kernel to forward", frame{loopback: true, ethertype: unix.ETH_P_IP, payload: foreign}),
		c("B17", "a foreign destination on lo", frame{loopback: true, ethertype: unix.ETH_P_IP, payload: ours}),
		Case{ID: "B06", Attack: "a queue of the link taken by AF_XDP", Expected: "no AF_XDP without NET_RAW; with it, every queue is held", try: xdpQueue},
	)
}

func (a *attempt) sendFrame(f frame) sight {
	link := a.link
	if f.loopback {
		var err error
		if link, err = net.InterfaceByName("lo"); err != nil {
			return unproven(err.Error(), "there is no lo")
		}
	}
	err := a.withSocket(unix.AF_PACKET, unix.SOCK_RAW, 0, func(fd int) error {
		if link == nil {
			return os.NewSyscallError("sendto", unix.ENODEV)
		}
		if f.option != 0 {
			if err := setOption(fd, unix.SOL_PACKET, f.option, 1, "SOL_PACKET"); err != nil {
				return err
			}
		}
		if f.mark != 0 {
			if err := setOption(fd, unix.SOL_SOCKET, unix.SO_MARK, f.mark, "SO_MARK"); err != nil {
				return err
			}
		}
		header := []byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1}
		if f.loopback {
			header = make([]byte, 12)
		}
		b := append(binary.BigEndian.AppendUint16(header, f.ethertype), f.payload(a)...)
		to := &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: f.ethertype<<8 | f.ethertype>>8}
		return os.NewSyscallError("sendto", unix.Sendto(fd, b, unix.MSG_DONTWAIT, to))
	})
	return a.sent(err)
}

// xdpQueue binds the first queue of the link in copy mode, from which no hook of
// nftables sees what is sent, and gives it back at once.
func xdpQueue(a *attempt) sight {
	err := a.withSocket(unix.AF_XDP, unix.SOCK_RAW, 0, func(fd int) error {
		if a.link == nil {
			return os.NewSyscallError("bind", unix.ENODEV)
		}
		return bindXDP(fd, a.link.Index)
	})
	switch {
	case err == nil:
		return leak("bound: what is sent from it passes no rule")
	case errors.Is(err, unix.EBUSY):
		return held("%s: every queue is held", err)
	}
	return a.sent(err)
}

// bindXDP gives the socket the least memory and rings that the kernel takes
// (Documentation/networking/af_xdp.rst), and binds it.
func bindXDP(fd, link int) (err error) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(page))) }()
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&page[0]))), Len: uint64(len(page)), Size: uint32(len(page))}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	runtime.KeepAlive(&reg)
	if errno != 0 {
		return os.NewSyscallError("setsockopt(XDP_UMEM_REG)", errno)
	}
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
		if err := setOption(fd, unix.SOL_XDP, ring, 1, "AF_XDP ring"); err != nil {
			return err
		}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(link)}))
}
