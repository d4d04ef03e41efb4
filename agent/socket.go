package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

func newSocketCheck(c gate.SocketCheck) (Check, error) {
	if len(c.Path) > gate.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes; the kernel allows %d", c.Path, len(c.Path), gate.MaxSocketPath)
	}
	const host = "localhost" // as the request calls the server: a path is no host
	check := socketCheck{path: c.Path}
	switch {
	case c.HTTP != nil:
		check.ask = httpGet{host: host, path: c.HTTP.Path}.ask
	case c.GRPC != nil:
		check.ask = grpcHealth{host: host, service: c.GRPC.Service}.ask
	}
	return check, nil
}

// Check implements [Check].
func (c socketCheck) Check(ctx context.Context, _ *corev1.Node) error {
	if err := askAt(ctx, "unix", c.path, c.ask); err != nil {
		return fmt.Errorf("socket %s: %w", c.path, err)
	}
	return nil
}

func (c socketCheck) restartFor() error { return removed(filepath.Dir(c.path)) }

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
