//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exeat/exeat/e2e/require"
)

// TestMain is also each of the parts that a lab starts of its own binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run", "origin", "load", "engine":
			main()
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// little is enough of everything to go through a target.
var little = size{rounds: 1, bulkBytes: 1 << 20, connections: 16, trips: 16, idle: 2 * silentFlows, beside: 8, questions: 320}

// newLittleLab is a lab with one peer, and what it says.
func newLittleLab(t *testing.T, peer string) (*lab, string) {
	require.Root(t)
	require.Tool(t, "nft")
	// A program with the race detector, as the parts are now, waits for a second as it ends.
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	var log bytes.Buffer
	l, err := newLab(t.Context(), little, []string{peer}, "", &log)
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return l, log.String()
}

func TestEveryTargetDoesWithoutPeers(t *testing.T) {
	l, _ := newLittleLab(t, "nobody")
	for _, target := range targets() {
		switch target.id {
		case "P7", "P10", "P10-exeatd", "recovery": // no peer takes part in these, and they take long
			continue
		}
		t.Run(target.id, func(t *testing.T) {
			s, err := target.measure(l)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.rows) == 0 || len(s.verdicts) == 0 {
				t.Errorf("nothing was found: %+v", s)
			}
			for _, v := range s.verdicts {
				if beside := strings.HasSuffix(v.what, "'s") && !strings.Contains(v.what, "direct"); beside == v.measured() {
					t.Errorf("%v, without the peer", v)
				}
				if target.gates != hasGates(s) {
					t.Errorf("has gates: %v, and the table of targets says %v", hasGates(s), target.gates)
				}
			}
		})
	}
}

func TestAPeerThatDoesNotWorkHereIsNotMeasured(t *testing.T) {
	for _, c := range []struct{ name, program, want string }{
		{"it says no version", "exit 1", "haproxy is not measured"},
		{"it ends at once", "echo 1.0; [ $# = 1 ]", "haproxy: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := openDir(t)
			if err := os.WriteFile(filepath.Join(dir, "haproxy"), []byte("#!/bin/sh\n"+c.program+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			l, said := newLittleLab(t, "haproxy")
			if l.named("haproxy") != nil || l.named(ours) == nil || !strings.Contains(said, c.want) || !strings.Contains(said, "not measured") {
				t.Errorf("%d peers, the lab says %q", len(l.peers), said)
			}
		})
	}
}

// openDir is a directory that the peers' uid comes to.
func openDir(t *testing.T) string {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNothingOutlivesALabThatIsKilled(t *testing.T) {
	require.Root(t)
	require.Tool(t, "nft")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command(self, "run", "-only", "P9", "-peers", "nobody", "-o", "-")
	run.Env = append(os.Environ(), "TMPDIR="+openDir(t))
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	parts := 0 // the origin, the engine, and clients that come and go
	var pids []int
	for parts < 3 {
		select {
		case err := <-ended:
			t.Fatalf("it has ended with %d parts: %v", parts, err)
		case <-time.After(time.Millisecond):
		}
		if pids, err = treeOf(run.Process.Pid); err != nil {
			continue // it is about to end, or a part has
		}
		parts = len(pids) - 1
	}
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	for _, pid := range pids[1:] {
		for began := time.Now(); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
			// An orphan is somebody else's to wait for.
			if _, fields, err := statOf(pid); err == nil && fields[0] == "Z" {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("part %d is still there", pid)
			}
		}
	}
}

func TestTheLabIsWhereEveryUIDComesTo(t *testing.T) {
	for mode, want := range map[os.FileMode]bool{0o755: true, 0o711: true, 0o750: false} {
		dir := openDir(t)
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", dir)
		if got := openTemp() == dir; got != want {
			t.Errorf("a directory of mode %o is taken: %v, want %v", mode, got, want)
		}
	}
}

func hasGates(s section) bool {
	for _, v := range s.verdicts {
		if v.weight == gating {
			return true
		}
	}
	return false
}
