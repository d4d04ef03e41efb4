package conflist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/test/syncbuf"
)

const (
	keptEntry = `{"type":"gate-cni","socket":"/run/gate.sock"}`
	without1  = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`
	with1     = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},` + keptEntry + `]}`
)

// kept is a directory with a keeper, and what that told.
type kept struct {
	*testing.T
	*Keeper
	clock *testclock.FakeClock
	disabled,
	binary string

	log syncbuf.Buffer

	mu     sync.Mutex
	events map[Event]int
}

func keep(t *testing.T, files map[string]string) *kept {
	t.Helper()
	w := &kept{T: t, clock: testclock.NewFakeClock(time.Now()), events: map[Event]int{}}
	o := Options{Dir: t.TempDir(), Plugin: "gate-cni", BinDir: t.TempDir()}
	w.disabled, w.binary = filepath.Join(t.TempDir(), "off"), filepath.Join(o.BinDir, o.Plugin)
	w.write(w.binary, "")
	if err := os.Chmod(w.binary, 0o700); err != nil {
		t.Fatal(err)
	}
	w.Keeper = NewKeeper(o, filepath.Join(o.Dir, ".gate-cni-entry"), func() bool {
		_, err := os.Stat(w.disabled)
		return err == nil
	})
	w.Keeper.clock = w.clock
	w.Attach(Host{Log: slog.New(slog.NewTextHandler(&w.log, nil)), Changed: func() {}, Count: func(e Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events[e]++
	}})
	for name, text := range files {
		w.put(name, text)
	}
	return w
}

func (w *kept) logged(text string) int {
	return strings.Count(w.log.String(), text)
}

func (w *kept) count(e Event) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[e]
}

func (w *kept) path(name string) string { return filepath.Join(w.options.Dir, name) }

func (w *kept) write(path, text string) {
	w.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// put replaces a file in one step, as installers do.
func (w *kept) put(name, text string) {
	w.Helper()
	w.write(w.path("new"), text)
	if err := os.Rename(w.path("new"), w.path(name)); err != nil {
		w.Fatal(err)
	}
}

func (w *kept) is(name, want string) {
	w.Helper()
	if got, err := os.ReadFile(w.path(name)); err != nil || string(got) != want {
		w.Errorf("%s is %q (%v), want %q", name, got, err, want)
	}
}

// look asks for an answer, which has the text in it; empty: it is good.
func (w *kept) look(want string) {
	w.Helper()
	runtime, err := ParseRuntime("containerd://2.2.0")
	if err != nil {
		w.Fatal(err)
	}
	err = w.Look(runtime)
	if (want == "") != (err == nil) || !strings.Contains(text(err), want) {
		w.Errorf("answer %v, want %q", err, want)
	}
}

// await fails with the text unless the condition comes to hold.
func (w *kept) await(otherwise string, holds func() bool) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !holds(); {
		select {
		case <-deadline:
			w.Fatal(otherwise)
		case <-tick.C:
		}
	}
}

// settled looks, lets the list settle and looks again.
func (w *kept) settled(first, then string) {
	w.Helper()
	w.look(first)
	w.clock.Step(settle)
	w.look(then)
}

// TestKeeper_Mends: another writer copies its own list over ours, again and again.
func TestKeeper_Mends(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1})
	w.look("")
	for round := 1; round <= 2; round++ {
		w.write(w.path("10-net.conflist"), without1) // as cp -f does
		w.look("is not in the list")
		w.is("10-net.conflist", without1)
		w.clock.Step(settle - 1)
		w.look("is not in the list") // it might not be done
		w.is("10-net.conflist", without1)
		w.clock.Step(1)
		w.look("")
		w.is("10-net.conflist", with1)
		if w.count(Stripped) != round || w.count(Event(Append)) != round || w.logged("Mended the CNI configuration") != round {
			t.Errorf("round %d: events %v, log:\n%s", round, w.events, w.log.String())
		}
	}
}

// TestKeeper_WritesNothing where nothing is to be done, however often it looks.
func TestKeeper_WritesNothing(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1, ".gate-cni-entry": keptEntry})
	before, err := os.Stat(w.path("10-net.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Stat(w.options.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		w.settled("", "")
	}
	after, err := os.Stat(w.path("10-net.conflist"))
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("the list was written: %v", err)
	}
	if now, err := os.Stat(w.options.Dir); err != nil || !now.ModTime().Equal(dir.ModTime()) {
		t.Errorf("something in the directory was written: %v", err)
	}
}

// TestKeeper_Span: whoever was called by a list learns since when the plugin is run
// by what is loaded.
func TestKeeper_Span(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1})
	start := w.clock.Now()
	expect := func(runs bool, since time.Time) {
		t.Helper()
		if got := w.Span(); got.Runs != runs || !got.Since.Equal(since) {
			t.Errorf("%+v, want %t since %s", got, runs, since)
		}
	}
	expect(true, time.Time{}) // nothing is known
	written := start.Add(-time.Hour)
	if err := os.Chtimes(w.path("10-net.conflist"), written, written); err != nil {
		t.Fatal(err)
	}
	w.look("")
	expect(true, written)
	w.write(w.path("10-net.conflist"), with1+"\n") // another text that runs it
	w.look("")
	expect(true, written)

	w.clock.Step(time.Second)
	w.write(w.path("10-net.conflist"), without1)
	w.look("is not in the list")
	expect(false, start.Add(time.Second))
	w.clock.Step(settle)
	w.look("")
	expect(true, start.Add(time.Second+settle))
	w.write(w.disabled, "")
	w.look("")
	expect(true, time.Time{})

	// A list that was written when the clock was ahead.
	w = keep(t, map[string]string{"10-net.conflist": with1})
	written = w.clock.Now().Add(time.Hour)
	if err := os.Chtimes(w.path("10-net.conflist"), written, written); err != nil {
		t.Fatal(err)
	}
	w.look("")
	expect(true, time.Time{})
}

// TestKeeper_HalfWritten: a list that comes in two parts is not touched before it
// is whole and settled.
func TestKeeper_HalfWritten(t *testing.T) {
	w := keep(t, map[string]string{".gate-cni-entry": keptEntry})
	for _, part := range []string{"", without1[:20], without1[:len(without1)-1]} {
		w.write(w.path("10-net.conflist"), part)
		for range 3 {
			w.settled("unexpected end of JSON input", "unexpected end of JSON input")
			w.clock.Step(time.Minute)
		}
		w.is("10-net.conflist", part)
	}
	w.write(w.path("10-net.conflist"), without1)
	w.settled("is not in the list", "")
	w.is("10-net.conflist", with1)
}

// TestKeeper_Primes: the plugin was taken out before the agent's first look, or no
// network is there yet.
func TestKeeper_Primes(t *testing.T) {
	w := keep(t, nil)
	w.settled("no CNI configuration", "no CNI configuration")
	w.put("10-net.conflist", without1)
	w.settled("is not in the list", "no entry is known")
	w.write(w.path(".gate-cni-entry"), "{")
	w.clock.Step(failedPause)
	w.settled("no entry is known", "no entry is known")
	if w.logged("Kept entry is of no use") != 1 {
		t.Errorf("log:\n%s", w.log.String())
	}
	w.put(".gate-cni-entry", keptEntry)
	w.clock.Step(failedPause)
	w.settled("", "")
	w.is("10-net.conflist", with1)

	// Two files in quick succession, of which the second sorts first.
	w.put("20-a.conflist", without1)
	w.put("05-b.conflist", without1)
	w.settled("05-b.conflist", "")
	w.is("05-b.conflist", with1)
	w.is("20-a.conflist", without1)
}

// TestKeeper_FollowsTheActiveFile, whatever its name.
func TestKeeper_FollowsTheActiveFile(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1})
	w.look("")
	w.put("20-new.conflist", without1)
	if err := os.Remove(w.path("10-net.conflist")); err != nil {
		t.Fatal(err)
	}
	w.settled("20-new.conflist", "")
	w.is("20-new.conflist", with1)
	w.put("05-single.conf", `{"name":"n","cniVersion":"1.0.0","type":"ptp"}`)
	w.settled("05-single.conf is loaded, a single plugin", "05-single.conf is loaded, a single plugin")
	w.is("20-new.conflist", with1)
}

// TestKeeper_Entry: what was seen wins over what the installer left, unless that is
// newer.
func TestKeeper_Entry(t *testing.T) {
	edited := strings.Replace(with1, "/run/gate.sock", "/run/by-hand.sock", 1)
	w := keep(t, map[string]string{".gate-cni-entry": keptEntry})
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(w.path(".gate-cni-entry"), old, old); err != nil {
		t.Fatal(err)
	}
	w.put("10-net.conflist", edited)
	w.settled("", "")
	w.put("10-net.conflist", without1)
	w.settled("is not in the list", "")
	w.is("10-net.conflist", edited)

	soon := time.Now().Add(time.Minute)
	if err := os.Chtimes(w.path(".gate-cni-entry"), soon, soon); err != nil {
		t.Fatal(err)
	}
	w.settled("has other settings", "")
	w.is("10-net.conflist", with1)
	if w.count(Stripped) != 1 || w.count(Event(Update)) != 1 {
		t.Errorf("events %v", w.events)
	}
}

// TestKeeper_EntryOfOurs: what a configuration says of nodegate's own plugin wins, though
// somebody wrote the list after the installer.
func TestKeeper_EntryOfOurs(t *testing.T) {
	w := keep(t, map[string]string{".gate-cni-entry": keptEntry})
	w.options.First = true
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(w.path(".gate-cni-entry"), old, old); err != nil {
		t.Fatal(err)
	}
	w.put("10-net.conflist", strings.Replace(with1, "/run/gate.sock", "/run/before.sock", 1))
	w.settled("has other settings", "")
	w.is("10-net.conflist", with1)
}

// TestKeeper_AnotherWriterFights: mended at once a few times, then less and less
// often, failing all the while, and told once.
func TestKeeper_AnotherWriterFights(t *testing.T) {
	const again = "another writer does it again and again"
	w := keep(t, map[string]string{"10-net.conflist": with1})
	w.look("")
	strip := func() {
		t.Helper()
		w.put("10-net.conflist", without1)
	}
	for range 2 {
		strip()
		w.settled("is not in the list", "")
	}
	strip()
	w.settled(again, again) // mended, and failing
	w.is("10-net.conflist", with1)

	begin := w.clock.Now()
	for w.clock.Since(begin) < time.Hour { // it restores its own 100 ms after each repair
		strip()
		for range 5 {
			w.clock.Step(time.Second)
			w.look(again)
		}
	}
	if repairs := w.count(Event(Append)); repairs < 60 || repairs > 400 {
		t.Errorf("%d repairs in an hour", repairs)
	}
	if n := w.logged("Another writer keeps"); n != 1 {
		t.Errorf("told %d times", n)
	}
	if n := w.logged("level=WARN"); n != 1 {
		t.Errorf("%d warnings", n)
	}

	w.clock.Step(fightMax)
	w.settled(again, again)
	w.is("10-net.conflist", with1)
	w.clock.Step(stripWindow)
	w.look("")
	if n := w.logged("Plugin stays in the CNI configuration again"); n != 1 {
		t.Errorf("its end was told %d times", n)
	}
	strip()
	w.settled("is not in the list", "")
}

// TestKeeper_SwitchedOff: it neither checks nor mends, and goes on where it was
// when it is switched on again.
func TestKeeper_SwitchedOff(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1})
	w.look("")
	w.write(w.disabled, "")
	w.put("10-net.conflist", without1)
	for range 3 {
		w.settled("", "")
		w.clock.Step(time.Minute)
	}
	w.is("10-net.conflist", without1)
	if err := os.Remove(w.disabled); err != nil {
		t.Fatal(err)
	}
	w.settled("is not in the list", "")
	w.is("10-net.conflist", with1)
	for range maxStrips {
		w.put("10-net.conflist", without1)
		w.clock.Step(settle)
		_ = w.Look(w.options.Runtime) // mends or waits
		w.clock.Step(settle)
		_ = w.Look(w.options.Runtime)
	}
	w.look("again and again")
	w.write(w.disabled, "")
	w.look("")
	if err := os.Remove(w.disabled); err != nil {
		t.Fatal(err)
	}
	w.look("") // what happened before does not count
	if n := w.logged("Switch of the CNI configuration's check was turned"); n != 4 {
		t.Errorf("told %d times:\n%s", n, w.log.String())
	}
}

// TestKeeper_BinaryFirst: no list names a binary that is not there, and no gate
// opens on one.
func TestKeeper_BinaryFirst(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": without1, ".gate-cni-entry": keptEntry})
	if err := os.Chmod(w.binary, 0o600); err != nil {
		t.Fatal(err)
	}
	w.settled("is not in the list", "is not executable")
	for range 10 {
		w.clock.Step(time.Second)
		w.look("is not executable") // said all the time, tried now and then
	}
	w.is("10-net.conflist", without1)
	if n := w.count(Failed); n != 3 {
		t.Errorf("tried %d times", n)
	}
	if n := w.logged("could not be mended"); n != 1 {
		t.Errorf("told %d times:\n%s", n, w.log.String())
	}
	if err := os.Chmod(w.binary, 0o700); err != nil {
		t.Fatal(err)
	}
	w.clock.Step(failedPause)
	w.look("")
	w.is("10-net.conflist", with1)
	if err := os.Remove(w.binary); err != nil {
		t.Fatal(err)
	}
	w.look("looking for the plugin's binary")
}

// TestKeeper_Watch: with real events and real time, and asked once only.
func TestKeeper_Watch(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1})
	w.Keeper.clock = NewKeeper(Options{}, "", nil).clock // the real one
	w.sweeping = time.Hour                               // it would make it look as well
	changed := make(chan struct{}, 100)
	host := w.host
	host.Changed = func() { changed <- struct{}{} }
	w.Attach(host)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Watch(ctx) }()
	defer func() { cancel(); <-done }()
	w.look("")
	mended := func(what string) {
		t.Helper()
		w.await(what+": not mended", func() bool {
			got, err := os.ReadFile(w.path("10-net.conflist"))
			return err == nil && string(got) == with1
		})
	}
	w.put("10-net.conflist", without1)
	mended("a list that is replaced")
	for range 2 { // it became another, and what it was
		<-changed
	}

	// The directory is replaced, as by a mount or a package's upgrade.
	if err := os.Rename(w.options.Dir, w.options.Dir+".old"); err != nil {
		t.Fatal(err)
	}
	w.await("that it is gone is not noticed", func() bool {
		w.Keeper.mu.Lock()
		defer w.Keeper.mu.Unlock()
		return strings.HasPrefix(w.answer, ErrNoCandidate.Error())
	})
	if err := os.Mkdir(w.options.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.put("10-net.conflist", without1)
	mended("a directory that is replaced")

	// A link leads elsewhere, and its target is written.
	elsewhere := filepath.Join(t.TempDir(), "list")
	w.write(elsewhere, with1)
	if err := errors.Join(os.Remove(w.path("10-net.conflist")), os.Symlink(elsewhere, w.path("10-net.conflist"))); err != nil {
		t.Fatal(err)
	}
	mended("a link")
	w.look("")
	w.write(elsewhere, without1)
	mended("what a link leads to")
	if _, err := os.Readlink(w.path("10-net.conflist")); err != nil {
		t.Errorf("the link was replaced: %v", err)
	}
}

// TestKeeper_TwoInOneList: two plugins are kept in one list, which another writer
// takes both out of. Both are back, in their order, and neither undoes what the
// other has done, which would count as a strip.
func TestKeeper_TwoInOneList(t *testing.T) {
	const hold = `{"type":"hold-cni"}`
	const both = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},` + hold + `,` + keptEntry + `]}`
	gated := keep(t, map[string]string{"10-net.conflist": both, ".hold-cni-entry": hold})
	holding := keep(t, nil)
	holding.options.Dir, holding.options.Plugin, holding.options.First = gated.options.Dir, "hold-cni", true
	holding.entryFile = gated.path(".hold-cni-entry")
	holding.binary = filepath.Join(holding.options.BinDir, "hold-cni")
	holding.write(holding.binary, "")
	if err := os.Chmod(holding.binary, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	for _, w := range []*kept{gated, holding} {
		w.Keeper.clock = NewKeeper(Options{}, "", nil).clock // the real one
		group.Go(func() { w.Watch(ctx) })
		w.look("")
	}
	for range maxStrips - 1 {
		gated.put("10-net.conflist", without1)
		gated.await("not mended", func() bool {
			got, err := os.ReadFile(gated.path("10-net.conflist"))
			return err == nil && string(got) == both
		})
		for _, w := range []*kept{gated, holding} { // each has seen that it is well again
			w.await("not seen", func() bool { return w.Look(w.options.Runtime) == nil })
		}
	}
	for _, w := range []*kept{gated, holding} {
		if w.count(Stripped) != maxStrips-1 || w.count(Event(Append)) != maxStrips-1 || w.count(Event(Move)) != 0 {
			t.Errorf("events %v, log:\n%s", w.events, w.log.String())
		}
	}
}

// TestKeeper_LeavesToPeople what no program can decide: which of two places is to go
// is said, and is nothing that fails again and again.
func TestKeeper_LeavesToPeople(t *testing.T) {
	const delegating = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"multus","delegates":[{"plugins":[` + keptEntry + `]}]},` + keptEntry + `]}`
	w := keep(t, map[string]string{"10-net.conflist": delegating})
	for range 3 {
		w.settled("in the list and in what the main plugin itself says", "in the list and in what the main plugin itself says")
		w.clock.Step(failedPause)
	}
	w.is("10-net.conflist", delegating)
	if w.count(Failed) != 0 || w.logged("could not be mended") != 0 || !w.due.IsZero() {
		t.Errorf("events %v, to look again at %s, log:\n%s", w.events, w.due, w.log.String())
	}
}

// TestKeeper_Sweeps: what a crash has left is removed later, though nothing is
// mended, and though it was too young when the next agent started.
func TestKeeper_Sweeps(t *testing.T) {
	w := keep(t, map[string]string{"10-net.conflist": with1, ".nodegate-1.tmp": with1})
	w.sweeping = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Watch(ctx) }()
	defer func() { cancel(); <-done }()
	old := time.Now().Add(-2 * abandonedAfter)
	if err := os.Chtimes(w.path(".nodegate-1.tmp"), old, old); err != nil {
		t.Fatal(err)
	}
	w.await("what a crash has left is still there", func() bool {
		_, err := os.Stat(w.path(".nodegate-1.tmp"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// TestKeeper_SweepsBehindALink: what is written stands beside a link's target, and so
// does what a crash leaves.
func TestKeeper_SweepsBehindALink(t *testing.T) {
	w := keep(t, nil)
	elsewhere := t.TempDir()
	w.write(filepath.Join(elsewhere, "list"), with1)
	if err := os.Symlink(filepath.Join(elsewhere, "list"), w.path("10-net.conflist")); err != nil {
		t.Fatal(err)
	}
	abandon := func() (left string) {
		t.Helper()
		left = filepath.Join(elsewhere, ".nodegate-1.tmp")
		w.write(left, with1)
		old := time.Now().Add(-2 * abandonedAfter)
		if err := os.Chtimes(left, old, old); err != nil {
			t.Fatal(err)
		}
		return left
	}
	gone := func(path string) bool {
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	}
	w.look("")
	left := abandon()
	w.write(filepath.Join(elsewhere, "list"), without1)
	w.settled("is not in the list", "")
	if !gone(left) {
		t.Error("the next write leaves it there")
	}

	left = abandon()
	w.sweeping = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Watch(ctx) }()
	defer func() { cancel(); <-done }()
	w.await("what a crash has left is still there", func() bool { return gone(left) })
}

// TestWatch_Impossible: without a watch it is said once, and tried again later.
func TestWatch_Impossible(t *testing.T) {
	w := keep(t, nil)
	tries := 0
	watching := watch{log: w.host.Log, start: func() (*fsnotify.Watcher, error) {
		tries++
		if tries == 1 {
			return nil, errors.New("too many open files")
		}
		return fsnotify.NewWatcher()
	}}
	defer watching.close()
	for range 3 {
		if watching.cover([]string{w.options.Dir}) || watching.events() != nil || watching.errors() != nil {
			t.Error("it watches")
		}
	}
	if n := w.logged("cannot be watched"); n != 1 || tries != 1 {
		t.Errorf("told %d times after %d tries", n, tries)
	}
	watching.broken = time.Now().Add(-unwatched)
	if !watching.cover([]string{w.options.Dir}) || watching.events() == nil {
		t.Error("it is not tried again")
	}
	if watching.cover([]string{w.options.Dir}) {
		t.Error("news where nothing is new")
	}
}

func TestBackoff(t *testing.T) {
	var got []string
	for n := 1; n < 10; n++ {
		got = append(got, fmt.Sprint(backoff(n)))
	}
	if all := strings.Join(got, " "); all != "0s 0s 0s 5s 10s 20s 40s 1m0s 1m0s" {
		t.Error(all)
	}
}
