package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/nodegate/nodegate/test/e2e/lab"
	"github.com/nodegate/nodegate/test/world"
)

// controlPlane returns the folder with Kubernetes, built by its own command, which
// shows its progress itself.
func controlPlane(ctx context.Context) (string, error) {
	cmd := command(ctx, ".", "go", "-C", "test/controlplane", "run", "./cmd/assets", "--kubelet")
	cmd.Stderr = os.Stderr
	folder, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("building the control plane: %w", err)
	}
	return strings.TrimSpace(string(folder)), nil
}

// packages are those of Debian that are unpacked, not installed: no service is
// started and nothing changes on the host.
func packages() []string { return []string{"containerd", "runc", "containernetworking-plugins"} }

// debian fetches the packages, unless they are there.
func debian(ctx context.Context, kit *lab.Kit) error {
	if _, err := os.Stat(kit.Debian); err == nil {
		return nil
	}
	work := kit.Debian + ".new"
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(filepath.Join(work, "archives"), 0o755)); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // or the next run does it
	err := during("downloading "+strings.Join(packages(), ", "), func() error {
		return download(ctx, filepath.Join(work, "archives"))
	})
	if err != nil {
		return fmt.Errorf("downloading packages of Debian (is there a network, and a source in /etc/apt?): %w", err)
	}
	archives, err := filepath.Glob(filepath.Join(work, "archives", "*.deb"))
	if err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	for _, archive := range archives {
		if err := quiet(command(ctx, work, "dpkg-deb", "--extract", archive, root)); err != nil {
			return err
		}
	}
	return os.Rename(root, kit.Debian)
}

// download fetches the packages into a folder. The lists of what there is are often
// not there in containers.
func download(ctx context.Context, dir string) error {
	get := func() error {
		return quiet(command(ctx, dir, "apt-get", append([]string{"download"}, packages()...)...))
	}
	if get() == nil {
		return nil
	}
	return errors.Join(quiet(command(ctx, dir, "apt-get", "update")), get())
}

// images builds those of nodegate and of the stand-in for this machine.
func images(ctx context.Context, kit *lab.Kit) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	return during("building images", func() error {
		return quiet(command(ctx, ".", "go", "-C", "tools/images", "run", ".", "-root", root, "-out", kit.Images,
			"-version", kit.Revision, "-platform", "linux/"+runtime.GOARCH, "standin=./test/e2e/standin"))
	})
}

// programs builds the tests and kubectl nodegate.
func programs(ctx context.Context, kit *lab.Kit) error {
	return during("building the tests", func() error {
		return errors.Join(
			quiet(command(ctx, ".", "go", "test", "-tags=e2e", "-c", "-o", kit.Tests, "./test/e2e")),
			quiet(command(ctx, ".", "go", "build", "-o", kit.Kubectl, "./cmd/kubectl-nodegate")))
	})
}

// during says what is being done, and how long it took.
func during(what string, do func() error) error {
	fmt.Fprintf(os.Stderr, "e2e: %s\n", what)
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintf(os.Stderr, "e2e: %s took %s\n", what, time.Since(began).Round(time.Second))
	return nil
}

// command is [world.Command] in a folder.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := world.Command(ctx, name, args...)
	cmd.Dir = dir
	return cmd
}

// quiet runs a command and tells what it said only if it fails.
func quiet(cmd *exec.Cmd) error {
	said, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said)
	}
	return nil
}
