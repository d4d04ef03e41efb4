package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

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
		}
	}
	if err := refuse(); err != nil {
		return 0, err
	}
	kit, err := prepare(ctx)
	if err != nil {
		return 0, err
	}
	// A name of this run's own, for there may be another.
	kit.Cgroup = machine.RunGroup(os.Getpid())
	if err := kit.Export(); err != nil {
		return 0, err
	}
	code, err := sandbox.Run(ctx, kit.Dir, append([]string{kit.Tests, "-test.timeout=3h"}, args...)...)
	return code, errors.Join(err, machine.RemoveGroups(kit.Cgroup))
}

// refuse says why the tests cannot run here.
func refuse() error {
	if os.Geteuid() != 0 {
		return errors.New("the end-to-end tests make namespaces and control groups: run them as root")
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return errors.New("the end-to-end tests run containerd, runc and CNI plugins of Debian, and this is another system")
	}
	for _, program := range []string{"apt-get", "dpkg-deb", "ip", "nsenter", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the end-to-end tests need %s, which is not on the PATH (ip is in the package iproute2)", program)
		}
	}
	return machine.CheckGroups()
}

// prepare builds and fetches all that the tests run, in out/e2e.
func prepare(ctx context.Context) (*lab.Kit, error) {
	out, err := filepath.Abs("out/e2e")
	if err != nil {
		return nil, err
	}
	kit := &lab.Kit{
		Dir:      filepath.Join(out, "run"),
		Logs:     filepath.Join(out, "logs"),
		Debian:   filepath.Join(out, "debian"),
		Images:   filepath.Join(out, "images"),
		Tests:    filepath.Join(out, "e2e.test"),
		Kubectl:  filepath.Join(out, "kubectl-nodegate"),
		Revision: "dev",
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
	return kit, nil
}
