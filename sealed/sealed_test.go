//go:build linux

package sealed

import (
	"context"
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	for range 5 {
		t0 := time.Now()
		s, err := Start(context.Background(), Spec{Args: []string{"/bin/sh", "-c", "true; exit 3"}})
		if err != nil {
			t.Fatal(err)
		}
		t1 := time.Now()
		if err := s.Release(); err != nil {
			t.Fatal(err)
		}
		st, err := s.Wait()
		t.Log(st, err, t1.Sub(t0), time.Since(t0), s.Warnings())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		t.Log(time.Since(t0))
	}
	s, err := Start(context.Background(), Spec{Args: []string{"/bin/sh", "-c", "id; ps aux; mount|tail -30; ip a; ip r; ip -6 r; cat /proc/self/status | grep -E 'Cap|Sec|New'; ls -la /run /proc/1/; ls -l /proc/self/fd; cat /etc/resolv.conf; ls -l /dev; tty"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Release()
	t.Log(s.Wait())
	s.Close()
}
