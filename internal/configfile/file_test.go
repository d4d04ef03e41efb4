package configfile

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/syncbuf"
)

const (
	head    = "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"
	enforce = head + "mode: enforce\n"
	observe = head + "mode: observe\n"
	paused  = head + "mode: paused\n"
	broken  = head + "mode: sometimes\n"
)

// mount is a directory as a kubelet writes a ConfigMap's.
type mount struct {
	dir      string
	versions int
}

func (m *mount) write(t *testing.T, content string) {
	t.Helper()
	m.versions++
	version := "..version-" + strings.Repeat("i", m.versions)
	if err := os.Mkdir(filepath.Join(m.dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, version, gate.ConfigMapKey), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"..data": version, gate.ConfigMapKey: filepath.Join("..data", gate.ConfigMapKey)} {
		temporary := filepath.Join(m.dir, "..tmp")
		if err := os.Symlink(target, temporary); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(m.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
}

func start(t *testing.T, path string, interval time.Duration) (*File, *syncbuf.Buffer, <-chan gate.Mode) {
	t.Helper()
	log, modes := &syncbuf.Buffer{}, make(chan gate.Mode, 10)
	f, err := Open(path, slog.New(slog.NewTextHandler(log, nil)), func(_, after *gate.Configuration) { modes <- after.Mode })
	if err != nil {
		t.Fatal(err)
	}
	f.interval = interval
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, log, modes
}

func expectMode(t *testing.T, modes <-chan gate.Mode, want gate.Mode) {
	t.Helper()
	select {
	case got := <-modes:
		if got != want {
			t.Fatalf("mode %s, want %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("mode %s did not come into force", want)
	}
}

func TestFile_FollowsAConfigMapMount(t *testing.T) {
	for name, interval := range map[string]time.Duration{"by events": time.Hour, "by polling": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			m := &mount{dir: t.TempDir()}
			m.write(t, enforce)
			f, _, modes := start(t, filepath.Join(m.dir, gate.ConfigMapKey), interval)
			m.write(t, observe)
			expectMode(t, modes, gate.ModeObserve)
			m.write(t, paused)
			expectMode(t, modes, gate.ModePaused)
			if got := f.Current().Mode; got != gate.ModePaused {
				t.Errorf("mode %s is in force", got)
			}
		})
	}
}

func TestFile_KeepsTheLastGoodOneAndSaysSoOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(observe)
	log := &syncbuf.Buffer{}
	f, err := Open(path, slog.New(slog.NewTextHandler(log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	const said = "Configuration is not used"
	steps := []struct {
		change   func()
		wantMode gate.Mode
		wantSaid int
	}{
		{func() { write(broken) }, gate.ModeObserve, 1},
		{func() {}, gate.ModeObserve, 1},
		{func() { os.Remove(path) }, gate.ModeObserve, 2},
		{func() {}, gate.ModeObserve, 2},
		{func() { write(paused) }, gate.ModePaused, 2},
		{func() { write(broken) }, gate.ModePaused, 3},
		{func() { write(enforce) }, gate.ModeEnforce, 3},
	}
	for i, step := range steps {
		step.change()
		f.read()
		if got := f.Current().Mode; got != step.wantMode {
			t.Errorf("step %d: mode %s, want %s", i, got, step.wantMode)
		}
		if got := strings.Count(log.String(), said); got != step.wantSaid {
			t.Errorf("step %d: said %d times that it is not used, want %d:\n%s", i, got, step.wantSaid, log.String())
		}
	}
}

func TestOpen_RefusesAtStart(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(path, []byte(broken), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, filepath.Join(dir, "missing.yaml")} {
		if _, err := Open(path, slog.New(slog.DiscardHandler), nil); err == nil {
			t.Errorf("opened %s", path)
		}
	}
}

func TestOpen_WithoutAPathIsTheDefault(t *testing.T) {
	f, _, _ := start(t, "", time.Hour)
	if got := f.Current(); len(got.Gates) != 1 || got.Mode != gate.ModeEnforce {
		t.Errorf("configuration %+v", got)
	}
}
