//go:build linux

package sidecar_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/exeat/exeat/control/api"
	"github.com/exeat/exeat/sidecar"
)

func openStore(t *testing.T) (*sidecar.FileStore, string) {
	t.Helper()
	dir := t.TempDir()
	store, err := sidecar.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store, filepath.Join(dir, "state.json")
}

func keep(t *testing.T, store *sidecar.FileStore, s sidecar.State) {
	t.Helper()
	commit, err := store.Prepare(s)
	if err == nil {
		err = commit()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasKeptIsReadBack(t *testing.T) {
	store, _ := openStore(t)
	if _, err := store.Load(); !errors.Is(err, sidecar.ErrNoState) {
		t.Fatalf("load before anything was kept: %v, want ErrNoState", err)
	}
	kept := sidecar.State{
		Document: document(t, `{"network_mode":"allowlist","allowed_hosts":["a.test:443"]}`), Generation: 7,
		Phase: "run", Since: time.Now().UTC().Round(0), Phases: phases(t),
		Lease: &api.Lease{Expires: time.Now().UTC().Round(0), Then: api.Then{Phase: "setup"}},
	}
	keep(t, store, kept)
	got, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if got.Generation != 7 || got.Phase != "run" || len(got.Document.Allowed) != 1 || len(got.Phases) != 2 ||
		!got.Since.Equal(kept.Since) || got.Lease == nil || got.Lease.Then.Phase != "setup" {
		t.Errorf("read back %+v, want %+v", got, kept)
	}
}

func TestAStatePreparedButNotCommittedIsNotInForce(t *testing.T) {
	store, _ := openStore(t)
	keep(t, store, sidecar.State{Document: document(t, `"no-network"`), Generation: 1})
	if _, err := store.Prepare(sidecar.State{Document: document(t, `"public"`), Generation: 2}); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Load(); err != nil || got.Generation != 1 {
		t.Errorf("load: generation %d, %v; want the one that was committed", got.Generation, err)
	}
}

func TestAFileThatIsNotAWholeStateIsRefused(t *testing.T) {
	store, path := openStore(t)
	keep(t, store, sidecar.State{Document: document(t, `"public"`), Generation: 3})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty":            "",
		"torn":             string(whole[:len(whole)/2]),
		"edited":           strings.Replace(string(whole), `"generation":3`, `"generation":9`, 1),
		"from the future":  strings.Replace(string(whole), `"version":1`, `"version":2`, 1),
		"something else":   `{"version":1}`,
		"not even JSON":    "\x00\x01\x02",
		"no generation":    `{"version":1,"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","state":{}}`,
		"twice after each": string(whole) + string(whole),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			state, err := store.Load()
			if err == nil || errors.Is(err, sidecar.ErrNoState) {
				t.Errorf("load: %+v, %v; want an error that is not ErrNoState", state, err)
			}
		})
	}
}

func TestForgettingLeavesNothing(t *testing.T) {
	store, _ := openStore(t)
	keep(t, store, sidecar.State{Document: document(t, `"public"`), Generation: 3})
	for range 2 {
		if err := store.Forget(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Load(); !errors.Is(err, sidecar.ErrNoState) {
		t.Errorf("load: %v, want ErrNoState", err)
	}
}
