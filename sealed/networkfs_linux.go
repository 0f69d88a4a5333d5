package sealed

import (
	"fmt"
	"slices"
	"strings"
)

// networkFiles warns of every file system that is another machine's: the command
// has the user's files, and what it writes there leaves this one.
func networkFiles(mounts []mountPoint) (warnings []string) {
	kinds := []string{
		"nfs", "nfs4", "cifs", "smb3", "ceph", "afs", "autofs", "davfs",
		"fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.davfs2",
	}
	for _, m := range mounts {
		if slices.Contains(kinds, m.fstype) && !strings.HasPrefix(m.at, "/proc/") {
			warnings = append(warnings, fmt.Sprintf("%s (%s) is another machine's: what is read or written there is not held", m.at, m.fstype))
		}
	}
	return warnings
}
