//go:build linux

package sealed

import (
	"slices"
	"testing"
)

func TestFileSystemsOfOtherMachinesAreNamed(t *testing.T) {
	mounts, err := parseMounts(`22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:40 / /home/ann rw,nosuid - nfs4 server:/ann rw
24 22 0:41 / /mnt/with\040blank rw - fuse.sshfs me@there:/ rw
25 22 0:42 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/home/ann (nfs4) is another machine's: what is read or written there is not held",
		"/mnt/with blank (fuse.sshfs) is another machine's: what is read or written there is not held",
	}
	if got := networkFiles(mounts); !slices.Equal(got, want) {
		t.Errorf("warnings %q", got)
	}
}
