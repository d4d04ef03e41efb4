// Package follow notices that files in a directory were replaced.
//
// A mount of a ConfigMap or Secret replaces its files by swapping a link, at a
// time of the kubelet's choosing; other tools rename one file after the other.
// Either is an event in the directory. Events can be lost, and a directory may
// come into being later, so that the files are looked at now and then in any case.
package follow

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Interval bounds how long a change goes unnoticed that no event announced.
const Interval = 10 * time.Second

// Directory calls look at once, whenever the directory changes, and once per
// interval, until the context ends.
func Directory(ctx context.Context, log *slog.Logger, dir string, interval time.Duration, look func()) {
	watcher, stop := watch(log, dir)
	defer stop()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		look()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-watcher.Events:
		case err := <-watcher.Errors:
			log.Warn("An event was missed", "directory", dir, "error", err)
		}
	}
}

// watch announces changes in the directory. Without it polling is left.
func watch(log *slog.Logger, dir string) (watcher *fsnotify.Watcher, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("Directory is polled only", "directory", dir, "error", err)
		return &fsnotify.Watcher{}, func() {}
	}
	if err := watcher.Add(dir); err != nil {
		log.Warn("Directory is polled only", "directory", dir, "error", err)
	}
	return watcher, func() { _ = watcher.Close() }
}
