//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The janitor is a second process of this program, which outlives the first. It
// learns from the end of a pipe that the first has ended, however that came
// about, kills what is left of its descendants and removes its folder. It knows
// them by a variable in their environment, which every child inherits: those that
// a library starts, those that go starts, and those whose parent is gone.

const (
	janitorCommand = "janitor"
	// folderVariable marks the descendants of a demo with its folder.
	folderVariable = "NODEGATE_DEMO_FOLDER"
	// sweepTimeout is for processes that even a kill does not end.
	sweepTimeout = 10 * time.Second
)

// janitorOf returns the folder if the arguments are a janitor's.
func janitorOf(args []string) (string, bool) {
	if len(args) == 3 && args[1] == janitorCommand {
		return args[2], true
	}
	return "", false
}

// hireJanitor makes the folder for everything that is written, temporary files of
// children included, and a janitor for it. release waits until all is clean.
func hireJanitor() (dir string, release func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("looking for this program: %w", err)
	}
	// The name is short: there will be a Unix socket below.
	dir, err = os.MkdirTemp("", "nodegate-")
	if err != nil {
		return "", nil, fmt.Errorf("making folder: %w", err)
	}
	janitor := exec.Command(program, janitorCommand, dir)
	janitor.Stderr = os.Stderr
	janitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	leash, err := janitor.StdinPipe()
	if err == nil {
		err = janitor.Start()
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("starting janitor: %w", err), os.Remove(dir))
	}
	release = func() error { return errors.Join(leash.Close(), janitor.Wait()) }
	temporary := filepath.Join(dir, "tmp")
	err = errors.Join(os.Mkdir(temporary, 0o700), os.Setenv("TMPDIR", temporary), os.Setenv(folderVariable, dir))
	if err != nil {
		return "", nil, errors.Join(err, release())
	}
	return dir, release, nil
}

// keepWatch waits for the end of the pipe and cleans up.
func keepWatch(leash io.Reader, dir string) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, leash)
	// As long as any is left, it may have started another.
	for began := time.Now(); killMarked(dir) && time.Since(began) < sweepTimeout; {
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, "demo: cleaning up:", err)
	}
}

// killMarked kills the marked processes and reports whether there were any. It
// finds them where there is a /proc; elsewhere the demo itself must stop them.
func killMarked(dir string) bool {
	mark := []byte(folderVariable + "=" + dir + "\x00")
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return false
	}
	found := false
	for _, file := range files {
		environment, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environment, mark) {
			continue // not ours, or gone; a zombie's is empty
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			found = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return found
}
