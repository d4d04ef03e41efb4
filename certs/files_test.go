package certs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nodegate/nodegate/test/syncbuf"
)

// followFiles serves what is in a directory until the test ends. It polls so
// seldom that only events count.
func followFiles(t *testing.T, dir string) (*Files, *syncbuf.Buffer) {
	t.Helper()
	log := &syncbuf.Buffer{}
	files := NewFiles(dir, slog.New(slog.NewTextHandler(log, nil)))
	files.interval = time.Hour
	startFiles(t, files)
	return files, log
}

func startFiles(t *testing.T, files *Files) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- files.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("following files: %v", err)
		}
	})
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 3*time.Minute, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// served is the name in the certificate, empty if there is none.
func served(files *Files) string {
	pair, err := files.GetCertificate(nil)
	if err != nil {
		return ""
	}
	return pair.Leaf.Subject.CommonName
}

func write(t *testing.T, pair Pair, dir string) {
	t.Helper()
	if err := pair.Write(dir); err != nil {
		t.Fatal(err)
	}
}

func TestFiles_FollowARenewal(t *testing.T) {
	dir := t.TempDir()
	write(t, newPair(t, time.Now(), "first"), dir)
	files, _ := followFiles(t, dir)
	if got := served(files); got != "first" {
		t.Errorf("serves %q at first", got)
	}
	write(t, newPair(t, time.Now(), "second"), dir)
	await(t, "the renewed pair", func() bool { return served(files) == "second" })
}

func TestFiles_AppearLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	log := &syncbuf.Buffer{}
	files := NewFiles(dir, slog.New(slog.NewTextHandler(log, nil)))
	files.interval = time.Millisecond
	if err := files.Healthy(time.Now()); err == nil {
		t.Error("healthy without a pair")
	}
	if _, err := files.GetCertificate(nil); err == nil {
		t.Error("serves without a pair")
	}
	startFiles(t, files)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, newPair(t, time.Now(), "late"), dir)
	await(t, "the pair", func() bool { return served(files) == "late" })
	if err := files.Healthy(time.Now()); err != nil {
		t.Errorf("not healthy with a pair: %v", err)
	}
}

// TestFiles_KeepTheLastGoodPair: the fault is reported once, the pair stays, and
// the next good one is taken.
func TestFiles_KeepTheLastGoodPair(t *testing.T) {
	other := newPair(t, time.Now(), "other")
	for name, spoil := range map[string]struct {
		file    string
		content []byte
	}{
		"half a certificate":           {CertFile, other.Certificate[:100]},
		"a new certificate, old key":   {CertFile, other.Certificate},
		"an old certificate, new key":  {KeyFile, other.Key},
		"an empty key":                 {KeyFile, nil},
		"a certificate without PEM":    {CertFile, []byte("see the other file")},
		"a key where the pair must be": {CertFile, other.Key},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, newPair(t, time.Now(), "good"), dir)
			files, log := followFiles(t, dir)
			if err := os.WriteFile(filepath.Join(dir, spoil.file), spoil.content, 0o600); err != nil {
				t.Fatal(err)
			}
			await(t, "the fault to be reported", func() bool { return strings.Contains(log.String(), "the last good one stays") })
			if got := served(files); got != "good" {
				t.Errorf("serves %q", got)
			}
			if err := files.Healthy(time.Now()); err != nil {
				t.Errorf("not healthy: %v", err)
			}
			write(t, newPair(t, time.Now(), "better"), dir)
			await(t, "the next pair", func() bool { return served(files) == "better" })
			if strings.Contains(log.String(), "PRIVATE KEY") {
				t.Errorf("the log tells a key:\n%s", log.String())
			}
		})
	}
	t.Run("no files any more", func(t *testing.T) {
		dir := t.TempDir()
		write(t, newPair(t, time.Now(), "good"), dir)
		files, log := followFiles(t, dir)
		for _, name := range []string{CertFile, KeyFile} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		await(t, "the fault to be reported", func() bool { return strings.Contains(log.String(), "no such file") })
		if got := served(files); got != "good" {
			t.Errorf("serves %q", got)
		}
	})
}

// secretMount is a directory as a kubelet writes a Secret's: the files are links
// into ..data, which is a link that is swapped.
type secretMount struct {
	dir      string
	versions int
}

func (m *secretMount) swap(t *testing.T, pair Pair) {
	t.Helper()
	m.versions++
	version := "..2026_01_01_00_00_00." + strconv.Itoa(m.versions)
	full := filepath.Join(m.dir, version)
	if err := os.Mkdir(full, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{CertFile: pair.Certificate, KeyFile: pair.Key, "ca.crt": pair.CA} {
		if err := os.WriteFile(filepath.Join(full, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, _ := os.Readlink(filepath.Join(m.dir, "..data"))
	temporary := filepath.Join(m.dir, "..data_tmp")
	if err := os.Symlink(version, temporary); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(m.dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if before != "" {
		if err := os.RemoveAll(filepath.Join(m.dir, before)); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, name := range []string{CertFile, KeyFile, "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFiles_FollowASecretsMount(t *testing.T) {
	mount := &secretMount{dir: t.TempDir()}
	mount.swap(t, newPair(t, time.Now(), "0"))
	files, log := followFiles(t, mount.dir)
	for i := range 20 {
		want := strconv.Itoa(i)
		await(t, "pair "+want, func() bool { return served(files) == want })
		mount.swap(t, newPair(t, time.Now(), strconv.Itoa(i+1)))
	}
	broken := newPair(t, time.Now(), "broken")
	broken.Key = broken.Key[:50]
	await(t, "the last pair", func() bool { return served(files) == "20" })
	mount.swap(t, broken)
	await(t, "the fault to be reported", func() bool { return strings.Contains(log.String(), "the last good one stays") })
	if got := served(files); got != "20" {
		t.Errorf("serves %q", got)
	}
	mount.swap(t, newPair(t, time.Now(), "mended"))
	await(t, "the mended pair", func() bool { return served(files) == "mended" })
}
