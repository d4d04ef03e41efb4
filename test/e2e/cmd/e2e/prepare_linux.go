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
// started and nothing changes on the host. With them comes what they need and the
// host lacks.
func packages() []string {
	return []string{"containerd", "runc", "containernetworking-plugins", "iproute2"}
}

// debianFolder is where the packages of this release are kept, in the cache that
// test/controlplane has, too.
func debianFolder() (string, error) {
	cache := os.Getenv("NODEGATE_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("choosing a cache folder: %w; set NODEGATE_CACHE to an absolute path", err)
		}
		cache = filepath.Join(dir, "nodegate")
	}
	release, err := os.ReadFile(debianVersion)
	if err != nil {
		return "", err
	}
	name := strings.ReplaceAll(strings.TrimSpace(string(release)), "/", "-")
	return filepath.Join(cache, "e2e", "debian-"+name+"-"+runtime.GOARCH), nil
}

// debianVersion is a file that every Debian has, with the number of its release.
const debianVersion = "/etc/debian_version"

// debian fetches the packages, unless they are there.
func debian(ctx context.Context, kit *lab.Kit) error {
	if _, err := os.Stat(kit.Debian); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(kit.Debian), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(kit.Debian), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // it is in the cache, and in nobody's way
	archives, root := filepath.Join(work, "archives"), filepath.Join(work, "root")
	if err := errors.Join(os.Mkdir(archives, 0o755), os.Mkdir(root, 0o755)); err != nil {
		return err
	}
	err = during("downloading "+strings.Join(packages(), ", "), func() error { return download(ctx, archives) })
	if err != nil {
		return fmt.Errorf("%w\n(is there a network, and a source in /etc/apt?)", err)
	}
	found, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, archive := range found {
		if err := quiet(command(ctx, work, "dpkg-deb", "--extract", archive, root)); err != nil {
			return err
		}
	}
	if err := os.Rename(root, kit.Debian); err != nil && !errors.Is(err, fs.ErrExist) { // another run may have been faster
		return err
	}
	return nil
}

// download fetches the packages into a folder. The lists of what there is are often
// not there in containers.
func download(ctx context.Context, dir string) error {
	get := func() error {
		return quiet(command(ctx, dir, "apt-get", append([]string{
			"install", "--yes", "--download-only", "--reinstall", "--no-install-recommends",
			"--option=Dir::Cache::archives=" + dir, "--option=Debug::NoLocking=1",
		}, packages()...)...))
	}
	if get() == nil {
		return nil
	}
	return errors.Join(quiet(command(ctx, dir, "apt-get", "update")), get())
}

// usePackages has this process, and what it starts, find the packages' programs first,
// and the libraries that the host lacks.
func usePackages(kit *lab.Kit) error {
	var programs []string
	for _, dir := range []string{"usr/sbin", "usr/bin", "sbin", "bin"} {
		programs = append(programs, filepath.Join(kit.Debian, dir))
	}
	libraries, err := filepath.Glob(filepath.Join(kit.Debian, "usr/lib/*-linux-*"))
	if err != nil {
		return err
	}
	more, err := filepath.Glob(filepath.Join(kit.Debian, "lib/*-linux-*"))
	if err != nil {
		return err
	}
	list := string(filepath.ListSeparator)
	return errors.Join(
		os.Setenv("PATH", strings.Join(append(programs, os.Getenv("PATH")), list)),
		os.Setenv("LD_LIBRARY_PATH", strings.Join(append(libraries, more...), list)))
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
