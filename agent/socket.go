package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// SocketCheck passes while something accepts connections on the Unix socket. It
// refuses a path that no socket can have. A path that exists proves nothing (a
// killed server leaves its socket behind), so it connects.
func SocketCheck(path string) (Check, error) { return newSocketCheck(gate.SocketCheck{Path: path}) }

// socketCheck connects and, if there is a question, asks it.
type socketCheck struct {
	path string
	ask  question
}

// question asks a server for its health on a connection, and returns why it is
// not healthy. It does not close the connection.
type question func(ctx context.Context, connection net.Conn) error

func newSocketCheck(c gate.SocketCheck) (Check, error) {
	if len(c.Path) > gate.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes; the kernel allows %d", c.Path, len(c.Path), gate.MaxSocketPath)
	}
	check := socketCheck{path: c.Path}
	if c.HTTP != nil {
		check.ask = httpGet{host: "localhost", path: c.HTTP.Path}.ask
	}
	return check, nil
}

// Check implements [Check].
func (c socketCheck) Check(ctx context.Context, _ *corev1.Node) error {
	connection, err := connect(ctx, "unix", c.path)
	if err != nil {
		return fmt.Errorf("socket %s: %w", c.path, err)
	}
	defer func() { _ = connection.Close() }() // nothing was to be kept
	if c.ask == nil {
		return nil
	}
	if err := c.ask(ctx, connection); err != nil {
		return fmt.Errorf("socket %s: %w", c.path, err)
	}
	return nil
}

// explain says in a person's words why a connect failed.
func explain(ctx context.Context, network, address string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "absent"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	case errors.Is(err, syscall.ECONNREFUSED):
		return explainRefused(network, address)
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
func explainRefused(network, address string) string {
	if network == "unix" {
		if info, err := os.Stat(address); err == nil && info.Mode()&fs.ModeSocket == 0 {
			return "not a socket"
		}
	}
	return "refused: nobody listens"
}
