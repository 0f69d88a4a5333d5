package sealed

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h). The low half of an argument
// lies first on both architectures that we know; the kernel reads an int or an
// unsigned int from it alone, so that is what must be compared: a comparison of
// all 64 bits would be passed by setting one above.
const (
	seccompNr   = 0
	seccompArch = 4
	seccompArg0 = 16
	seccompArg1 = 24
	seccompArg2 = 32
)

const (
	seccompAllow = 0x7fff0000
	seccompKill  = 0x80000000 // the process, not the thread
	seccompErrno = 0x00050000
)

// x32Bit marks system calls of the x32 ABI, whose architecture is x86-64's.
const x32Bit = 0x40000000

// protocolSMC is IPPROTO_SMC: an SMC socket under the name of an internet one.
const protocolSMC = 256

type architecture struct {
	audit, socket, socketpair, ioctl, ioURingSetup uint32
	// keys are add_key, request_key and keyctl. The kernel carries a request_key
	// (of type dns_resolver above all) to /sbin/request-key in the host's own
	// namespaces, and the session's keyring is one with the host's (keyrings(7)).
	keys [3]uint32
}

// filterProgram refuses the system calls that reach past the network namespace
// (bypass B74, B78); everything else is allowed. go-seccomp-bpf compares whole
// arguments only, which is why this one is assembled here.
func filterProgram(a architecture) []bpf.Instruction {
	refuse := func(e unix.Errno) bpf.Instruction { return bpf.RetConstant{Val: seccompErrno | uint32(e)} }
	nr := func(call uint32, block []bpf.Instruction) []bpf.Instruction {
		return append([]bpf.Instruction{
			bpf.LoadAbsolute{Off: seccompNr, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: uint8(len(block))},
		}, block...)
	}
	families := func() []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: seccompArg0, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 6},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_NETLINK, SkipTrue: 5},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 1},
			refuse(unix.EAFNOSUPPORT),
			bpf.LoadAbsolute{Off: seccompArg2, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolSMC, SkipTrue: 1},
			bpf.RetConstant{Val: seccompAllow},
			refuse(unix.EPROTONOSUPPORT),
		}
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: seccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1},
		bpf.RetConstant{Val: seccompKill},
		bpf.LoadAbsolute{Off: seccompNr, Size: 4},
		// -1 is no call at all: what a tracer skips, and ENOSYS.
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: ^uint32(0), SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: x32Bit, SkipTrue: 1},
		bpf.RetConstant{Val: seccompKill},
	}
	program = append(program, nr(a.socket, families())...)
	program = append(program, nr(a.socketpair, families())...)
	program = append(program, nr(a.ioctl, []bpf.Instruction{
		bpf.LoadAbsolute{Off: seccompArg1, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCSTI, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCLINUX, SkipTrue: 1},
		bpf.RetConstant{Val: seccompAllow},
		refuse(unix.EPERM),
	})...)
	program = append(program, nr(a.ioURingSetup, []bpf.Instruction{refuse(unix.EPERM)})...)
	for _, call := range a.keys {
		// As in a kernel without CONFIG_KEYS, which programs know how to do without.
		program = append(program, nr(call, []bpf.Instruction{refuse(unix.ENOSYS)})...)
	}
	return append(program, bpf.RetConstant{Val: seccompAllow})
}

// installFilter puts the filter on the calling thread; what it starts inherits
// it. no_new_privs must be set.
func installFilter() error {
	raw, err := bpf.Assemble(filterProgram(hostArchitecture))
	if err != nil {
		return fmt.Errorf("assemble the seccomp filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
