//go:build linux

// Package sandbox runs a program in namespaces of its own: processes, mounts,
// network, host name. Whatever the program starts, mounts or plugs together is
// gone when it ends, and when it is killed, and when whoever runs it is killed: the
// kernel takes care of that. Files go to a folder that is lost in the same way.
//
// What no namespace takes along are control groups; the command e2e sees to them.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Command is the argument by which a program becomes a sandbox's process 1.
const Command = "sandbox"

// namespaces are those of its own that a sandbox has.
const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

// Check says why no sandbox can be made here.
func Check(ctx context.Context) error {
	program := exec.CommandContext(ctx, "true")
	program.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := program.Run(); err != nil {
		return fmt.Errorf("running a program in namespaces of its own: %w", err)
	}
	return nil
}

// Run runs a program in a sandbox to its end and returns its exit code. folder
// exists, and is empty for the program, which may fill it at will. If the context
// ends, everything is killed.
func Run(ctx context.Context, folder string, args ...string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	init := exec.CommandContext(ctx, self, append([]string{Command, folder}, args...)...)
	init.Stdout, init.Stderr = os.Stdout, os.Stderr
	init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: namespaces,
		// Ctrl-C in a terminal is for us.
		Setpgid:   true,
		Pdeathsig: syscall.SIGKILL,
	}
	err = init.Run()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.As(err, &ended) && ended.Exited():
		return ended.ExitCode(), nil
	case err != nil:
		return 0, fmt.Errorf("running a sandbox: %w", err)
	}
	return 0, nil
}

// Main is process 1 of a sandbox. It returns the exit code of the program.
func Main(args []string) (int, error) {
	if len(args) < 2 {
		return 0, errors.New("a sandbox takes a folder and a program")
	}
	for _, m := range []struct {
		from, to, kind string
		flags          uintptr
	}{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", args[0], "tmpfs", 0},
	} {
		if err := syscall.Mount(m.from, m.to, m.kind, m.flags, ""); err != nil {
			return 0, fmt.Errorf("mounting %s: %w", m.to, err)
		}
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return 0, err
	}
	program, err := os.StartProcess(path, args[1:], &os.ProcAttr{Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	return reap(program.Pid)
}

// reap waits for all processes that end, and returns when the program has.
func reap(program int) (int, error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("waiting for processes: %w", err)
		case pid != program:
		case status.Signaled():
			return 0, fmt.Errorf("the program was ended by the signal %v", status.Signal())
		default:
			return status.ExitStatus(), nil
		}
	}
}
