package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/nodegate/nodegate/gate"
)

// SocketCheck passes while something accepts connections on the Unix socket. It
// refuses a path that no socket can have. A path that exists proves nothing (a
// killed server leaves its socket behind), so it connects.
func SocketCheck(path string) (Check, error) {
	if len(path) > gate.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes; the kernel allows %d", path, len(path), gate.MaxSocketPath)
	}
	return CheckFunc(func(ctx context.Context) error { return connect(ctx, path) }), nil
}

func connect(ctx context.Context, path string) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("socket %s: %s", path, explain(ctx, path, err))
	}
	return connection.Close()
}

// explain says in a person's words why a connect failed.
func explain(ctx context.Context, path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "absent"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	case errors.Is(err, syscall.ECONNREFUSED):
		return explainRefused(path)
	case errors.Is(err, syscall.EPROTOTYPE):
		return "not a stream socket"
	case errors.Is(err, syscall.EAGAIN):
		return "its server accepts nothing: the queue of connections is full"
	case errors.Is(err, os.ErrDeadlineExceeded), ctx.Err() != nil:
		return "no answer in time"
	}
	return err.Error()
}

// explainRefused tells a socket that nobody listens on from what is no socket,
// which the kernel refuses alike.
func explainRefused(path string) string {
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return "not a socket"
	}
	return "refused: nobody listens"
}
