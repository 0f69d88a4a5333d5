//go:build linux

package torture

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// crowdOf is how many flows a process of the far side, and one of the agent's, has: it
// is the proxy that shall be the first to meet its limit of descriptors.
const crowdOf = 2500

// farPorts counts the far sides of crowds, and from where.
var farPorts atomic.Uint32

// crowd opens n flows to an address, held by processes of the agent's, with as many of
// the far side's, and says how many did open.
func (b *box) crowd(t *testing.T, n int, address string) (jobs []*job, open int) {
	t.Helper()
	for ; n > 0; n -= crowdOf {
		port := fmt.Sprint(12000 + farPorts.Add(1))
		startFarSide(t, port)
		jobs = append(jobs, b.job(t, "crowd", "-n", fmt.Sprint(min(n, crowdOf)), "-target", address, "-port", port))
	}
	for _, j := range jobs {
		open += number(t, j.says(t, "open"))
	}
	return jobs, open
}

// startFarSide starts a process that echoes what comes to a port.
func startFarSide(t *testing.T, port string) {
	t.Helper()
	cmd := exec.Command(agent, "far", "echoes", "-port", port)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "far listens\n" {
		t.Fatalf("the far side says %q, %v", line, err)
	}
}

// stillAlive ends a crowd's job and says over how many of its flows bytes went to the last.
func (j *job) stillAlive(t *testing.T) (n int) {
	t.Helper()
	for _, line := range j.stop(t) {
		if alive, ok := strings.CutPrefix(line, "alive "); ok {
			n += number(t, alive)
		}
	}
	return n
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
