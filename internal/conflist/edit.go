package conflist

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// mend returns the list with the plugin's entries as the verdict wants them, and
// every other byte as it was. The result is one that libcni of every version
// loads as before, with the plugin in it once, behind the main plugin.
func (a *Active) mend(v Verdict, o Options, entry Entry) ([]byte, error) {
	text, err := a.edit(v, o, entry)
	switch {
	case err != nil:
		return nil, fmt.Errorf("changing %s: %w", a.Path, err)
	case len(text) > maxFileBytes:
		return nil, fmt.Errorf("changing %s: it would have more than %d bytes", a.Path, maxFileBytes)
	}
	for _, l := range levels() {
		if err := sound(a.content.data, text, o, l); err != nil {
			return nil, fmt.Errorf("changing %s, as %s would read it: %w", a.Path, l, err)
		}
	}
	return text, nil
}

func (a *Active) edit(v Verdict, o Options, entry Entry) ([]byte, error) {
	l, ours, err := a.scan(o.Plugin)
	if err != nil {
		return nil, err
	}
	if (v == Append || v == Update) && len(entry) == 0 {
		return nil, ErrNoEntry
	}
	switch v {
	case Append:
		behind := len(l.entries) - 1
		if o.First {
			behind = 0
		}
		return l.splice(l.insertion(behind, entry)), nil
	case Update:
		return l.splice(splice{l.entries[ours[0]], l.styled(entry)}), nil
	case Dedupe, Move:
		all, err := l.single(ours, entry, o.First)
		return l.splice(all...), err
	}
	return nil, fmt.Errorf("nothing mends what is %q", v)
}

// scan finds the plugins in the text, and which of them are ours.
func (a *Active) scan(plugin string) (l list, ours []int, err error) {
	if l, err = scan(a.content.data); err != nil {
		return l, nil, err
	}
	if len(l.entries) != len(a.Inline) {
		return l, nil, errors.New("its plugins were not found in its text")
	}
	for i, p := range a.Inline {
		if p.Network.Type == plugin {
			ours = append(ours, i)
		}
	}
	return l, ours, nil
}

// ErrNoEntry says that an entry is missing in a list and none is known.
var ErrNoEntry = errors.New("no entry is known to put into the list")

// single leaves one of our entries: the one that is as it should be, or else the
// last; at the end, if it stood before the main plugin. What belongs first is put
// directly behind the main plugin.
func (l list) single(ours []int, entry Entry, first bool) ([]splice, error) {
	keep := ours[len(ours)-1]
	for _, i := range ours {
		if len(entry) > 0 && entry.same(Entry(l.text(i))) {
			keep = i
		}
	}
	main, last, others := -1, 0, 0 // of the plugins of others: the first, the last, and how many before the one to keep
	for i := range l.entries {
		if slices.Contains(ours, i) {
			continue
		}
		last = i
		if main < 0 {
			main = i
		}
		if i < keep {
			others++
		}
	}
	if first {
		last = main
	} else if others > 0 {
		return l.none(slices.DeleteFunc(slices.Clone(ours), func(i int) bool { return i == keep }))
	}
	all, err := l.none(ours)
	return append(all, l.insertion(last, Entry(l.text(keep)))), err
}

// none leaves none of our entries, and fails where nothing else would be left.
func (l list) none(ours []int) ([]splice, error) {
	if len(ours) == len(l.entries) {
		return nil, errors.New("nothing else is in the list")
	}
	var all []splice
	leading := true
	for i := range l.entries {
		switch {
		case !slices.Contains(ours, i):
			leading = false
		case leading:
			all = append(all, splice{span{l.entries[i].from, l.entries[i+1].from}, nil})
		default:
			all = append(all, splice{span{l.entries[i-1].to, l.entries[i].to}, nil})
		}
	}
	return all, nil
}

// splice is a part of the text and what takes its place.
type splice struct {
	span
	text []byte
}

func (l list) splice(all ...splice) []byte {
	slices.SortStableFunc(all, func(a, b splice) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	var text []byte
	at := 0
	for _, s := range all {
		text = append(append(text, l.data[at:s.from]...), s.text...)
		at = s.to
	}
	return append(text, l.data[at:]...)
}

// insertion puts an entry behind another, apart from it as the others are.
func (l list) insertion(behind int, entry Entry) splice {
	at := l.entries[behind].to
	return splice{span{at, at}, append(l.separator(), l.styled(entry)...)}
}

// separator is what stands between two plugins.
func (l list) separator() []byte {
	if n := len(l.entries); n > 1 {
		return bytes.Clone(l.data[l.entries[n-2].to:l.entries[n-1].from])
	}
	return append([]byte{','}, l.data[l.first:l.entries[0].from]...)
}

// styled spells an entry on one line or on several, as the list has it.
func (l list) styled(entry Entry) []byte {
	separator := l.separator()
	lines := bytes.ContainsRune(separator, '\n')
	var text bytes.Buffer
	var err error
	switch {
	case lines == bytes.ContainsRune(entry, '\n'):
		return entry
	case lines:
		prefix := string(separator[bytes.LastIndexByte(separator, '\n')+1:])
		err = json.Indent(&text, entry, prefix, prefix[:len(prefix)/2])
	default:
		err = json.Compact(&text, entry)
	}
	if err != nil {
		return entry
	}
	return text.Bytes()
}

// sound reports what keeps a new text from being the old one with the plugin
// chained in it.
func sound(before, after []byte, o Options, l level) error {
	plugin := o.Plugin
	old, err := parseList(before, l)
	if err != nil {
		return err
	}
	mended, err := parseList(after, l)
	switch {
	case err != nil:
		return err
	case count(mended.Plugins, plugin) != 1 || mended.Plugins[0].Network.Type == plugin:
		return errors.New("the plugin would not be there once, behind the main plugin")
	case o.First && mended.Plugins[1].Network.Type != plugin:
		return errors.New("the plugin would not be directly behind the main plugin")
	}
	return alike(old, mended, plugin)
}

// alike reports what is different in two lists, the plugin apart.
func alike(a, b *libcni.NetworkConfigList, plugin string) error {
	switch {
	case a.Name != b.Name, a.CNIVersion != b.CNIVersion:
		return errors.New("it would be another network")
	case !slices.EqualFunc(without(a.Plugins, plugin), without(b.Plugins, plugin),
		func(a, b *libcni.PluginConfig) bool { return bytes.Equal(a.Bytes, b.Bytes) }):
		return errors.New("other plugins would change")
	}
	return nil
}

func without(plugins []*libcni.PluginConfig, plugin string) []*libcni.PluginConfig {
	return slices.DeleteFunc(slices.Clone(plugins), func(p *libcni.PluginConfig) bool { return p.Network.Type == plugin })
}
