package dnsfilter

import (
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"
)

// A sandbox fills the cache with as many names as it likes to ask for.
func TestWhatIsCachedInThousandsIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(entry{}); size > 64 {
		t.Errorf("an entry has %d bytes, want at most 64", size)
	}
	if size := unsafe.Sizeof(view{}); size > 32 {
		t.Errorf("a view has %d bytes, want at most 32", size)
	}
}

func TestFailuresAreForgottenInTimeAndBounded(t *testing.T) {
	f := failures{of: map[key]failure{}}
	now, down := time.Now(), errors.New("down")
	f.put(key{"a.test", 1}, down, now)
	for after, want := range map[time.Duration]error{0: down, failureTTL - 1: down, failureTTL: nil} {
		if got := f.get(key{"a.test", 1}, now.Add(after)); got != want {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
	}
	if got := f.get(key{"a.test", 28}, now); got != nil {
		t.Errorf("another type: %v", got)
	}
	for i := range 3 * failuresKept {
		f.put(key{fmt.Sprint(i), 1}, down, now)
		if f.get(key{fmt.Sprint(i), 1}, now) == nil {
			t.Fatal("the newest is not remembered")
		}
	}
	if len(f.of) > failuresKept {
		t.Errorf("%d failures are kept, want at most %d", len(f.of), failuresKept)
	}
}
