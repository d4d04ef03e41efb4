package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// temporary is the pattern of files that are being written. No runtime takes the
// extension. They stand in the directory itself: containerd does not notice a
// file that is moved in from elsewhere.
const temporary = ".nodegate-*.tmp"

// abandonedAfter is the age from which on a temporary file is nobody's: another
// process may be writing a younger one.
const abandonedAfter = time.Minute

// ErrChanged says that somebody wrote the file at the same moment.
var ErrChanged = errors.New("it was changed at the same moment")

// Sweep removes temporary files that a crash has left in the directory.
func Sweep(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, temporary)) // the pattern is right
	for _, path := range left {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			_ = os.Remove(path) // harmless if it stays
		}
	}
}

// replace gives the file another text, in one step, unless it is no longer as it
// was read. Mode, owner, extended attributes and a link to it stay.
func replace(path string, was content, text []byte) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	file, err := writeBeside(target, text, func(file *os.File) error { return resemble(file, target, was.info) })
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file) }() // unless it was renamed
	unlock, err := lock(filepath.Dir(target))
	if err != nil {
		return err
	}
	defer unlock()
	if now, err := filepath.EvalSymlinks(path); err != nil || now != target || !unchanged(target, was.info) {
		return ErrChanged
	}
	if err := os.Rename(file, target); err != nil {
		return nameless(err)
	}
	if err := syncDirectory(filepath.Dir(target)); err != nil {
		return err
	}
	if found, _, err := readRegular(path); err != nil || !bytes.Equal(found, text) {
		return ErrChanged
	}
	if filepath.Dir(target) != filepath.Dir(path) {
		return poke(filepath.Dir(path))
	}
	return nil
}

// unchanged reports whether the file is the one that was read. It is no lock: who
// writes between this and a rename, and asks for none, loses and notices nothing.
func unchanged(path string, was fs.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && sameFile(now, was)
}

// sameFile reports whether it is one file, and was not written in between.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// lock keeps others of this program from writing in a directory: the keeper of
// another plugin in the same list, or an installer. It does not wait for them, for
// what they write is to be read first.
func lock(dir string) (unlock func(), err error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(opened.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = opened.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrChanged
		}
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return func() { _ = opened.Close() }, nil
}

// writeBeside writes a temporary file next to another, and gives it its look.
func writeBeside(path string, text []byte, look func(*os.File) error) (name string, err error) {
	Sweep(filepath.Dir(path))
	file, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return "", fmt.Errorf("making a temporary file: %w", nameless(err))
	}
	_, err = file.Write(text)
	if err == nil {
		err = look(file)
	}
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return "", fmt.Errorf("writing a temporary file: %w", nameless(err))
	}
	return file.Name(), nil
}

// nameless is an error without the name of a temporary file, which is another one
// each time: what lasts must read the same.
func nameless(err error) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) {
		return named.Err
	}
	if named := (*os.LinkError)(nil); errors.As(err, &named) {
		return named.Err
	}
	return err
}

func resemble(file *os.File, path string, like fs.FileInfo) error {
	is, err := file.Stat()
	if err != nil {
		return err
	}
	now, ok1 := is.Sys().(*syscall.Stat_t)
	old, ok2 := like.Sys().(*syscall.Stat_t)
	if ok1 && ok2 && (now.Uid != old.Uid || now.Gid != old.Gid) {
		if err := file.Chown(int(old.Uid), int(old.Gid)); err != nil {
			return fmt.Errorf("keeping its owner %d:%d, for which the capability CHOWN is needed: %w", old.Uid, old.Gid, nameless(err))
		}
	}
	if err := copyAttributes(path, file.Name()); err != nil {
		return err
	}
	return file.Chmod(like.Mode()) // last: a chown takes bits away
}

// place writes a whole file in one step, over whatever is there.
func place(path string, text []byte, mode fs.FileMode) error {
	name, err := writeBeside(path, text, func(file *os.File) error { return file.Chmod(mode) })
	if err != nil {
		return err
	}
	if err := os.Rename(name, path); err != nil {
		_ = os.Remove(name)
		return nameless(err)
	}
	return syncDirectory(filepath.Dir(path))
}

func syncDirectory(dir string) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}

// poke makes a runtime look at the directory again, which does not notice a change
// behind a link.
func poke(dir string) error {
	name, err := writeBeside(filepath.Join(dir, "poke"), []byte("\n"), func(*os.File) error { return nil })
	if err != nil {
		return fmt.Errorf("making the runtime look at %s: %w", dir, err)
	}
	return os.Remove(name)
}
