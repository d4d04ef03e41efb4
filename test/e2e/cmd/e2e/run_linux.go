package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/nodegate/nodegate/test/e2e/lab"
	"github.com/nodegate/nodegate/test/e2e/machine"
	"github.com/nodegate/nodegate/test/e2e/sandbox"
)

// run does what the first argument says: what processes 1 do, or all.
func run(ctx context.Context, args []string) (int, error) {
	if len(args) > 0 {
		switch args[0] {
		case machine.Command:
			return 1, machine.Main()
		case sandbox.Command:
			return sandbox.Main(args[1:])
		case sweepCommand:
			return 0, sweep(args[1:])
		}
	}
	if err := refuse(ctx); err != nil {
		return 0, err
	}
	out, err := claim("out/e2e")
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }() // only locked
	kit, err := prepare(ctx, out.Name())
	if err != nil {
		return 0, err
	}
	// A name of this run's own, for there may be another.
	kit.Cgroup = fmt.Sprintf("nodegate-e2e-%d", os.Getpid())
	if err := kit.Export(); err != nil {
		return 0, err
	}
	swept, err := sweepAfter(kit.Cgroup)
	if err != nil {
		return 0, err
	}
	code, err := sandbox.Run(ctx, kit.Dir, append([]string{kit.Tests, "-test.timeout=3h"}, args...)...)
	return code, errors.Join(err, swept())
}

// sweepCommand is the argument by which this program becomes the one that outlives a
// run, however that ends, and removes its control groups.
const sweepCommand = "sweep"

// sweepAfter starts that program, and returns what tells it that the run has ended, and
// waits for it. If this process is killed, that tells it, too.
func sweepAfter(group string) (swept func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	sweeper := exec.Command(self, sweepCommand, group)
	sweeper.Stderr = os.Stderr
	sweeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	leash, err := sweeper.StdinPipe()
	if err == nil {
		err = sweeper.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting what cleans up: %w", err)
	}
	return func() error { return errors.Join(leash.Close(), sweeper.Wait()) }, nil
}

func sweep(args []string) error {
	if len(args) != 1 {
		return errors.New("sweep takes a control group")
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is closed, by whomever
	return machine.RemoveGroups(args[0])
}

// refuse says why the tests cannot run here.
func refuse(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("the end-to-end tests make namespaces and control groups: run them as root")
	}
	if _, err := os.Stat(debianVersion); err != nil {
		return errors.New("the end-to-end tests run containerd, runc and CNI plugins of Debian, and this is another system")
	}
	for _, program := range []string{"apt-get", "dpkg-deb", "mount", "nsenter", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the end-to-end tests need %s, which is not on the PATH", program)
		}
	}
	if err := sandbox.Check(ctx); err != nil {
		return fmt.Errorf("the end-to-end tests need the right to make namespaces, as root has it on a host or in a privileged container: %w", err)
	}
	return machine.CheckGroups()
}

// claim makes a folder, which no other run may claim until it is closed.
func claim(name string) (*os.File, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("another run is under way in %s: wait for it, or use another clone", path)
	}
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}

// prepare builds what the tests run, in a folder, and fetches the rest into the cache.
func prepare(ctx context.Context, out string) (*lab.Kit, error) {
	kit := &lab.Kit{
		Dir:      filepath.Join(out, "run"),
		Logs:     filepath.Join(out, "logs"),
		Images:   filepath.Join(out, "images"),
		Tests:    filepath.Join(out, "e2e.test"),
		Kubectl:  filepath.Join(out, "kubectl-nodegate"),
		Revision: "dev",
	}
	var err error
	if kit.Debian, err = debianFolder(); err != nil {
		return nil, err
	}
	if kit.Program, err = os.Executable(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(kit.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(kit.Logs); err != nil {
		return nil, err
	}
	if kit.ControlPlane, err = controlPlane(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *lab.Kit) error{debian, images, programs} {
		if err := step(ctx, kit); err != nil {
			return nil, err
		}
	}
	return kit, usePackages(kit)
}
