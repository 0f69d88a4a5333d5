package sealed

import "golang.org/x/sys/unix"

var hostArchitecture = architecture{
	audit:  unix.AUDIT_ARCH_AARCH64,
	socket: unix.SYS_SOCKET, socketpair: unix.SYS_SOCKETPAIR, ioctl: unix.SYS_IOCTL, ioURingSetup: unix.SYS_IO_URING_SETUP,
	keys: [3]uint32{unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL},
}
