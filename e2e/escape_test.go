//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exeat/exeat/e2e/require"
)

// TestEachWayRoundOfTheHostIsShut is bypass.md section 5 through the binary; that
// each is a way out without its defence is tested in package sealed.
func TestEachWayRoundOfTheHostIsShut(t *testing.T) {
	nft, unshare := require.Tool(t, "nft"), require.Tool(t, "unshare")
	for _, test := range []struct {
		row, line string
		status    int
		want      string
	}{
		{"B74 AF_PACKET", fmt.Sprint(agent, " socket ", unix.AF_PACKET, " ", unix.SOCK_RAW, " 0"), 1, "not permitted|not supported"},
		{"B74 AF_VSOCK", fmt.Sprint(agent, " socket ", unix.AF_VSOCK, " ", unix.SOCK_STREAM, " 0"), 1, "not permitted|not supported"},
		{"B74 AF_ALG", fmt.Sprint(agent, " socket ", unix.AF_ALG, " ", unix.SOCK_SEQPACKET, " 0"), 1, "not permitted|not supported"},
		{"B74 AF_XDP", fmt.Sprint(agent, " socket ", unix.AF_XDP, " ", unix.SOCK_RAW, " 0"), 1, "not permitted|not supported"},
		{"B74 AF_TIPC", fmt.Sprint(agent, " socket ", unix.AF_TIPC, " ", unix.SOCK_STREAM, " 0"), 1, "not permitted|not supported"},
		{"B04 raw IP", fmt.Sprint(agent, " socket ", unix.AF_INET, " ", unix.SOCK_RAW, " ", unix.IPPROTO_ICMP), 1, "not permitted"},
		{"B74 TCP is what it was", fmt.Sprint(agent, " socket ", unix.AF_INET, " ", unix.SOCK_STREAM, " 0"), 0, "made"},
		{"B74 io_uring", agent + " uring", 1, "not permitted|not implemented"},
		{"B75 rules of its own", nft + " flush ruleset", 1, "not permitted"},
		{"B75 rules from a nested namespace", unshare + " -Ur " + nft + " flush ruleset", 1, "not permitted"},
		{"B75 process 1's network", unshare + " -Ur ls -l /proc/1/ns/net", 2, "denied"},
		{"B71 /run is empty", "ls -A /run /var/run | grep -v '^/\\|^$\\|resolvconf\\|systemd' ; true", 0, ""},
		{"B71 no engine socket", "ls /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock", 2, "No such file"},
		{"B70 the control sockets are hidden", "ls -A $XDG_RUNTIME_DIR; ls $XDG_RUNTIME_DIR/exeat", 2, "No such file"},
		{"B72 nobody else looks names up", "grep ^hosts: /etc/nsswitch.conf", 0, "files dns"},
		{"B73 only its own processes", "ps -e -o pid= | wc -l", 0, ""},
		{"no capabilities that it could use", "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status", 0, "NoNewPrivs:\t1\nSeccomp:\t2"},
		{"its resolver is ours", "cat /etc/resolv.conf", 0, "nameserver 198.18.0.1"},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.row, func(t *testing.T) {
				r := guarded("--quiet").as(u).sh(t, test.line)
				r.want(t, test.status)
				if !containsOne(r.stdout+r.stderr, test.want) {
					t.Errorf("want %q: %s%s", test.want, r.stdout, r.stderr)
				}
			})
		})
	}
}

func containsOne(text, alternatives string) bool {
	for want := range strings.SplitSeq(alternatives, "|") {
		if strings.Contains(text, want) {
			return true
		}
	}
	return false
}

// TestTheControlSocketIsOutOfReach is B70: hidden and, where the path is given
// back, refused by where the peer is.
func TestTheControlSocketIsOutOfReach(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded("--allow", "pypi.test").as(u).start(t)
		l.sh(agent+" unix '"+l.socket()+"'").want(t, 1, "no such file")
		l.sh("echo '\"public\"' | "+binary+" policy set "+l.name+" -").want(t, 3)

		// Another sandbox that has the directory still is in other namespaces.
		keep := guarded("--quiet", "--keep", filepath.Dir(l.socket())).as(u)
		r := keep.sh(t, agent+" unix '"+l.socket()+"'; echo '\"public\"' | "+binary+" policy set --socket '"+l.socket()+"' -; ls "+"'"+filepath.Dir(l.socket())+"'")
		if strings.Contains(r.stdout, "in force") || strings.Contains(r.stdout, "200 OK") {
			t.Errorf("the engine obeyed a sandbox: %s%s", r.stdout, r.stderr)
		}
		l.ctl("policy", "get", l.name).want(t, 0, "pypi.test")
		l.ctl("status", l.name).want(t, 0, "generation 1")
	})
}

// TestAnotherUserMayNotUseTheControlSocket: it belongs to who started it.
func TestAnotherUserMayNotUseTheControlSocket(t *testing.T) {
	require.Root(t)
	l := guarded().start(t)
	dir := filepath.Dir(filepath.Dir(l.socket()))
	for _, path := range []string{dir, filepath.Dir(l.socket()), l.socket()} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, path := range []string{dir, filepath.Dir(l.socket())} {
			if err := os.Chmod(path, 0o700); err != nil {
				t.Error(err)
			}
		}
	}()
	other := *l
	other.user = users()[1]
	r := other.ctlWith(`"public"`, "policy", "set", "--socket", l.socket(), "-")
	r.want(t, 1, "uid")
	l.ctl("status", l.name).want(t, 0, "generation 1")
}

// TestAHostSocketIsMaskedUnlessItIsKept is B71.
func TestAHostSocketIsMaskedUnlessItIsKept(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		path := filepath.Join(directoryOf(t, u), "agent.sock")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				if _, err := io.WriteString(conn, "way out"); err == nil {
					conn.Close()
				}
			}
		}()
		r := guarded("--quiet").as(u).run(t, agent, "unix", path)
		if r.status == 0 || strings.Contains(r.stdout, "connected") {
			t.Errorf("connected to a socket of the host: %+v", r)
		}
		guarded("--quiet", "--keep", path).as(u).sh(t, agent+" unix "+path+"; true").want(t, 0, "connected")
	})
}

// TestTheEngineCanNeitherBeKilledNorRead is B73.
func TestTheEngineCanNeitherBeKilledNorRead(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		l := guarded().as(u).start(t)
		pid := l.cmd.Process.Pid
		l.sh(fmt.Sprint(agent, " kill ", pid)).want(t, 1, "no such process")
		l.sh(fmt.Sprint(agent, " ptrace ", pid)).want(t, 1, "no such process")
		l.sh(fmt.Sprint(agent, " ptrace 1")).want(t, 1, "not permitted")
		l.sh("kill -KILL -1; true").want(t, 0)
		l.ctl("status", l.name).want(t, 0, "ready")
		// From outside, by the same user: it is not dumpable.
		cmd := exec.Command(agent, "ptrace", fmt.Sprint(pid))
		attr := *users()[len(users())-1].attr
		cmd.SysProcAttr = &attr
		if u.attr.Credential != nil || os.Getuid() != 0 {
			outcome(t, cmd).want(t, 1, "not permitted")
		}
	})
}

// TestInheritedDescriptorsAreClosed is B76.
func TestInheritedDescriptorsAreClosed(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
		defer cancel()
		cmd := guarded("--quiet").as(u).command(ctx, t, agent, "write", "30")
		// High, where exeat puts nothing of its own in its place.
		cmd.ExtraFiles = make([]*os.File, 28)
		cmd.ExtraFiles[27] = write
		outcome(t, cmd).want(t, 1, "bad file descriptor")
		if err := write.Close(); err != nil {
			t.Fatal(err)
		}
		if err := read.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(read); err != nil || len(got) != 0 {
			t.Errorf("the pipe got %q, %v", got, err)
		}
	})
}

func TestASocketOnStandardInputIsWarnedOfAndADirectoryRefused(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	defer a.Close()
	defer b.Close()
	guarded("--quiet").with(a).run(t, "true").want(t, 0, "warning: standard input is a socket")
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	guarded("--quiet").with(dir).run(t, "true").want(t, 125, "standard input is a directory")
}

// TestKeystrokesAreNotForged is B78, on a terminal of script(1).
func TestKeystrokesAreNotForged(t *testing.T) {
	script := require.Tool(t, "script")
	each(t, func(t *testing.T, u user) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, script, "-qec", binary+" run --quiet --resolver 203.0.113.53 -- "+agent+" tiocsti", "/dev/null")
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirOf(t, u))
		attr := *u.attr
		cmd.SysProcAttr, cmd.Dir = &attr, scratch
		outcome(t, cmd).want(t, 1, "operation not permitted")
	})
}

// TestRootIsHeldAsInAContainer is B79.
func TestRootIsHeldAsInAContainer(t *testing.T) {
	require.Root(t)
	for _, test := range []struct{ line, want string }{
		{"echo x > /proc/sys/kernel/core_pattern", "Read-only|denied"},
		{"echo b > /proc/sysrq-trigger", "Read-only|denied|nonexistent"},
		{"echo x > /sys/kernel/uevent_helper", "Read-only|denied|No such"},
		{"mknod /tmp/exeat-e2e-node b 8 0", "not permitted"},
		{"ls /dev/kmsg /dev/mem /dev/sda", "No such file"},
		{"mount -t tmpfs none /mnt", "denied|not permitted"},
	} {
		r := guarded("--quiet").sh(t, test.line+"; exit 9")
		r.want(t, 9)
		if !containsOne(r.stdout+r.stderr, test.want) {
			t.Errorf("%s: want %s: %s%s", test.line, test.want, r.stdout, r.stderr)
		}
	}
	// Who came by sudo becomes who they were.
	s := guarded("--quiet")
	s.env = []string{"SUDO_UID=65534", "SUDO_GID=65534"}
	s.sh(t, "id -u; grep CapEff /proc/self/status").want(t, 0, "65534\n", "0000000000000000")
	s.flags = append(s.flags, "--as-root")
	s.sh(t, "id -u").want(t, 0, "0\n")
}

// TestWhatIsNotTCPIsRefusedAtOnce: B01, B09, B23 and the like have nowhere to go
// in the sealed shape, and say so in the log.
func TestWhatIsNotTCPIsRefusedAtOnce(t *testing.T) {
	for _, test := range []struct{ row, line, log string }{
		{"B01 UDP", agent + " udp 203.0.113.66:9999", "deny unlisted packet 203.0.113.66:9999/udp"},
		{"B02 UDP over IPv6", agent + " udp '[2001:db8::66]:9999'", "deny unlisted packet [2001:db8::66]:9999/udp"},
		{"B23 QUIC to an allowed name's address", agent + " udp pypi.test:443", "deny protocol packet pypi.test:443/udp"},
		{"B01 a port of no target", agent + " tcp 203.0.113.66:25", "deny unlisted packet 203.0.113.66:25"},
		{"B01 metadata", agent + " tcp 169.254.169.254:8080", "deny unlisted packet 169.254.169.254:8080"},
	} {
		each(t, func(t *testing.T, u user) {
			t.Run(test.row, func(t *testing.T) {
				s, log := guarded("--allow", "pypi.test", "--quiet").as(u).logged(t)
				r := s.sh(t, test.line)
				r.want(t, 1)
				if r.took > 10*time.Second {
					t.Errorf("it took %s and said %s", r.took, r.stdout)
				}
				log.wantOnly(t, test.log)
			})
		})
	}
}
