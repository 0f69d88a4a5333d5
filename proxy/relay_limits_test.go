//go:build linux

package proxy

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openDescriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list) - 1 // the one that reads the list
}

// warmUp has the workers and the pipes of one flow made, so that what a test
// counts afterwards is flows alone.
func warmUp(t testing.TB, flows *Flows) {
	t.Helper()
	r := startRelayed(t, flows)
	if err := exchange(r.client, r.server, 1, 1<<20, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(t); err != nil {
		t.Fatal(err)
	}
	r.client.Close()
	r.server.Close()
}

func TestAnIdleTunnelHoldsTwoDescriptorsAndNoGoroutine(t *testing.T) {
	flows, _ := newTestFlows(t)
	warmUp(t, flows)
	descriptors, goroutines := openDescriptors(t), runtime.NumGoroutine()
	const tunnels = 50
	for range tunnels {
		r := startRelayed(t, flows)
		if err := echoOnce(r); err != nil {
			t.Fatal(err)
		}
	}
	// Two of each tunnel's four sockets are the test's own; so are its listeners.
	if got := openDescriptors(t) - descriptors - 3*tunnels; got != 2*tunnels {
		t.Errorf("%d tunnels hold %d descriptors, want %d", tunnels, got, 2*tunnels)
	}
	if got := runtime.NumGoroutine() - goroutines; got > 0 {
		t.Errorf("%d tunnels hold %d goroutines, want none", tunnels, got)
	}
}

func TestShortFlowsLeakNoDescriptor(t *testing.T) {
	flows, events := newTestFlows(t)
	ln := loopbackListener(t)
	warmUp(t, flows)
	before := openDescriptors(t)
	const short = 3000
	for i := range short {
		r, err := newRelayed(flows, ln)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			err = exchange(r.client, r.server, uint64(i), 100, 1000)
		case 1:
			r.client.SetLinger(0)
		case 2:
			_, err = r.server.Write(noise()[:200<<10]) // never read
		}
		if err != nil {
			t.Fatal(err)
		}
		r.client.Close()
		r.server.Close()
		<-r.ended
	}
	if after := openDescriptors(t); after > before+8 { // a pipe more may be pooled
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
	if n := len(events.all()); n != short+1 {
		t.Errorf("%d flows recorded, want %d", n, short+1)
	}
}

// TestRelayWithoutADescriptorToSpare has every call that makes one fail.
func TestRelayWithoutADescriptorToSpare(t *testing.T) {
	flows, _ := newTestFlows(t)
	warm := startRelayed(t, flows) // the workers, but no pipe
	if err := echoOnce(warm); err != nil {
		t.Fatal(err)
	}
	client, a := tcpPair(t)
	b, server := tcpPair(t)
	defer client.Close()
	defer server.Close()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: 3, Max: limit.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	if fd, err := unix.Dup(1); err == nil {
		closeDescriptor(fd)
		t.Fatal("there is a descriptor to spare")
	}
	f := flows.Register(testFlow(), nil)
	ended := make(chan error, 1)
	Start(f, a, b, func(err error) { ended <- err })
	if err := exchange(client, server, 5, 8<<20, 8<<20); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the relay ended with %v", err)
	}
	f.End(nil)
}

func TestRelayWithoutPipesCopies(t *testing.T) {
	flows, _ := newTestFlows(t)
	warmUp(t, flows)
	flows.Close()
	fresh, _ := newTestFlows(t)
	if _, err := fresh.worker(); err != nil {
		t.Fatal(err)
	}
	for _, w := range fresh.workers { // no tunnel is there yet, so nobody looks
		w.pipes.bigMax, w.pipes.smallMax = 0, 0
	}
	r := startRelayed(t, fresh)
	if err := exchange(r.client, r.server, 9, 16<<20, 16<<20); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

// TestHeldUpFlowsHoldLittle has many clients that read nothing of what they are
// sent, and more held up than may be held.
func TestHeldUpFlowsHoldLittle(t *testing.T) {
	flows, _ := newTestFlows(t)
	if _, err := flows.worker(); err != nil {
		t.Fatal(err)
	}
	workers := flows.workers
	for _, w := range workers { // no tunnel is there yet, so nobody looks
		w.pipes.bigMax, w.pipes.smallMax, w.heldMax = 0, 0, 256<<10
	}
	ln := loopbackListener(t)
	const many = 100
	var pumps sync.WaitGroup
	var all []*relayed
	for range many {
		r, err := newRelayed(flows, ln)
		if err != nil {
			t.Fatal(err)
		}
		r.client.SetReadBuffer(4 << 10)
		all = append(all, r)
		pumps.Go(func() { writeOn(r.server) })
	}
	time.Sleep(300 * time.Millisecond)
	// One that does read is not in the others' way.
	brisk := startRelayed(t, flows)
	if err := exchange(brisk.client, brisk.server, 3, 4<<20, 4<<20); err != nil {
		t.Error(err)
	}
	for i, w := range workers {
		if held, most := heldBy(w), w.heldMax+readBuffer+many*heldRead; held > most || held == 0 {
			t.Errorf("worker %d holds %d bytes, want some, at most %d", i, held, most)
		}
	}
	flows.Close() // so that the workers' own figures can be read
	for i, w := range workers {
		if w.held != 0 {
			t.Errorf("worker %d holds %d bytes when every flow is over", i, w.held)
		}
	}
	for _, r := range all {
		r.client.Close()
		r.server.Close()
	}
	pumps.Wait()
}

// heldBy adds up what a worker's tunnels hold.
func heldBy(w *worker) (held int) {
	w.mu.Lock()
	tunnels := append([]*tunnel(nil), w.tunnels...)
	w.mu.Unlock()
	for _, t := range tunnels {
		if t == nil {
			continue
		}
		t.mu.Lock()
		if !t.closed { // what is closed is the worker's alone
			held += len(t.ways[clientEnd].rest) + len(t.ways[upstreamEnd].rest)
		}
		t.mu.Unlock()
	}
	return held
}

// TestPipesStayWithinAUsersQuota makes pipes as a thread without privileges, as
// many as there may be, and has the kernel refuse more.
func TestPipesStayWithinAUsersQuota(t *testing.T) {
	result := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its lost capabilities
		result <- usePipeQuota()
	}()
	if problem := <-result; problem != "" {
		t.Error(problem)
	}
}

func usePipeQuota() string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if os.Getuid() == 0 { // a user of our own: the quota is each user's
		uid := uintptr(1_000_000_000 + os.Getpid())
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 { // of this thread alone
			return errno.Error()
		}
	}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err.Error()
	}
	ours := pipes{bigMax: maxBigPipes, smallMax: maxSmallPipes}
	var lent []*pipe
	defer func() {
		for _, p := range lent {
			p.close()
		}
	}()
	for p := ours.take(); p != nil; p = ours.take() {
		lent = append(lent, p)
	}
	if ours.big != maxBigPipes || ours.small != maxSmallPipes {
		return "the pipes that there may be were refused: other processes of this user hold many"
	}
	greedy := pipes{bigMax: 1000, smallMax: 1000}
	for p := greedy.take(); p != nil; p = greedy.take() {
		lent = append(lent, p)
		if p.size < smallPipe {
			return "a pipe of two pages was lent"
		}
		if greedy.big > 60 {
			return "the quota does not hold in this test"
		}
	}
	if greedy.refused.IsZero() {
		return "the kernel refused no pipe"
	}
	return ""
}
