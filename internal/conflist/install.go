package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Installation is what an installer brings, in addition to what it looks at.
type Installation struct {
	// Entry is the text of the entry. Without it the durable entry must be there.
	Entry []byte
	// EntryFile is where the durable entry is kept.
	EntryFile string
	// Binary is a file to install as the plugin's binary. Optional.
	Binary string
	// Convert allows to make a list of a single plugin's file.
	Convert bool
}

// maxAttempts bounds how often a repair starts over because somebody else wrote.
const maxAttempts = 5

// Chain installs the binary, then the durable entry, and then puts the entry into
// the list that is loaded, if there is one that takes it; what is there already is
// not written again. What it cannot mend is no error: the reading tells.
func Chain(o Options, in Installation) (Reading, error) {
	known, err := Install(o, in)
	if err != nil {
		return Reading{}, err
	}
	r := Read(o, known)
	for range maxAttempts {
		switch {
		case r.Verdict == Convert && in.Convert:
			err = convert(o, r, known.Durable)
		case r.Repairable():
			err = Mend(o, r, known)
		default:
			return r, nil
		}
		if err != nil && !errors.Is(err, ErrChanged) {
			return r, err
		}
		r = Read(o, known)
	}
	return r, nil
}

// unloaded keeps the entry's file apart from those that runtimes load, and that
// belong to others.
func unloaded(entryFile string) error {
	if slices.Contains(extensions(), filepath.Ext(entryFile)) {
		return fmt.Errorf("an entry cannot be kept in %s: a runtime would load it", entryFile)
	}
	return nil
}

// Install installs the binary, then the durable entry, and leaves the lists to an
// agent, who knows the node's runtime.
func Install(o Options, in Installation) (Known, error) {
	if err := unloaded(in.EntryFile); err != nil {
		return Known{}, err
	}
	Sweep(o.Dir)
	Sweep(o.BinDir)
	if in.Binary != "" {
		if err := installBinary(in.Binary, filepath.Join(o.BinDir, o.Plugin)); err != nil {
			return Known{}, fmt.Errorf("installing the plugin's binary: %w", err)
		}
	}
	if err := VerifyBinary(o.BinDir, o.Plugin); err != nil {
		return Known{}, err
	}
	return in.remember(o.Plugin)
}

// remember keeps the entry where agents find it.
func (in Installation) remember(plugin string) (Known, error) {
	if len(in.Entry) > 0 {
		entry, err := ParseEntry(in.Entry, plugin)
		if err != nil {
			return Known{}, fmt.Errorf("reading the entry: %w", err)
		}
		text := append(bytes.Clone(entry), '\n')
		if there, _, err := readRegular(in.EntryFile); err != nil || !bytes.Equal(there, text) {
			if err := place(in.EntryFile, text, 0o644); err != nil {
				return Known{}, fmt.Errorf("keeping the entry in %s: %w", in.EntryFile, err)
			}
		}
	}
	entry, at, err := ReadEntry(in.EntryFile, plugin)
	return Known{Durable: entry, DurableAt: at}, err
}

func installBinary(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	const mode = 0o755
	if info, err := os.Stat(to); err == nil && info.Mode() == mode && info.Size() == int64(len(text)) {
		if there, err := os.ReadFile(to); err == nil && bytes.Equal(there, text) {
			return nil
		}
	}
	return place(to, text, mode)
}

// convert makes a list of a single plugin's file, with its name and version, the
// plugin as it is spelled there, and the entry. The file stays: it may be a signal
// to others, its owner would bring it back, and without it there would be a moment
// with nothing to load.
func convert(o Options, r Reading, entry Entry) error {
	dir, err := openDirectory(o.Dir)
	if err != nil {
		return err
	}
	single, target := r.Active, strings.TrimSuffix(r.Active.Path, filepath.Ext(r.Active.Path))+madeSuffix
	if !single.Single { // made before, of what is another by now
		var path string
		if single, path = dir.source(r.Active.Path, o.Runtime.newest()); single == nil {
			return fmt.Errorf("%s was made of %s, which cannot be read any more", r.Active.Path, path)
		}
		target = r.Active.Path
	}
	text, err := single.asList(o.Plugin, entry)
	if err != nil {
		return fmt.Errorf("making a list of %s: %w", single.Path, err)
	}
	if target == r.Active.Path {
		err = replace(target, r.Active.content, text)
	} else {
		err = place(target, text, single.content.info.Mode())
	}
	if err != nil {
		return fmt.Errorf("making a list of %s: %w", single.Path, err)
	}
	return nil
}

func (a *Active) asList(plugin string, entry Entry) ([]byte, error) {
	fields := []string{`"name": ` + quoted(a.Network)}
	if a.CNIVersion != "" {
		fields = append(fields, `"cniVersion": `+quoted(a.CNIVersion))
	}
	plugins := bytes.TrimSpace(a.content.data)
	fields = append(fields, fmt.Sprintf(`"plugins": [%s,%s]`, plugins, entry))
	var text bytes.Buffer
	if err := json.Indent(&text, []byte("{"+strings.Join(fields, ",")+"}"), "", "  "); err != nil {
		return nil, err
	}
	text.WriteByte('\n')
	for _, l := range levels() {
		made, err := parseList(text.Bytes(), l)
		if err != nil {
			return nil, err
		}
		if made.Name != a.Network || made.CNIVersion != a.CNIVersion || len(made.Plugins) != 2 ||
			made.Plugins[0].Network.Type == plugin || made.Plugins[1].Network.Type != plugin {
			return nil, errors.New("it would be another network")
		}
	}
	return text.Bytes(), nil
}

func quoted(text string) string {
	quoted, _ := json.Marshal(text) //nolint:errchkjson // a string can be encoded
	return string(quoted)
}

// Unchain takes the plugin out of every list in the directory, and removes the
// lists that were made for it and the durable entry, before anything else: from
// then on nobody chains it again. Only where nothing names the plugin any more is
// its binary removed, if that is asked for.
func Unchain(o Options, entryFile string, removeBinary bool) error {
	if err := unloaded(entryFile); err != nil {
		return err
	}
	if err := remove(entryFile); err != nil {
		return fmt.Errorf("removing the entry's file: %w", err)
	}
	Sweep(o.Dir)
	for range maxAttempts {
		dir, err := openDirectory(o.Dir)
		if errors.Is(err, ErrNoCandidate) {
			break
		}
		if err != nil {
			return err
		}
		if err = dir.unchain(o.Plugin); err == nil {
			break
		}
		if !errors.Is(err, ErrChanged) {
			return err
		}
	}
	if err := unnamed(o); err != nil {
		return err
	}
	if !removeBinary {
		return nil
	}
	if err := remove(filepath.Join(o.BinDir, o.Plugin)); err != nil {
		return fmt.Errorf("removing the plugin's binary: %w", err)
	}
	return nil
}

func (d *directory) unchain(plugin string) error {
	for _, path := range slices.Backward(d.files) { // what is loaded comes last
		active, err := d.file(path, libcni13)
		if err != nil || active.Single || count(active.Inline, plugin) == 0 {
			continue
		}
		if single, _ := d.source(path, libcni13); single != nil {
			err = remove(path) // what it was made of is there, and is loaded now
		} else {
			err = active.strip(plugin)
		}
		if err != nil {
			return fmt.Errorf("taking plugin %q out of %s: %w", plugin, path, err)
		}
	}
	return nil
}

// strip takes all entries of the plugin out.
func (a *Active) strip(plugin string) error {
	l, ours, err := a.scan(plugin)
	if err != nil {
		return err
	}
	all, err := l.none(ours)
	if err != nil {
		return err
	}
	text := l.splice(all...)
	before, err := parseList(a.content.data, libcni13)
	if err != nil {
		return err
	}
	after, err := parseList(text, libcni13)
	if err != nil {
		return err
	}
	if err := alike(before, after, plugin); err != nil {
		return err
	}
	return replace(a.Path, a.content, text)
}

// unnamed reports which file still names the plugin. It looks for the text: a file
// that cannot be read now may be one that is read in a moment.
func unnamed(o Options) error {
	dir, err := openDirectory(o.Dir)
	if errors.Is(err, ErrNoCandidate) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, path := range dir.files {
		c := dir.content(path)
		if c.err != nil && !errors.Is(c.err, fs.ErrNotExist) {
			return fmt.Errorf("whether plugin %q is in use is not known: %w", o.Plugin, c.err)
		}
		if bytes.Contains(c.data, []byte(quoted(o.Plugin))) {
			return fmt.Errorf("%s still names plugin %q, its binary stays", path, o.Plugin)
		}
	}
	return nil
}

func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
