package fake

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Command puts a script called go into a folder of its own, for PATH.
func Command(t *testing.T, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	Write(t, filepath.Join(dir, "go"), "#!/bin/sh\n"+script, 0o755)
	return dir
}

// HeldGo is a go command whose builds write a binary that looks complete and
// then stop, until they are let go on or are killed.
type HeldGo struct {
	Dir      string // for PATH
	alive    string
	release  string
	released string
	builds   string
	compiler string
}

// A build holds the fifo "alive" open for as long as it runs, so that a reader
// sees the end of the fifo when no process of the build is left. It waits in a
// builtin of the shell, which makes it a single process unless it is to have a
// compiler too.
const heldScript = `
[ "$1" = build ] || exec '%[1]s' "$@"
for argument in "$@"; do
	[ "$previous" != -o ] || output=$argument
	previous=$argument
done
echo "$output" >>'%[5]s'
[ ! -e '%[4]s' ] || exec '%[1]s' "$@"
echo '#!/bin/sh' >"$output"
chmod +x "$output"
exec 3>'%[2]s'
[ ! -e '%[6]s' ] || read -r line <'%[3]s' &
echo building >&3
read -r line <'%[3]s'
rm "$output"
exec 3>&-
exec '%[1]s' "$@"
`

// NewHeldGo finds the real go on PATH, so it comes before a change to PATH.
func NewHeldGo(t *testing.T) *HeldGo {
	t.Helper()
	realGo, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	h := &HeldGo{
		alive:    filepath.Join(dir, "alive"),
		release:  filepath.Join(dir, "release"),
		released: filepath.Join(dir, "released"),
		builds:   filepath.Join(dir, "builds"),
		compiler: filepath.Join(dir, "compiler"),
	}
	for _, path := range []string{h.alive, h.release} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.Dir = Command(t, fmt.Sprintf(heldScript, realGo, h.alive, h.release, h.released, h.builds, h.compiler))
	return h
}

// StartCompiler gives a held build a child that ends only when it is killed.
func (h *HeldGo) StartCompiler(t *testing.T) {
	t.Helper()
	Write(t, h.compiler, "", 0o644)
}

// WaitForBuild returns once a build is being held. The function it returns
// waits until that build has no process any more.
func (h *HeldGo) WaitForBuild(t *testing.T) (waitForEnd func()) {
	t.Helper()
	alive, err := os.Open(h.alive) // blocks until there is a writer
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = alive.Close() })
	if _, err := alive.Read(make([]byte, len("building\n"))); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := alive.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, alive); err != nil {
			t.Fatalf("the build runs on: %v", err)
		}
	}
}

// Release lets the held build and all later ones go on.
func (h *HeldGo) Release(t *testing.T) {
	t.Helper()
	Write(t, h.released, "", 0o644)
	Write(t, h.release, "\n", 0o644) // a fifo: blocks until the build reads
}

// Builds returns the files that builds were told to write, one a line.
func (h *HeldGo) Builds(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(h.builds)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
