//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// From these shares of the processors' time on, what is measured may say more of
// others than of the product.
const (
	loudOthers  = .15 // spent by processes that are not the lab's
	loudStolen  = .05 // given to other machines by the host
	loudWaiting = .15 // in which something waited for a processor while the lab rested
)

// noise is what others did to the machine while something was measured.
type noise struct {
	others, stolen, waiting float64
	// loudest are the processes that used most.
	loudest []string
}

func (n noise) loud() bool {
	return n.others >= loudOthers || n.stolen >= loudStolen || n.waiting >= loudWaiting
}

func (n noise) String() string {
	text := fmt.Sprintf("others use %.0f %% of the machine", 100*n.others)
	if len(n.loudest) > 0 {
		text += " (" + strings.Join(n.loudest, ", ") + ")"
	}
	return text + fmt.Sprintf(", the host takes %.0f %%, a processor was waited for %.0f %% of the time", 100*n.stolen, 100*n.waiting)
}

// listen runs f and tells the noise just before, during and just after it.
func listen(ctx context.Context, f func() error) (noise, error) {
	n, err := atRest(ctx)
	if err != nil {
		return n, err
	}
	before, err := standings()
	if err != nil {
		return n, err
	}
	failed := f()
	after, err := standings()
	if err != nil {
		return n, errors.Join(failed, err)
	}
	during := before.until(after)
	then, err := atRest(ctx)
	return noise{
		others: max(n.others, during.others, then.others), stolen: max(n.stolen, during.stolen, then.stolen),
		waiting: max(n.waiting, then.waiting), loudest: during.loudest,
	}, errors.Join(failed, err)
}

// atRest is the noise of a second in which the lab does nothing, so that all that
// the processors do is others', processes of other containers among them.
func atRest(ctx context.Context) (noise, error) {
	before, err := processorTime()
	if err != nil {
		return noise{}, err
	}
	waited, began := pressure(), time.Now()
	if err := pause(ctx, time.Second); err != nil {
		return noise{}, err
	}
	waited = pressure() - waited
	after, err := processorTime()
	if err != nil {
		return noise{}, err
	}
	all := max(after.all-before.all, 1)
	return noise{
		others: (after.busy - before.busy) / all, stolen: (after.stolen - before.stolen) / all,
		waiting: waited.Seconds() / time.Since(began).Seconds(),
	}, nil
}

// standing is what everybody has used so far.
type standing struct {
	at         time.Time
	processors processors
	others     map[int]spent
}

// spent is the processor time of a process and of its children that have ended.
type spent struct {
	name    string
	seconds float64
}

func standings() (s standing, err error) {
	s.at = time.Now()
	if s.processors, err = processorTime(); err != nil {
		return s, err
	}
	s.others, err = spentByOthers()
	return s, err
}

// until is the noise between two standings. Of a process that has ended its parent's
// children tell, so that the sums are right where the single differences are not.
func (s standing) until(then standing) noise {
	var n noise
	var sum float64
	all := then.at.Sub(s.at).Seconds() * float64(runtime.NumCPU())
	type share struct {
		of    string
		share float64
	}
	var shares []share
	for pid, p := range then.others {
		sum += p.seconds
		if used := (p.seconds - s.others[pid].seconds) / all; used >= .01 {
			shares = append(shares, share{p.name, used})
		}
	}
	for _, p := range s.others {
		sum -= p.seconds
	}
	n.others = max(0, sum/all)
	n.stolen = (then.processors.stolen - s.processors.stolen) / max(then.processors.all-s.processors.all, 1)
	slices.SortFunc(shares, func(a, b share) int { return int(1e6 * (b.share - a.share)) })
	for _, one := range shares[:min(3, len(shares))] {
		n.loudest = append(n.loudest, fmt.Sprintf("%s %.0f %%", one.of, 100*one.share))
	}
	return n
}

// spentByOthers reads what each process has used that is no part of the lab. The
// kernel's own are left out: what they do is on the lab's behalf, mostly.
func spentByOthers() (map[int]spent, error) {
	ours, err := treeOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	others := map[int]spent{}
	for _, directory := range directories {
		pid, err := strconv.Atoi(filepath.Base(directory))
		if err != nil || slices.Contains(ours, pid) {
			continue
		}
		name, fields, err := statOf(pid)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has just ended
		}
		if err != nil {
			return nil, err
		}
		const kthreadd = 2
		if fields[1] == strconv.Itoa(kthreadd) || pid == kthreadd && name == "kthreadd" {
			continue
		}
		ticks := 0.0
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime (proc(5))
			n, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return nil, err
			}
			ticks += n
		}
		others[pid] = spent{name, ticks / ticksASecond}
	}
	return others, nil
}

// ticksASecond is what /proc counts in (sysconf(_SC_CLK_TCK)), on every architecture.
const ticksASecond = 100

// processors is what the lab's processors have done so far, in ticks.
type processors struct{ busy, stolen, all float64 }

// processorTime adds up the lab's processors in /proc/stat (proc(5)): the fourth and
// fifth figures are idle and waiting for input, the eighth is stolen, and the last two are
// counted already.
func processorTime() (p processors, err error) {
	mine, err := affinity()
	if err != nil {
		return p, err
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		number, of := strings.CutPrefix(fields[0], "cpu")
		if cpu, err := strconv.Atoi(number); !of || err != nil || !mine.IsSet(cpu) || len(fields) < 9 {
			continue
		}
		for i, field := range fields[1:9] {
			ticks, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return p, err
			}
			p.all += ticks
			switch i {
			case 3, 4:
			case 7:
				p.stolen += ticks
			default:
				p.busy += ticks
			}
		}
	}
	if p.all == 0 {
		return p, errors.New("/proc/stat does not tell of our processors")
	}
	return p, nil
}

// pressure is for how long something has waited for a processor, nothing where the
// kernel does not count it (psi(7)).
func pressure() time.Duration {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n") // "some", and then "full"
	_, total, _ := strings.Cut(line, "total=")
	microseconds, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(microseconds) * time.Microsecond
}
