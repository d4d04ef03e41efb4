package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodegate/nodegate/gate"
)

func TestSocketCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		given func(t *testing.T, path string)
		// want is part of the reason; empty: it passes.
		want string
	}{
		"something listens":             {func(t *testing.T, path string) { listen(t, path) }, ""},
		"a link to it":                  {func(t *testing.T, path string) { listen(t, path+".real"); link(t, path+".real", path) }, ""},
		"nothing there":                 {func(*testing.T, string) {}, "absent"},
		"a dangling link":               {func(t *testing.T, path string) { link(t, path+".gone", path) }, "absent"},
		"left behind by a killed one":   {leftBehind, "refused: nobody listens"},
		"deleted under its live server": {func(t *testing.T, path string) { listen(t, path); remove(t, path) }, "absent"},
		"a regular file":                {func(t *testing.T, path string) { write(t, path, "") }, "not a socket"},
		"a directory":                   {func(t *testing.T, path string) { mkdir(t, path) }, "not a socket"},
		"a link to a directory":         {func(t *testing.T, path string) { link(t, filepath.Dir(path), path) }, "not a socket"},
		"a datagram socket":             {datagram, "not a stream socket"},
		"a server that accepts nothing": {full, "the queue of connections is full"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "s")
			tc.given(t, path)
			check, err := SocketCheck(path)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			expectReason(t, check.Check(ctx, nil), path, tc.want)
		})
	}
}

func TestSocketCheck_Path(t *testing.T) {
	longest := "/" + strings.Repeat("a", gate.MaxSocketPath-1)
	if _, err := SocketCheck(longest); err != nil {
		t.Errorf("a path of %d bytes is refused: %v", len(longest), err)
	}
	_, err := SocketCheck(longest + "a")
	if err == nil || !strings.Contains(err.Error(), "108 bytes") || !strings.Contains(err.Error(), "107") {
		t.Errorf("error %v, want one with the path's length and the limit", err)
	}
}

func TestExplain(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		err  error
		want string
	}{
		"a policy forbids it":   {t.Context(), syscall.EACCES, "permission denied"},
		"a capability lacks":    {t.Context(), syscall.EPERM, "permission denied"},
		"the deadline has come": {t.Context(), os.ErrDeadlineExceeded, "no answer in time"},
		"the context ended":     {over, errors.New("operation was canceled"), "no answer in time"},
		"anything else":         {t.Context(), syscall.ELOOP, "too many levels of symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := explain(tc.ctx, "unix", "/s", tc.err); got != tc.want {
				t.Errorf("explained as %q, want %q", got, tc.want)
			}
		})
	}
}

func expectReason(t *testing.T, err error, path, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("fails: %v", err)
	case want != "" && err == nil:
		t.Errorf("passes, want it to fail as %q", want)
	case want != "" && (!strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), path)):
		t.Errorf("reason %q, want one that names the path and ends in %q", err, want)
	}
}

// socketDir is a directory with a path that is short enough.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ng")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func leftBehind(t *testing.T, path string) {
	t.Helper()
	listener := listen(t, path)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func datagram(t *testing.T, path string) {
	t.Helper()
	connection, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
}

// full listens with the shortest queue, never accepts, and fills the queue.
func full(t *testing.T, path string) {
	t.Helper()
	server := unixSocket(t, 0)
	if err := syscall.Bind(server, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(server, 0); err != nil {
		t.Fatal(err)
	}
	for {
		client := unixSocket(t, syscall.SOCK_NONBLOCK)
		if err := syscall.Connect(client, &syscall.SockaddrUnix{Name: path}); errors.Is(err, syscall.EAGAIN) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func unixSocket(t *testing.T, flags int) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
