//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/exeat/exeat/e2e/internet"
	"github.com/exeat/exeat/e2e/lab"
)

// otherUser is the ordinary user that root runs half of the tests as.
const otherUser = 65534

// world is the little internet that all tests share.
var world *internet.World

// binary is the exeat under test, agent the program of package agent; scratch is
// a directory that every user may enter.
var binary, agent, scratch string

func TestMain(m *testing.M) {
	os.Exit(lab.Main{Name: "e2e", Build: []string{"../cmd/...", "./agent"}, Inside: inside}.Run(m))
}

func inside(dir string, w *internet.World, run func() int) int {
	world, scratch = w, dir
	binary, agent = filepath.Join(dir, "exeat"), filepath.Join(dir, "agent")
	return run()
}

// user says whom a sandbox is started by.
type user struct {
	name string
	attr *syscall.SysProcAttr
}

// users are whom this test run can start sandboxes as: the one it runs as and,
// when that is root, an ordinary user too.
func users() []user {
	self := user{"uid " + strconv.Itoa(os.Getuid()), &syscall.SysProcAttr{}}
	if os.Getuid() != 0 {
		return []user{self}
	}
	return []user{self, {"uid " + strconv.Itoa(otherUser), &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser},
	}}}
}
