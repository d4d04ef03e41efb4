package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// Verdict is what is to be done about what a runtime loads.
type Verdict string

const (
	// OK: the plugin runs for every pod, once, behind the main plugin; with
	// [Options.First] directly behind it.
	OK Verdict = "ok"
	// Append: the entry is missing, at the end of the list or directly behind the main
	// plugin.
	Append Verdict = "append"
	// Dedupe: it is there more than once, or its main plugin may run it once more.
	Dedupe Verdict = "dedupe"
	// Move: it is there in another place: before the main plugin or, with
	// [Options.First], behind others.
	Move Verdict = "move"
	// Update: it is there, and the installer has left a newer one since.
	Update Verdict = "update"
	// Convert: the file is of one plugin, and the installer can make a list of it.
	Convert Verdict = "convert"
	// Wait: nothing can be done yet. Such files are seen while they are written.
	Wait Verdict = "wait"
	// Refuse: nothing can be done by a program.
	Refuse Verdict = "refuse"
	// Indirect: the main plugin runs other configurations, the entry among them.
	Indirect Verdict = "indirect"
	// Version: it depends on the runtime's version, which is not known.
	Version Verdict = "version"
)

// repairs reports whether a list can be mended by changing its entries.
func (v Verdict) repairs() bool {
	return v == Append || v == Dedupe || v == Move || v == Update
}

// Options say whose eyes a directory is seen with, and what for.
type Options struct {
	Dir     string
	Plugin  string
	Runtime Runtime
	// First: the plugin is nodegate's own. It belongs directly behind the main plugin,
	// before all others that are chained, and with the settings that the installer has
	// left, which follow from a configuration. Others belong anywhere behind it, with
	// the newest settings.
	First bool
	// Network is the name of the cluster's network, where the first file does not
	// tell it: CRI-O picks by it. Optional.
	Network string
	// BinDir is where the runtime looks for plugins. Optional: they are then taken
	// to be there.
	BinDir string
}

// Reading is what a runtime loads, and what to make of it.
type Reading struct {
	Verdict Verdict
	// Reason is why the plugin is not chained; nil with [OK].
	Reason error
	// Active is what is loaded; nil if nothing is, or it depends.
	Active *Active
	// Passed are the files which the runtime passes over for it, with the reason.
	Passed []error
	// twice: the list has the plugin once, and its main plugin may run it once more. No
	// program can tell which is to go.
	twice bool
}

// Repairable reports whether [Mend] does what the verdict says.
func (r Reading) Repairable() bool { return r.Verdict.repairs() && !r.twice }

// Read looks at the directory once.
func Read(o Options, known Known) Reading {
	dir, err := openDirectory(o.Dir)
	if err != nil {
		return failure(err)
	}
	var result Reading
	for i, l := range o.Runtime.levels {
		r := dir.readAs(o, known, l)
		if i > 0 && r.Verdict != result.Verdict {
			r.Reason = fmt.Errorf("it depends on the runtime's version, which is not known: with %s %s (%s), with %s %s (%s)",
				o.Runtime.levels[i-1], result.Verdict, text(result.Reason), l, r.Verdict, text(r.Reason))
			r.Verdict = Version
		}
		result = r
		if r.Verdict == Version {
			result.Active = dir.readAs(o, known, o.Runtime.newest()).Active
			break
		}
	}
	return result
}

func text(err error) string {
	if err == nil {
		return "chained"
	}
	return err.Error()
}

func (d *directory) readAs(o Options, known Known, l level) Reading {
	active, passed, err := d.load(o, l)
	r := Reading{Active: active, Passed: passed}
	if err != nil {
		failed := failure(err)
		r.Verdict, r.Reason = failed.Verdict, failed.Reason
		return r
	}
	r.Verdict, r.Reason = d.judge(active, o, known, l)
	r.twice = r.Verdict == Dedupe && count(active.Plugins(), o.Plugin) == 1
	switch {
	case !r.Verdict.repairs():
	case passing(passed) != nil:
		// CRI-O uses the next file for as long as one is being written.
		r.Verdict, r.Reason = Wait, fmt.Errorf("%w; %s is in use until then, where %w", passing(passed), active.Path, r.Reason)
	default:
		if err := d.loadsEverywhere(active.Path); err != nil {
			r.Verdict, r.Reason = Refuse, fmt.Errorf("%w; other versions of the runtime load nothing: %w", r.Reason, err)
		}
	}
	return r
}

// passing returns what stands in the way of a file that may be of use in a moment.
func passing(passed []error) error {
	for _, err := range passed {
		if unfinished(err) {
			return err
		}
	}
	return nil
}

// loadsEverywhere keeps hands off a list that some runtime would not load.
func (d *directory) loadsEverywhere(path string) error {
	for _, l := range levels() {
		if _, err := d.file(path, l); err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
	}
	return nil
}

// failure tells what writers cause in passing from what stays as it is.
func failure(err error) Reading {
	r := Reading{Verdict: Refuse, Reason: err}
	var other notRegularError
	switch {
	case errors.Is(err, ErrNoCandidate), errors.Is(err, errNetwork),
		errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP),
		errors.As(err, &other) && other.mode.IsDir(), unfinished(err):
		r.Verdict = Wait
	}
	return r
}

// unfinished tells what a file says that is not JSON yet from what never will be.
func unfinished(err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax) && !strings.Contains(syntax.Error(), "exceeded max depth")
}

// judge holds what is loaded against what should be.
func (d *directory) judge(a *Active, o Options, known Known, l level) (Verdict, error) {
	delegator := isDelegator(a.Plugins()[0].Network.Type)
	switch {
	case a.bystander() && o.Network != a.Network:
		return Refuse, fmt.Errorf("%s is loaded, network %q: it belongs to a container tool and is not known to be the cluster's", a.Path, a.Network)
	case a.Single && delegator:
		return Indirect, fmt.Errorf("%s is loaded, a single plugin and no list: %q runs other configurations", a.Path, a.Types()[0])
	case !speaks(a.CNIVersion):
		return Refuse, fmt.Errorf("%s: %w %q", a.Path, errVersion, a.CNIVersion)
	case count(a.Plugins(), o.Plugin) == len(a.Plugins()):
		return Refuse, fmt.Errorf("%s: plugin %q is alone, without a main plugin", a.Path, o.Plugin)
	case a.Single:
		return d.judgeSingle(a)
	case delegator:
		if where := d.delegates(a, o.Plugin); where != "" {
			return judgeDelegator(a, o.Plugin, where)
		}
	}
	if source, stale := d.stale(a, l); stale {
		return Convert, fmt.Errorf("%s is loaded, made of %s, which is another by now", a.Path, source)
	}
	return judgeList(a, o, known)
}

func (d *directory) judgeSingle(a *Active) (Verdict, error) {
	if list, taken := d.taken(a.Path); taken {
		return Refuse, fmt.Errorf("%s is loaded, a single plugin and no list: nothing is chained in it, and %s is not read for it", a.Path, list)
	}
	if a.Network == "" {
		return Refuse, fmt.Errorf("%s is loaded, a single plugin and no list, and without a name: no list can be made of it", a.Path)
	}
	return Convert, fmt.Errorf("%s is loaded, a single plugin and no list: nothing is chained in it", a.Path)
}

func judgeDelegator(a *Active, plugin, where string) (Verdict, error) {
	main := a.Types()[0]
	if count(a.Plugins(), plugin) == 0 {
		return Indirect, fmt.Errorf("%s: plugin %q is not in the list but in %s, to which %q may delegate", a.Path, plugin, where, main)
	}
	return Dedupe, fmt.Errorf("%s: plugin %q is in the list and in %s, to which %q may delegate", a.Path, plugin, where, main)
}

func judgeList(a *Active, o Options, known Known) (Verdict, error) {
	plugin := o.Plugin
	inline, total := count(a.Inline, plugin), count(a.Plugins(), plugin)
	switch {
	case total == 0 && len(a.Inline) == 0:
		return Refuse, fmt.Errorf("%s: plugin %q is not in the list, which has its plugins elsewhere", a.Path, plugin)
	case total == 0:
		return Append, fmt.Errorf("%s: plugin %q is not in the list", a.Path, plugin)
	case total > inline && (total > 1 || a.Types()[0] == plugin):
		return Refuse, fmt.Errorf("%s: plugin %q is in the list %d times, or first, by a file in the folder %s", a.Path, plugin, total, a.Network)
	case total > 1:
		return Dedupe, fmt.Errorf("%s: plugin %q is in the list %d times", a.Path, plugin, total)
	case a.Types()[0] == plugin:
		return Move, fmt.Errorf("%s: plugin %q is first in the list, before the main plugin", a.Path, plugin)
	case o.First && a.Types()[1] != plugin && inline == 0:
		return Refuse, fmt.Errorf("%s: plugin %q is behind others, by a file in the folder %s", a.Path, plugin, a.Network)
	case o.First && a.Types()[1] != plugin:
		return Move, fmt.Errorf("%s: plugin %q is not directly behind the main plugin", a.Path, plugin)
	}
	if entry, at := a.entry(plugin); len(entry) > 0 && known.updates(o, entry, at) {
		return Update, fmt.Errorf("%s: plugin %q has other settings than the installer has left since", a.Path, plugin)
	}
	return OK, nil
}

// entry is the one of the plugin in the file itself, and when the file was
// written; empty if there is none.
func (a *Active) entry(plugin string) (Entry, time.Time) {
	l, ours, err := a.scan(plugin)
	if err != nil || len(ours) == 0 {
		return nil, time.Time{}
	}
	return Entry(l.text(ours[0])), a.content.info.ModTime()
}

func count(plugins []*libcni.PluginConfig, pluginType string) int {
	n := 0
	for _, plugin := range plugins {
		if plugin.Network.Type == pluginType {
			n++
		}
	}
	return n
}

// delegates tells where a main plugin that runs further configurations may find
// the plugin; empty if nowhere. It fails closed: a file that cannot be read may
// hold it.
func (d *directory) delegates(a *Active, plugin string) string {
	if mentions(a.Plugins()[0].Bytes, plugin) {
		return "what the main plugin itself says"
	}
	for _, path := range d.files {
		c := d.content(path)
		unknown := c.err != nil && !errors.Is(c.err, os.ErrNotExist)
		if path != a.Path && (unknown || mentions(c.data, plugin)) {
			return path
		}
	}
	return ""
}

// madeSuffix ends the names of lists that were made of a single plugin's file. It
// sorts before any extension, so that the list is read and not the file.
const madeSuffix = "-nodegate" + extensionList

// source is the single plugin's file that a list was made of; nil if it was made
// of none.
func (d *directory) source(made string, l level) (single *Active, path string) {
	stem, ok := strings.CutSuffix(made, madeSuffix)
	if !ok {
		return nil, ""
	}
	for _, path := range []string{stem + extensionSingle, stem + extensionJSON} {
		if single, err := d.file(path, l); err == nil {
			return single, path
		}
	}
	return nil, stem + extensionSingle
}

// stale reports whether a list was made of a single plugin's file that has
// changed since, and names that file.
func (d *directory) stale(a *Active, l level) (string, bool) {
	single, path := d.source(a.Path, l)
	if path == "" {
		return "", false
	}
	list, err := scan(a.content.data)
	current := single != nil && err == nil && len(list.entries) > 0 &&
		single.Network == a.Network && single.CNIVersion == a.CNIVersion &&
		Entry(single.content.data).same(Entry(list.text(0)))
	return path, !current
}
