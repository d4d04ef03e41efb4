package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// fileCheck looks for a path.
type fileCheck struct {
	path string
	// maxAge is zero if any age will do.
	maxAge time.Duration
	now    func() time.Time
}

func newFileCheck(c gate.FileCheck) Check {
	check := fileCheck{path: c.Path, now: time.Now}
	if c.MaxAge != nil {
		check.maxAge = c.MaxAge.Duration
	}
	return check
}

// Check implements [Check].
func (c fileCheck) Check(context.Context, *corev1.Node) error {
	info, err := os.Stat(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("file %s: absent", c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("file %s: permission denied", c.path)
	case err != nil:
		return fmt.Errorf("looking for a file: %w", err)
	case c.maxAge == 0:
		return nil
	}
	// Whatever clock the file was written by, it is this machine's. If that was set
	// back since, the file looks as if it were of the future.
	switch age := c.now().Sub(info.ModTime()); {
	case age >= c.maxAge:
		return fmt.Errorf("file %s: last changed at %s, more than %s ago", c.path, stamp(info.ModTime()), c.maxAge)
	case age <= -c.maxAge:
		return fmt.Errorf("file %s: last changed at %s, more than %s ahead of the node's clock", c.path, stamp(info.ModTime()), c.maxAge)
	}
	return nil
}

func (c fileCheck) restartFor() error { return removed(filepath.Dir(c.path)) }

func stamp(t time.Time) string { return t.UTC().Format(gate.TimeLayout) }
