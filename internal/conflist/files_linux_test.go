package conflist_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func owner(info fs.FileInfo) (uid, gid uint32) {
	stat, _ := info.Sys().(*syscall.Stat_t)
	return stat.Uid, stat.Gid
}

func setAttribute(path, name, value string) error {
	return syscall.Setxattr(path, name, []byte(value), 0)
}

func getAttribute(path, name string) string {
	value := make([]byte, 100)
	n, err := syscall.Getxattr(path, name, value)
	if err != nil {
		return err.Error()
	}
	return string(value[:n])
}

// readOnly is a directory with a list and nothing else that can be written in it,
// by root neither, or skips the test.
func readOnly(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, "10-n.conflist", unchained)
	if os.Geteuid() == 0 {
		mount(t, dir, "", syscall.MS_BIND)
		mount(t, dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY)
		return dir
	}
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	return dir
}

// full is a directory with a list on a file system that holds no more, or skips
// the test.
func full(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	mount(t, dir, "size=4k", 0)
	put(t, dir, "10-n.conflist", unchained)
	return dir
}

// mount mounts a tmpfs, or the directory over itself.
func mount(t *testing.T, dir, options string, flags uintptr) {
	t.Helper()
	source := "tmpfs"
	if flags != 0 {
		source = dir
	}
	if err := syscall.Mount(source, dir, "tmpfs", flags, options); err != nil {
		t.Skipf("mounting takes rights that are not there: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// TestRead_RemovedDirectory: a mount goes on showing a directory that was removed,
// and not what took its place.
func TestRead_RemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "10-n.conflist", chained)
	opened, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.Close() }()
	mounted := fmt.Sprintf("/proc/self/fd/%d", opened.Fd())
	expect(t, reason(t, mounted), "")
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "10-n.conflist", chained)
	expect(t, reason(t, mounted), "was removed where it is mounted from")
	expect(t, reason(t, dir), "")
}
