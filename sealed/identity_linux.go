package sealed

import (
	"bufio"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// identity is who CMD is, and how the new user namespace maps to ours.
type identity struct {
	uid, gid int
	groups   []int // nil: the kernel keeps ours
	root     bool  // keeps a container's capabilities
	drop     *user.User
	uids     []syscall.SysProcIDMap
	gids     []syscall.SysProcIDMap
	// setgroups may stay allowed in the new namespace.
	setgroups bool
}

// whoIs decides as whom CMD runs: an ordinary user as themselves, root as the
// user who called sudo, or as root where nobody did or asRoot says so.
func whoIs(asRoot bool) (identity, error) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid != 0 {
		return identity{uid: uid, gid: gid, uids: only(uid), gids: only(gid)}, nil
	}
	if caller := os.Getenv("SUDO_UID"); caller != "" && caller != "0" && !asRoot {
		return sudoCaller(caller, os.Getenv("SUDO_GID"))
	}
	return rootIdentity()
}

// only maps one id to itself.
func only(id int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
}

// rootIdentity maps everything that we have to itself.
func rootIdentity() (identity, error) {
	id := identity{root: true, setgroups: setgroupsAllowed()}
	var err error
	if id.uids, err = sameMap("/proc/self/uid_map"); err != nil {
		return identity{}, err
	}
	if id.gids, err = sameMap("/proc/self/gid_map"); err != nil {
		return identity{}, err
	}
	return id, nil
}

// setgroupsAllowed reads user_namespaces(7), /proc/PID/setgroups: once denied in
// a namespace it is denied in all below.
func setgroupsAllowed() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(b)) == "allow"
}

// sameMap reads a map file and maps each range that exists here to itself.
func sameMap(path string) ([]syscall.SysProcIDMap, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []syscall.SysProcIDMap
	for s := bufio.NewScanner(f); s.Scan(); {
		var inside, outside, n int
		if _, err := fmt.Sscan(s.Text(), &inside, &outside, &n); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, s.Text(), err)
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: n})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s is empty: this user namespace has no users", path)
	}
	return out, nil
}

// sudoCaller is the user who called sudo, with the groups of the user database.
func sudoCaller(uidText, gidText string) (identity, error) {
	uid, err := strconv.ParseUint(uidText, 10, 31)
	if err != nil {
		return identity{}, fmt.Errorf("SUDO_UID is %q: %w", uidText, err)
	}
	gid, err := strconv.ParseUint(gidText, 10, 31)
	if err != nil {
		return identity{}, fmt.Errorf("SUDO_GID is %q: %w", gidText, err)
	}
	id := identity{uid: int(uid), gid: int(gid), uids: only(int(uid)), setgroups: true}
	groups := []int{id.gid}
	// A user without an entry has no other groups, and keeps the environment.
	if u, err := user.LookupId(uidText); err == nil {
		id.drop = u
		names, err := u.GroupIds()
		if err != nil {
			return identity{}, fmt.Errorf("groups of the user who called sudo: %w", err)
		}
		for _, name := range names {
			g, err := strconv.Atoi(name)
			if err != nil {
				return identity{}, fmt.Errorf("group %q of the user who called sudo: %w", name, err)
			}
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	id.groups = slices.Compact(groups)
	for _, g := range id.groups {
		id.gids = append(id.gids, only(g)...)
	}
	return id, nil
}

// credential is what the child changes to; nil where it stays who we are.
func (id identity) credential() *syscall.Credential {
	if id.groups == nil {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(id.uid), Gid: uint32(id.gid)}
	for _, g := range id.groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// environment is env, or ours as the user would have it.
func (id identity) environment(env []string) []string {
	if env != nil {
		return env
	}
	env = os.Environ()
	if id.drop == nil {
		return env
	}
	env = slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "HOME" || name == "USER" || name == "LOGNAME" || name == "MAIL"
	})
	return append(env, "HOME="+id.drop.HomeDir, "USER="+id.drop.Username, "LOGNAME="+id.drop.Username)
}
