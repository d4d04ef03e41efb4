package conflist

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Event is something that happens to a list that is kept.
type Event string

// Stripped: another writer took the plugin out. Failed: a repair failed. Repairs
// that succeed are named by what they mended.
const (
	Stripped Event = "stripped"
	Failed   Event = "failed"
)

// Events lists all of them.
func Events() []Event {
	return []Event{Stripped, Failed, Event(Append), Event(Dedupe), Event(Move), Event(Update)}
}

// Host is who runs a keeper, and what it is told.
type Host struct {
	Log *slog.Logger
	// Changed is called when a watched directory makes the answer another.
	Changed func()
	Count   func(Event)
}

// Keeper keeps the plugin chained: each look reads the directory and mends what
// may be mended by now. [Keeper.Watch] makes it look as soon as something changes;
// without it, and where nothing can be watched, it is to be asked now and then.
type Keeper struct {
	// options lack the runtime.
	options   Options
	entryFile string
	off       func() bool
	clock     clock.PassiveClock
	// sweeping is how often it is looked for what a crash has left.
	sweeping time.Duration
	// wake has a message when due has changed.
	wake chan struct{}

	// span is of the last look. It is apart from what is locked while the disk is
	// written.
	span atomic.Pointer[Span]

	mu      sync.Mutex
	host    Host
	known   Known
	durable fs.FileInfo
	history history
	// due is when to look again; zero: at no time that is known.
	due time.Time
	// target is where the file really is.
	target string
	answer string
	// told is what was logged and holds still.
	told struct {
		off, contested bool
		entry, fault   string
	}
}

// NewKeeper returns a keeper for what the options say, whose runtime is given with
// each look. While off says so, it neither reads nor writes.
func NewKeeper(o Options, entryFile string, off func() bool) *Keeper {
	return &Keeper{
		options: o, entryFile: entryFile, off: off, clock: clock.RealClock{}, sweeping: abandonedAfter, wake: make(chan struct{}, 1),
		host: Host{Log: slog.New(slog.DiscardHandler), Changed: func() {}, Count: func(Event) {}},
	}
}

// Attach says who is told.
func (k *Keeper) Attach(host Host) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.host = host
}

// Look returns why the plugin is not chained, after what could be done about it.
func (k *Keeper) Look(runtime Runtime) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.options.Runtime = runtime
	_, err := k.look()
	return err
}

// Span returns whether what is loaded runs the plugin, and since when. It does not
// block. Before the first look, and while the keeper is off, it knows of no time in
// which the plugin was not run.
func (k *Keeper) Span() Span {
	if span := k.span.Load(); span != nil && span.seen {
		return *span
	}
	return Span{Runs: true}
}

// look reports in addition whether the answer is another than before.
func (k *Keeper) look() (changed bool, reason error) {
	reason = k.keep(k.clock.Now())
	span := k.history.span
	k.span.Store(&span)
	before := k.answer
	k.answer = text(reason)
	return before != k.answer, reason
}

func (k *Keeper) keep(now time.Time) error {
	k.due = time.Time{}
	if k.switchedOff() {
		return nil
	}
	k.prime()
	r := k.read(now)
	if r.Repairable() {
		if wait := k.history.wait(now); wait > 0 {
			k.again(now.Add(wait))
		} else {
			r = k.mend(r, now)
		}
	}
	return k.judge(r)
}

// switchedOff forgets what happened, so that nothing of it counts when the switch
// is turned again.
func (k *Keeper) switchedOff() bool {
	off := k.off()
	if off != k.told.off {
		k.told.off = off
		k.host.Log.Info("Switch of the CNI configuration's check was turned", "disabled", off)
	}
	if off {
		k.history = history{}
	}
	return off
}

// prime learns the durable entry, where the file is another than before.
func (k *Keeper) prime() {
	if k.entryFile == "" {
		return
	}
	info, err := os.Stat(k.entryFile)
	if err == nil && k.durable != nil && sameFile(info, k.durable) {
		return
	}
	var entry Entry
	var at time.Time
	if err == nil {
		entry, at, err = ReadEntry(k.entryFile, k.options.Plugin)
	}
	k.known.Durable, k.known.DurableAt, k.durable = entry, at, info
	fault := text(err)
	if fault != k.told.entry {
		switch {
		case err == nil:
			k.host.Log.Info("Learnt the kept entry", "file", k.entryFile)
		case !errors.Is(err, fs.ErrNotExist):
			k.host.Log.Warn("Kept entry is of no use", "file", k.entryFile, "error", err)
		}
	}
	k.told.entry = fault
}

// read reads the directory, and remembers what is seen there.
func (k *Keeper) read(now time.Time) Reading {
	r := Read(k.options, k.known)
	k.target = ""
	if r.Active != nil {
		k.target, _ = filepath.EvalSymlinks(r.Active.Path) // empty if it has gone by now
	}
	if r.Verdict == OK {
		if entry, at := r.Active.entry(k.options.Plugin); len(entry) > 0 {
			k.known.Observed, k.known.ObservedAt = entry, at
		}
	}
	k.history.span = k.history.span.then(r, k.clock.Now()) // writing it may have taken long
	if k.history.saw(r, now) {
		k.host.Count(Stripped)
	}
	return r
}

func (k *Keeper) mend(r Reading, now time.Time) Reading {
	err := Mend(k.options, r, k.known)
	switch {
	case errors.Is(err, ErrChanged):
		k.again(now.Add(settle))
		return r
	case err != nil:
		k.history.failed(err, now)
		k.again(now.Add(failedPause))
		k.host.Count(Failed)
		if fault := err.Error(); fault != k.told.fault {
			k.told.fault = fault
			k.host.Log.Warn("CNI configuration could not be mended", "verdict", r.Verdict, "reason", r.Reason, "error", err)
		}
		return r
	}
	k.told.fault = ""
	k.host.Count(Event(r.Verdict))
	k.host.Log.Info("Mended the CNI configuration", "verdict", r.Verdict, "was", r.Reason)
	return k.read(now)
}

// judge makes one answer of what is read and what has happened.
func (k *Keeper) judge(r Reading) error {
	reason := r.Reason
	switch {
	case r.Verdict == OK:
		reason = VerifyBinary(k.options.BinDir, k.options.Plugin)
	case k.history.fault != nil:
		reason = fmt.Errorf("%w; mending it: %w", reason, k.history.fault)
	}
	contested := k.history.contested()
	if (contested != nil) != k.told.contested {
		k.told.contested = contested != nil
		if contested != nil {
			k.host.Log.Warn("Another writer keeps taking the plugin out of the CNI configuration, it is mended less often", "directory", k.options.Dir, "hint", hint(r))
		} else {
			k.host.Log.Info("Plugin stays in the CNI configuration again", "directory", k.options.Dir)
		}
	}
	switch {
	case contested == nil:
		return reason
	case reason == nil:
		return contested
	}
	return fmt.Errorf("%w; %w", contested, reason)
}

// hint names a known writer that can be told to let others in.
func hint(r Reading) string {
	if r.Active != nil && count(r.Active.Plugins(), "cilium-cni") > 0 {
		return "Cilium: set cni.exclusive=false"
	}
	return "find out who writes the list"
}

// again makes the watch look at a time, unless it does so before.
func (k *Keeper) again(at time.Time) {
	if !k.due.IsZero() && k.due.Before(at) {
		return
	}
	k.due = at
	select {
	case k.wake <- struct{}{}:
	default: // it has yet to hear of the last change
	}
}
