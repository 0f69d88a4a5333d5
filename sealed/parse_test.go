//go:build linux

package sealed

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketsOfTheHost(t *testing.T) {
	const text = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 100 /run/docker.sock
0000000000000000: 00000003 00000000 00000000 0001 03 101 /run/docker.sock
0000000000000000: 00000002 00000000 00000000 0002 01 102 /dev/log
0000000000000000: 00000002 00000000 00010000 0005 01 103 /run/udev/control
0000000000000000: 00000002 00000000 00010000 0001 01 104 @/tmp/.X11-unix/X0
0000000000000000: 00000002 00000000 00010000 0001 01 105 /tmp/with a  blank
0000000000000000: 00000002 00000000 00010000 0001 01 106 ./rel.sock
0000000000000000: 00000003 00000000 00000000 0001 03 107
`
	absolute, relative := parseSockets(text)
	if want := []string{"/dev/log", "/run/docker.sock", "/run/udev/control", "/tmp/with a  blank"}; !slices.Equal(absolute, want) {
		t.Errorf("got %q, want %q", absolute, want)
	}
	if want := []string{"./rel.sock"}; !slices.Equal(relative, want) {
		t.Errorf("got %q, want %q", relative, want)
	}
}

func TestAliasesOfAPath(t *testing.T) {
	mounts, err := parseMounts(`1 0 8:1 / / rw,relatime - ext4 /dev/sda rw
2 1 0:20 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw
3 1 0:20 / /srv/chroot/run rw - tmpfs tmpfs rw
4 1 0:20 /user/7 /home/a\040b/xdg ro,noexec - tmpfs tmpfs rw
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		want []string
	}{
		{"/run/user/7/bus", []string{"/run/user/7/bus", "/srv/chroot/run/user/7/bus", "/home/a b/xdg/bus"}},
		{"/home/a b/xdg/bus", []string{"/home/a b/xdg/bus", "/run/user/7/bus", "/srv/chroot/run/user/7/bus"}},
		{"/run/other", []string{"/run/other", "/srv/chroot/run/other"}},
		{"/tmp/s", []string{"/tmp/s"}},
	} {
		if got := aliases(mounts, c.path); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.path, got, c.want)
		}
	}
	if got := mounts[3].flags; got != unix.MS_RDONLY|unix.MS_NOEXEC {
		t.Errorf("flags %#x", got)
	}
	if _, err := parseMounts("1 0 8:1 /\n"); err == nil {
		t.Error("a line that is cut short was read")
	}
}

func TestNameServiceFiles(t *testing.T) {
	host := "# resolved\nnameserver 127.0.0.53\ndomain old.test\nsearch a.test b.test\noptions edns0 trust-ad ndots:2\n"
	const head = "# made by exeat; every question, whatever its destination, reaches its resolver\nnameserver 198.18.0.1\n"
	for _, c := range []struct {
		search []string
		host   string
		want   string
	}{
		{nil, host, head + "search a.test b.test\noptions ndots:2\n"},
		{[]string{}, host, head + "options ndots:2\n"},
		{[]string{"c.test"}, host, head + "search c.test\noptions ndots:2\n"},
		{nil, "", head},
	} {
		if got := resolvConf(c.host, c.search); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	for host, want := range map[string]string{
		"":                "hosts: files dns\n",
		"passwd: files\n": "passwd: files\nhosts: files dns\n",
		"hosts: mymachines resolve [!UNAVAIL=return] files dns\nnetworks: files\n": "hosts: files dns\nnetworks: files\n",
	} {
		if got := nsSwitch(host); got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

// FuzzRefused reads packets of the agent's, which is free in what it sends.
func FuzzRefused(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 203, 0, 113, 5, 0x9c, 0x40, 0, 22})
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, make([]byte, 40)...))
	f.Add([]byte{0x4f, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, from, to := readHeaders(b)
		if from.Addr().IsValid() != to.Addr().IsValid() {
			t.Errorf("half of the addresses: %v %v", from, to)
		}
		r := refusals{deliver: func(Refused) {}}
		r.datagram(b)
	})
}

func TestHeadersOfARefusedPacket(t *testing.T) {
	type headers struct {
		Protocol uint8
		From, To netip.AddrPort
	}
	read := func(b []byte) headers {
		p, from, to := readHeaders(b)
		return headers{p, from, to}
	}
	v4 := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 203, 0, 113, 5, 0x9c, 0x40, 0, 22}
	for _, c := range []struct {
		what string
		in   []byte
		want headers
	}{
		{"a SYN", v4, headers{6, netip.MustParseAddrPort("198.18.0.1:40000"), netip.MustParseAddrPort("203.0.113.5:22")}},
		{"cut before the ports", v4[:22], headers{6, netip.MustParseAddrPort("198.18.0.1:0"), netip.MustParseAddrPort("203.0.113.5:0")}},
		{"cut within the header", v4[:19], headers{}},
		{"nothing", nil, headers{}},
	} {
		if got := read(c.in); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.what, got, c.want)
		}
	}
}
