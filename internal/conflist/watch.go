package conflist

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// gathering is how long events are gathered before one look.
	gathering = 20 * time.Millisecond
	// rewatching is how often it is looked whether what is watched is still there.
	rewatching = time.Second
	// unwatched is how long nothing is watched after that was not possible.
	unwatched = 30 * time.Second
)

// Watch looks whenever the directory changes, or the one that a link in it leads
// to, until the context ends.
func (k *Keeper) Watch(ctx context.Context) {
	k.sweep()
	w := watch{log: k.log(), start: fsnotify.NewWatcher}
	defer w.close()
	tick := time.NewTicker(rewatching)
	defer tick.Stop()
	sweep := time.NewTicker(k.sweeping)
	defer sweep.Stop()
	for {
		if w.cover(k.directories()) {
			k.soon()
		}
		timer := time.NewTimer(k.untilDue())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.wake:
		case <-timer.C:
			k.relook()
		case <-w.events():
			k.soon()
		case err := <-w.errors():
			w.log.Debug("Events may have been lost", "error", err)
			k.soon()
		case <-tick.C: // what is watched may have been replaced
		case <-sweep.C: // what a crash has left was too young at first
			k.sweep()
		}
		timer.Stop()
	}
}

func (k *Keeper) log() *slog.Logger {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.host.Log
}

func (k *Keeper) directories() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	dirs := []string{k.options.Dir}
	if k.target != "" && filepath.Dir(k.target) != filepath.Clean(k.options.Dir) {
		dirs = append(dirs, filepath.Dir(k.target))
	}
	return dirs
}

// sweep looks wherever the keeper may have written.
func (k *Keeper) sweep() {
	for _, dir := range k.directories() {
		Sweep(dir)
	}
}

func (k *Keeper) untilDue() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.due.IsZero() {
		return time.Hour // or until it is woken
	}
	return max(0, k.due.Sub(k.clock.Now()))
}

func (k *Keeper) soon() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.again(k.clock.Now().Add(gathering))
}

// relook looks with the runtime that was last asked for, if any was.
func (k *Keeper) relook() {
	k.mu.Lock()
	k.due = time.Time{}
	changed := false
	if k.options.Runtime.Name != "" {
		changed, _ = k.look()
	}
	host := k.host
	k.mu.Unlock()
	if changed {
		host.Changed()
	}
}

// watch is a set of watched directories.
type watch struct {
	log     *slog.Logger
	start   func() (*fsnotify.Watcher, error)
	watcher *fsnotify.Watcher
	// watched are the directories as they were when they were taken up.
	watched map[string]fs.FileInfo
	// broken is when watching was last found impossible.
	broken time.Time
}

// cover watches the directories and no others, and those that were replaced anew.
// It reports whether there may be something in them that no event told of.
func (w *watch) cover(dirs []string) (news bool) {
	if w.watcher == nil && !w.open() {
		return false
	}
	keep := map[string]fs.FileInfo{}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		before, was := w.watched[dir]
		switch {
		case err != nil:
			news = news || was
		case was && os.SameFile(before, info):
			keep[dir] = before
		default:
			_ = w.watcher.Remove(dir) // of the one that was there before
			if err := w.watcher.Add(dir); err != nil {
				w.fail(err)
				return true
			}
			keep[dir] = info
			news = true
		}
	}
	for dir := range w.watched {
		if _, ok := keep[dir]; !ok {
			_ = w.watcher.Remove(dir) // it may have ended by itself
		}
	}
	w.watched = keep
	return news
}

func (w *watch) open() bool {
	if time.Since(w.broken) < unwatched {
		return false
	}
	watcher, err := w.start()
	if err != nil {
		w.fail(err)
		return false
	}
	w.watcher = watcher
	return true
}

// fail gives up for a while: the directories are looked at all the same, only not
// at once.
func (w *watch) fail(err error) {
	if w.broken.IsZero() {
		w.log.Warn("CNI configuration cannot be watched, it is looked at now and then", "error", err)
	}
	w.broken = time.Now()
	w.close()
	w.watcher, w.watched = nil, nil
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}

func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}
