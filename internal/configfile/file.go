// Package configfile follows the configuration file while a program runs.
//
// A file that cannot be read or is wrong is reported once and changes nothing: the
// last good configuration stays in force.
package configfile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/follow"
)

// File is a configuration file and what was last read from it.
type File struct {
	path     string
	log      *slog.Logger
	onChange func(before, after *gate.Configuration)
	interval time.Duration

	current atomic.Pointer[gate.Configuration]
	// content and fault are of the last reading, so that each is looked at once.
	content []byte
	fault   string
}

// Open reads the file, which must be there and right. An empty path stands for
// the default configuration, which never changes. onChange is called, from
// [File.Start], after another configuration has come into force.
func Open(path string, log *slog.Logger, onChange func(before, after *gate.Configuration)) (*File, error) {
	f := &File{path: path, log: log, onChange: onChange, interval: follow.Interval}
	if path == "" {
		f.current.Store(gate.Default())
		return f, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading configuration: %w", err)
	}
	cfg, err := gate.ParseConfiguration(content)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	f.content = content
	f.current.Store(cfg)
	return f, nil
}

// Current is the configuration in force. It must not be changed.
func (f *File) Current() *gate.Configuration { return f.current.Load() }

// NeedLeaderElection implements the manager's LeaderElectionRunnable.
func (f *File) NeedLeaderElection() bool { return false }

// Start follows the file until the context ends.
func (f *File) Start(ctx context.Context) error {
	if f.path == "" {
		<-ctx.Done()
		return nil
	}
	follow.Directory(ctx, f.log, filepath.Dir(f.path), f.interval, f.read)
	return nil
}

func (f *File) read() {
	content, err := os.ReadFile(f.path)
	if err != nil {
		f.report(err.Error())
		return
	}
	if bytes.Equal(content, f.content) {
		f.fault = ""
		return
	}
	f.content = content
	cfg, err := gate.ParseConfiguration(content)
	if err != nil {
		f.report(err.Error())
		return
	}
	f.fault = ""
	before := f.current.Swap(cfg)
	f.log.Info("Configuration changed", "path", f.path, "mode", cfg.Mode, "gates", len(cfg.Gates))
	if f.onChange != nil {
		f.onChange(before, cfg)
	}
}

// report says what is wrong, once.
func (f *File) report(fault string) {
	if fault == f.fault {
		return
	}
	f.fault = fault
	f.log.Error("Configuration is not used, the last good one stays in force", "path", f.path, "error", fault)
}
