package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/version"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// goCommand runs go in the pinned module. Settings of the user that would
// change what is built do not reach it; settings that say where to get modules
// do.
type goCommand struct {
	dir  string
	work string // for temporary files; empty leaves them where go has them
}

func (g goCommand) output(ctx context.Context, args ...string) ([]byte, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return nil, fmt.Errorf("looking for the go command: %w; install Go and put its bin folder on PATH", err)
	}
	out, err := run(ctx, g.dir, g.environment(), path, args...)
	if err != nil {
		return nil, explain(err)
	}
	return out, nil
}

func (g goCommand) environment() []string {
	env := append(os.Environ(),
		"CGO_ENABLED=0",
		"GO111MODULE=on",
		"GOARCH="+runtime.GOARCH,
		"GOFLAGS=-mod=readonly", // an empty value would let `go env -w` through
		"GOOS="+runtime.GOOS,
		"GOWORK=off",
	)
	if g.work != "" {
		env = append(env, "GOTMPDIR="+g.work)
	}
	return env
}

// checkGo finds an old Go before the compiler stumbles over it. A Go that may
// fetch the toolchain a go.mod asks for reports the version it would run.
func checkGo(ctx context.Context, moduleDir, want string) error {
	out, err := goCommand{dir: moduleDir}.output(ctx, "env", "GOVERSION")
	if err != nil {
		return fmt.Errorf("asking go for its version: %w", err)
	}
	have, _, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	// A development build of Go has no comparable version: let it try.
	if version.IsValid(have) && version.Compare(have, "go"+want) < 0 {
		return fmt.Errorf("this is %s, but go%s or newer is needed: upgrade Go, or set GOTOOLCHAIN=auto to let it fetch one", have, want)
	}
	return nil
}

// commandError is a command that failed, with all that it said.
type commandError struct {
	err    error
	output string
}

func (e *commandError) Error() string {
	return strings.TrimSpace(e.err.Error() + "\n" + tail(e.output))
}

func (e *commandError) Unwrap() error { return e.err }

// run runs a command and returns its stdout. When ctx ends, the command is
// killed together with everything that it started.
func run(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	// A child that dies with its parent does so with the parent's thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var stdout, all bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = &stdout, &all
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w (%w)", ErrInterrupted, context.Cause(ctx))
	}
	if err != nil {
		all.Write(stdout.Bytes())
		return nil, &commandError{err: err, output: all.String()}
	}
	return stdout.Bytes(), nil
}

// advice is what to do about failures that the output of go gives away.
var advice = []struct {
	signs []string
	text  string
}{
	{
		[]string{"no space left on device", "disk quota exceeded"},
		"the disk is full: a first build takes several GB; `go env GOCACHE GOMODCACHE` and " + CacheVariable + " say where",
	},
	{
		[]string{"dial tcp", "proxyconnect", "no such host", "TLS handshake", "i/o timeout", "GOPROXY=off", "disabled by GOPROXY"},
		"a module could not be fetched: check the network and `go env GOPROXY`, then run again",
	},
	{
		[]string{"(running go ", "go: download go"},
		"this Go is older than go.mod asks for: upgrade Go, or set GOTOOLCHAIN=auto and give it network to fetch one",
	},
	{
		[]string{"updates to go.mod needed", "missing go.sum entry", "go.mod file is updated"},
		"go.mod or go.sum is incomplete: run `go mod tidy` in test/controlplane",
	},
	{
		[]string{"signal: killed", "cannot allocate memory", "out of memory"},
		"the compiler was killed, most likely for want of memory: free some, or set GOMAXPROCS=1 to compile one package at a time",
	},
}

// explain adds advice to the error of a go command.
func explain(err error) error {
	var failed *commandError
	if !errors.As(err, &failed) {
		return err
	}
	for _, a := range advice {
		for _, sign := range a.signs {
			if strings.Contains(failed.output, sign) {
				return fmt.Errorf("%w\n%s", err, a.text)
			}
		}
	}
	return err
}

// tail returns the last lines of an output, where compilers say what is wrong.
func tail(output string) string {
	const keep = 20
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) > keep {
		lines = append([]string{"[...]"}, lines[len(lines)-keep:]...)
	}
	return strings.Join(lines, "\n")
}
