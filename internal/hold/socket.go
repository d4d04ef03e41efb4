package hold

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodegate/nodegate/internal/netconf"
)

const (
	// abandonedAfter is the age from which on the name of a socket that is being put
	// in place is nobody's.
	abandonedAfter = time.Minute
	// livesTimeout bounds the question whether somebody listens.
	livesTimeout = time.Second
)

// socket is a listener at a path at which processes follow each other. The newest
// one renames its own over that of the one before; nobody ever removes the path,
// so that whoever ends late takes nothing away from the next.
type socket struct {
	listener *net.UnixListener
	path     string
	info     fs.FileInfo
}

// listen takes the path over, whoever listens there.
func listen(path string) (*socket, error) {
	if err := prepare(path); err != nil {
		return nil, err
	}
	temporary := fmt.Sprintf("%s%08x", temporaryName(path), rand.Uint32())
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, bare(err)
	}
	listener.SetUnlinkOnClose(false)
	s := &socket{listener: listener, path: path}
	if err = os.Chmod(temporary, 0o600); err == nil {
		s.info, err = os.Lstat(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return nil, errors.Join(bare(err), listener.Close())
	}
	return s, nil
}

func temporaryName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+netconf.TemporaryInfix)
}

// prepare makes the directory, and sees to it that nobody else reaches into it.
func prepare(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if state, ok := info.Sys().(*syscall.Stat_t); ok && int(state.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, and not to this one, %d", dir, state.Uid, os.Geteuid())
	}
	others, err := sweep(path)
	if err != nil || info.Mode().Perm() == 0o700 {
		return err
	}
	// A mount makes its directory for everybody. One that is used for something else
	// is left as it is.
	if len(others) > 0 {
		return fmt.Errorf("%s is open to others (mode %04o) and holds %s: the socket needs a directory of its own", dir, info.Mode().Perm(), others[0])
	}
	return os.Chmod(dir, 0o700)
}

// sweep removes what a crash has left, and returns what is not ours.
func sweep(path string) (others []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	ours := filepath.Base(temporaryName(path))
	for _, entry := range entries {
		switch name := entry.Name(); {
		case name == filepath.Base(path):
		case !strings.HasPrefix(name, ours):
			others = append(others, name)
		default:
			if info, err := entry.Info(); err == nil && info.Mode()&fs.ModeSocket != 0 && time.Since(info.ModTime()) > abandonedAfter {
				_ = os.Remove(filepath.Join(filepath.Dir(path), name)) // harmless if it stays
			}
		}
	}
	return others, nil
}

// lost reports whether clients do not reach this listener, nor any other one.
func (s *socket) lost(ctx context.Context) bool {
	now, err := os.Lstat(s.path)
	if err != nil || os.SameFile(now, s.info) {
		return err != nil
	}
	ctx, cancel := context.WithTimeout(ctx, livesTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", s.path)
	if err == nil {
		_ = connection.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) // as behind a link
}
