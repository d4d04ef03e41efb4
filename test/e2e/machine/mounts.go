//go:build linux

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// tunables are of the whole host. A kubelet sets them unless they are as it wants
// them; in a machine they seem to be.
func tunables() map[string]string {
	return map[string]string{
		"vm/overcommit_memory":      "1\n",
		"vm/panic_on_oom":           "0\n",
		"kernel/panic":              "10\n",
		"kernel/panic_on_oops":      "1\n",
		"kernel/keys/root_maxkeys":  "1000000\n",
		"kernel/keys/root_maxbytes": "25000000\n",
	}
}

// mountAll gives the machine a file system of its own: the host's programs and
// libraries to read, the disk, and what is lost at every boot.
func (b boot) mountAll() error {
	newRoot := filepath.Join(b.Dir, "root")
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := mount("tmpfs", newRoot, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	at := func(path string) string { return filepath.Join(newRoot, path) }
	for _, step := range []func(func(string) string) error{
		bindHost, b.bindDisk, b.bindPrograms, mountDevices, b.mountKernel, b.mountLost,
	} {
		if err := step(at); err != nil {
			return err
		}
	}
	return enter(newRoot)
}

// bindHost binds the folders that programs are made of.
func bindHost(at func(string) string) error {
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		info, err := os.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(dir)
			if err == nil {
				err = os.Symlink(target, at(dir))
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := bind(dir, at(dir), true); err != nil {
			return err
		}
	}
	return nil
}

func (b boot) bindDisk(at func(string) string) error {
	for _, dir := range []string{"/etc", "/opt", "/var", "/root"} {
		if err := bind(filepath.Join(b.Dir, "disk", dir), at(dir), false); err != nil {
			return err
		}
	}
	// The linker's cache is all that programs need of the host's /etc.
	if cache, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		return os.WriteFile(at("/etc/ld.so.cache"), cache, 0o644)
	}
	return nil
}

// bindPrograms binds what is no part of the host.
func (b boot) bindPrograms(at func(string) string) error {
	if err := bind(b.Debian, at("/machine/debian"), true); err != nil {
		return err
	}
	if err := bindFile(b.Kubelet, at("/machine/kubelet")); err != nil {
		return err
	}
	for i, image := range b.Images {
		if err := bindFile(image, at(fmt.Sprintf("/machine/images/%d.tar", i))); err != nil {
			return err
		}
	}
	return nil
}

func mountDevices(at func(string) string) error {
	if err := bind("/dev", at("/dev"), false); err != nil {
		return err
	}
	if err := mount("devpts", at("/dev/pts"), "devpts", syscall.MS_NOSUID|syscall.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return err
	}
	return mount("tmpfs", at("/dev/shm"), "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "")
}

// mountKernel mounts what the kernel shows, of this machine's namespaces.
func (b boot) mountKernel(at func(string) string) error {
	for kind, dir := range map[string]string{"proc": "/proc", "sysfs": "/sys"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			return err
		}
		if err := mount(kind, at(dir), kind, syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
			return err
		}
	}
	for _, g := range b.Groups {
		if g.Mount != hierarchies {
			if err := mount("cgroup", at(hierarchies), "tmpfs", 0, "mode=755"); err != nil {
				return err
			}
			break
		}
	}
	for _, g := range b.Groups {
		if err := os.MkdirAll(at(g.Mount), 0o755); err != nil {
			return err
		}
		if err := mount(g.Kind, at(g.Mount), g.Kind, syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, g.Flags); err != nil {
			return err
		}
		if err := g.leaveRoot(at(g.Mount)); err != nil {
			return err
		}
	}
	return nil
}

// leaveRoot moves process 1 into a group of its own: in version 2 a group that has
// processes can have no groups below that use controllers.
func (g Group) leaveRoot(root string) error {
	if g.Kind != "cgroup2" || g.Mount != hierarchies {
		return nil
	}
	leaf := filepath.Join(root, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0o600); err != nil {
		return err
	}
	return delegate(root)
}

// mountLost mounts what does not outlast the boot, and the boot's id.
func (b boot) mountLost(at func(string) string) error {
	for _, dir := range []string{"/run", "/tmp"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			return err
		}
		if err := mount("tmpfs", at(dir), "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=1777"); err != nil {
			return err
		}
	}
	files := map[string]string{bootIDFile: "/proc/sys/kernel/random/boot_id"}
	contents := map[string]string{bootIDFile: b.BootID + "\n"}
	for name, value := range tunables() {
		file := filepath.Join("/run/machine", filepath.Base(name))
		files[file], contents[file] = filepath.Join("/proc/sys", name), value
	}
	if err := os.MkdirAll(at("/run/machine"), 0o755); err != nil {
		return err
	}
	for file, over := range files {
		if err := os.WriteFile(at(file), []byte(contents[file]), 0o644); err != nil {
			return err
		}
		if err := mount(at(file), at(over), "", syscall.MS_BIND, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// enter makes the folder the root of the file system.
func enter(root string) error {
	old := filepath.Join(root, "old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := syscall.PivotRoot(root, old); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := syscall.Unmount("/old", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	if err := os.Remove("/old"); err != nil {
		return err
	}
	// As on any host that systemd has booted.
	return mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, "")
}

func bind(from, to string, readOnly bool) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return mount("", to, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

func bindFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(to, nil, 0o644); err != nil {
		return err
	}
	return mount(from, to, "", syscall.MS_BIND, "")
}

func mount(from, to, kind string, flags uintptr, options string) error {
	if err := syscall.Mount(from, to, kind, flags, options); err != nil {
		return fmt.Errorf("%s at %s: %w", kind, to, err)
	}
	return nil
}
