package conflist_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/nodegate/nodegate/internal/conflist"
)

// entry is what the cases call the current settings.
const entry = `{"type":"gate-cni","name":"gate-cni","socket":"/run/gate-cni/gate.sock","logLevel":"info"}`

func known() conflist.Known {
	return conflist.Known{Durable: conflist.Entry(entry), DurableAt: time.Unix(0, 0)}
}

// tree is what is below a directory: content, mode, and where links point.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, text := strings.TrimPrefix(path, dir), ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			text, err = os.Readlink(path)
		case info.Mode().IsRegular():
			var data []byte
			data, err = os.ReadFile(path)
			text = string(data)
		}
		all[name] = info.Mode().String() + " " + text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestMend_Cases: what can be mended becomes chained, for every version of the
// runtime, with no other byte changed; what cannot is left alone.
func TestMend_Cases(t *testing.T) {
	for _, tc := range cases(t) {
		t.Run(tc.Case, func(t *testing.T) {
			o := conflist.Options{Dir: directory(t, tc.Case), Plugin: plugin, Runtime: runtime(t, "containerd")}
			before := tree(t, o.Dir)
			r := conflist.Read(o, known())
			judged(t, r, conflist.Verdict(tc.Verdict))
			err := conflist.Mend(o, r, known())
			after := tree(t, o.Dir)
			mends := slices.Contains([]string{"append", "dedupe", "move"}, tc.Verdict) && tc.Case != "a11-multus-double-chain"
			if mends != (err == nil) {
				t.Fatalf("%s: error %v", tc.Verdict, err)
			}
			if !mends {
				if diff := cmp.Diff(before, after); diff != "" {
					t.Errorf("something was written (-before +after):\n%s", diff)
				}
				return
			}
			target, err := filepath.EvalSymlinks(r.Active.Path)
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimPrefix(target, o.Dir)
			was, is := before[name], after[name]
			delete(before, name)
			delete(after, name)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("another file changed (-before +after):\n%s", diff)
			}
			if tc.Verdict == "append" && !inserted(was, is) {
				t.Errorf("more was done than to insert:\n%s\nbecame:\n%s", was, is)
			}
			for _, version := range []string{"containerd://1.7.27", "containerd://2.0.5", "containerd://2.2.0", "cri-o://1.34.0"} {
				o.Runtime = runtime(t, version)
				again := conflist.Read(o, known())
				judged(t, again, conflist.OK)
				if again.Active.Network != r.Active.Network {
					t.Errorf("the network %q became %q", r.Active.Network, again.Active.Network)
				}
				if diff := cmp.Diff(others(r.Active.Types()), others(again.Active.Types())); diff != "" {
					t.Errorf("other plugins changed (-before +after):\n%s", diff)
				}
				if err := conflist.Mend(o, again, known()); err == nil {
					t.Error("it is mended again")
				}
			}
		})
	}
}

func others(types []string) []string {
	return slices.DeleteFunc(slices.Clone(types), func(name string) bool { return name == plugin })
}

// inserted reports whether a text came about by inserting into another.
func inserted(was, is string) bool {
	if len(is) <= len(was) {
		return false
	}
	i := 0
	for i < len(was) && was[i] == is[i] {
		i++
	}
	return strings.HasSuffix(is, was[i:])
}

// TestMend_Spelling: entries take the list's style, and what was seen before comes
// back as it was.
func TestMend_Spelling(t *testing.T) {
	for name, tc := range map[string]struct{ list, entry, want string }{
		"on one line": {
			`{"name":"n","plugins":[{"type":"a"}]}`, entry,
			`{"name":"n","plugins":[{"type":"a"},` + entry + `]}`,
		},
		"as the others are apart": {
			`{"name":"n","plugins":[ {"type":"a"} , {"type":"b"} ]}`, `{"type":"gate-cni"}`,
			`{"name":"n","plugins":[ {"type":"a"} , {"type":"b"} , {"type":"gate-cni"} ]}`,
		},
		"on several lines": {
			"{\n\t\"name\": \"n\",\n\t\"plugins\": [\n\t\t{\n\t\t\t\"type\": \"a\"\n\t\t}\n\t]\n}\n", `{"type":"gate-cni","x":1.50}`,
			"{\n\t\"name\": \"n\",\n\t\"plugins\": [\n\t\t{\n\t\t\t\"type\": \"a\"\n\t\t},\n\t\t{\n\t\t\t\"type\": \"gate-cni\",\n\t\t\t\"x\": 1.50\n\t\t}\n\t]\n}\n",
		},
		"from several lines to one": {
			`{"name":"n","plugins":[{"type":"a"}]}`, "{\n \"type\": \"gate-cni\",\n \"n\": 1E+2}",
			`{"name":"n","plugins":[{"type":"a"},{"type":"gate-cni","n":1E+2}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "10-n.conflist", tc.list)
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
			k := conflist.Known{Observed: conflist.Entry(tc.entry)}
			if err := conflist.Mend(o, conflist.Read(o, k), k); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, get(t, dir, "10-n.conflist")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestMend_Single: of several entries one stays, the one that is as it should be.
func TestMend_Single(t *testing.T) {
	const old = `{"type":"gate-cni","socket":"/old"}`
	for name, tc := range map[string]struct{ plugins, want string }{
		"the current one, wherever":        {`{"type":"a"}, ` + entry + `, {"type":"b"}, ` + old, `{"type":"a"}, ` + entry + `, {"type":"b"}`},
		"the current one, spelled so":      {`{"type":"a"},` + old + `,{"socket":"/run/gate-cni/gate.sock","logLevel":"info","name":"gate-cni","type":"gate-cni"}`, `{"type":"a"},{"socket":"/run/gate-cni/gate.sock","logLevel":"info","name":"gate-cni","type":"gate-cni"}`},
		"the last, if none is current":     {`{"type":"a"},` + old + `,{"type":"gate-cni","x":1},{"type":"b"}`, `{"type":"a"},{"type":"gate-cni","x":1},{"type":"b"}`},
		"moved, if it is first":            {old + `, {"type":"a"}, {"type":"b"}`, `{"type":"a"}, {"type":"b"}, ` + old},
		"moved, if all are first":          {old + `,` + entry + `,{"type":"a"}`, `{"type":"a"},` + entry},
		"moved, if the current one is":     {entry + `,{"type":"a"},` + old, `{"type":"a"},` + entry},
		"left in the middle of three":      {old + `,{"type":"a"},` + entry + `,` + old + `,{"type":"b"}`, `{"type":"a"},` + entry + `,{"type":"b"}`},
		"the last of equal ones":           {`{"type":"a"},` + entry + `, ` + entry, `{"type":"a"}, ` + entry},
		"named by an escape and in pieces": {`{"type":"a"},{"type":"gate\u002dcni"} , {"Type":"gate-cni"}`, `{"type":"a"} , {"Type":"gate-cni"}`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "10-n.conflist", `{"plugins":[`+tc.plugins+`],"name":"n"}`)
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
			if err := conflist.Mend(o, conflist.Read(o, known()), known()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(`{"plugins":[`+tc.want+`],"name":"n"}`, get(t, dir, "10-n.conflist")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			judged(t, conflist.Read(o, known()), conflist.OK)
		})
	}
}

// TestMend_First: what belongs first stands directly behind the main plugin, and is
// put there wherever it is.
func TestMend_First(t *testing.T) {
	const ours, old = entry, `{"type":"gate-cni","socket":"/old"}`
	for name, tc := range map[string]struct{ plugins, want string }{
		"missing":                      {`{"type":"a"}`, `{"type":"a"},` + ours},
		"missing among others":         {`{"type":"a"}, {"type":"b"}, {"type":"c"}`, `{"type":"a"}, ` + ours + `, {"type":"b"}, {"type":"c"}`},
		"there":                        {`{"type":"a"},` + ours + `,{"type":"b"}`, `{"type":"a"},` + ours + `,{"type":"b"}`},
		"behind another":               {`{"type":"a"},{"type":"b"},` + ours, `{"type":"a"},` + ours + `,{"type":"b"}`},
		"before the main plugin":       {ours + `,{"type":"a"},{"type":"b"}`, `{"type":"a"},` + ours + `,{"type":"b"}`},
		"twice, the current one last":  {`{"type":"a"},` + old + `,{"type":"b"},` + ours, `{"type":"a"},` + ours + `,{"type":"b"}`},
		"twice, the current one first": {`{"type":"a"},` + ours + `,{"type":"b"},` + old, `{"type":"a"},` + ours + `,{"type":"b"}`},
		"around the main plugin":       {old + `,{"type":"a"},` + ours, `{"type":"a"},` + ours},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "10-n.conflist", `{"name":"n","plugins":[`+tc.plugins+`]}`)
			o := conflist.Options{Dir: dir, Plugin: plugin, First: true, Runtime: runtime(t, "containerd")}
			if r := conflist.Read(o, known()); tc.plugins != tc.want {
				if err := conflist.Mend(o, r, known()); err != nil {
					t.Fatal(err)
				}
			}
			judged(t, conflist.Read(o, known()), conflist.OK)
			if diff := cmp.Diff(`{"name":"n","plugins":[`+tc.want+`]}`, get(t, dir, "10-n.conflist")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	dir := t.TempDir()
	put(t, dir, "10-n.conflist", `{"name":"n","plugins":[{"type":"a"},{"type":"b"}]}`)
	if err := os.Mkdir(filepath.Join(dir, "n"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "n"), "50.conf", ours)
	judged(t, conflist.Read(conflist.Options{Dir: dir, Plugin: plugin, First: true, Runtime: runtime(t, "containerd://2.2.0")}, known()), conflist.Refuse)
}

// TestMend_Update: an entry that the installer has left since takes the place of
// the one there; one that it had left before does not.
func TestMend_Update(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "10-n.conflist", `{"name":"n","plugins":[{"type":"a"},{"type":"gate-cni","socket":"/old"}, {"type":"b"}]}`)
	o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
	judged(t, conflist.Read(o, known()), conflist.OK)
	k := conflist.Known{Durable: conflist.Entry(entry), DurableAt: time.Now().Add(time.Minute)}
	r := conflist.Read(o, k)
	judged(t, r, conflist.Update)
	if err := conflist.Mend(o, r, k); err != nil {
		t.Fatal(err)
	}
	if got, want := get(t, dir, "10-n.conflist"), `{"name":"n","plugins":[{"type":"a"},`+entry+`, {"type":"b"}]}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestMend_NoEntry(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "10-n.conflist", unchained)
	o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
	before := tree(t, dir)
	if err := conflist.Mend(o, conflist.Read(o, conflist.Known{}), conflist.Known{}); !errors.Is(err, conflist.ErrNoEntry) {
		t.Errorf("error %v", err)
	}
	o.BinDir = t.TempDir()
	expect(t, conflist.Mend(o, conflist.Read(o, known()), known()), "looking for the plugin's binary")
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("something was written:\n%s", diff)
	}

	put(t, dir, "10-n.conflist", chained)
	before = tree(t, dir)
	newer := conflist.Known{Durable: conflist.Entry(entry), DurableAt: time.Now().Add(time.Minute)}
	expect(t, conflist.Mend(o, conflist.Read(o, newer), newer), "looking for the plugin's binary")
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("something was written:\n%s", diff)
	}
}

// TestMend_WritesNothingThatChanged: between reading and writing somebody else
// writes.
func TestMend_WritesNothingThatChanged(t *testing.T) {
	other := strings.Replace(unchained, "bridge", "ptpnew", 1)
	for name, change := range map[string]func(t *testing.T, path string){
		"replaced": func(t *testing.T, path string) {
			t.Helper()
			put(t, filepath.Dir(path), "new", other)
			if err := os.Rename(filepath.Join(filepath.Dir(path), "new"), path); err != nil {
				t.Fatal(err)
			}
		},
		"written in place": func(t *testing.T, path string) {
			t.Helper()
			put(t, filepath.Dir(path), filepath.Base(path), other)
			if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "10-n.conflist", unchained)
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
			r := conflist.Read(o, known())
			change(t, r.Active.Path)
			before := tree(t, dir)
			if err := conflist.Mend(o, r, known()); err == nil {
				t.Error("no error")
			}
			if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
				t.Errorf("something was written:\n%s", diff)
			}
		})
	}
}

// TestMend_KeepsTheLook: mode, owner, attributes and a link stay.
func TestMend_KeepsTheLook(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	put(t, elsewhere, "list", unchained)
	path := filepath.Join(elsewhere, "list")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	owned := os.Chown(path, 12345, 54321) == nil // root may
	attributed := setAttribute(path, "user.nodegate", "kept") == nil
	if err := os.Symlink(path, filepath.Join(dir, "10-n.conflist")); err != nil {
		t.Fatal(err)
	}
	o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
	if err := conflist.Mend(o, conflist.Read(o, known()), known()); err != nil {
		t.Fatal(err)
	}
	judged(t, conflist.Read(o, known()), conflist.OK)
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o640 {
		t.Errorf("mode %s", info.Mode())
	}
	if uid, gid := owner(info); owned && (uid != 12345 || gid != 54321) {
		t.Errorf("owner %d:%d", uid, gid)
	}
	if attributed && getAttribute(path, "user.nodegate") != "kept" {
		t.Error("the attribute is gone")
	}
	if target, err := os.Readlink(filepath.Join(dir, "10-n.conflist")); err != nil || target != path {
		t.Errorf("the link is %s (%v)", target, err)
	}
}

// TestMend_IsNoticed: containerd looks at the directory again for no event that
// creates a file or changes its mode alone (cni_conf_syncer.go).
func TestMend_IsNoticed(t *testing.T) {
	for name, elsewhere := range map[string]bool{"a file": false, "what a link leads to": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if elsewhere {
				target := t.TempDir()
				put(t, target, "list", unchained)
				if err := os.Symlink(filepath.Join(target, "list"), filepath.Join(dir, "10-n.conflist")); err != nil {
					t.Fatal(err)
				}
			} else {
				put(t, dir, "10-n.conflist", unchained)
			}
			watcher, err := fsnotify.NewWatcher()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = watcher.Close() }()
			if err := watcher.Add(dir); err != nil {
				t.Fatal(err)
			}
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
			if err := conflist.Mend(o, conflist.Read(o, known()), known()); err != nil {
				t.Fatal(err)
			}
			for deadline := time.After(10 * time.Second); ; {
				select {
				case event := <-watcher.Events:
					if !event.Has(fsnotify.Create) && !event.Has(fsnotify.Chmod) {
						return
					}
				case <-deadline:
					t.Fatal("containerd would not notice")
				}
			}
		})
	}
}

// TestMend_Fails: what cannot be written is reported, and nothing is left over.
func TestMend_Fails(t *testing.T) {
	for name, make := range map[string]func(*testing.T) string{"read-only": readOnly, "full": full} {
		t.Run(name, func(t *testing.T) {
			dir := make(t)
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
			before := tree(t, dir)
			err := conflist.Mend(o, conflist.Read(o, known()), known())
			if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "10-n.conflist")) {
				t.Errorf("error %v, want one that names the file", err)
			}
			if err != nil && strings.Contains(err.Error(), ".nodegate-") {
				t.Errorf("error %q reads otherwise each time", err)
			}
			if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
				t.Errorf("something was written:\n%s", diff)
			}
		})
	}
}

// TestMend_WithinTheBound: a list that would be too long to read is not written.
func TestMend_WithinTheBound(t *testing.T) {
	const most = 4 << 20
	for name, tc := range map[string]struct {
		bytes int
		want  string
	}{
		"just so":  {most, ""},
		"too long": {most + 1, "would have more than 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "10-n.conflist", strings.Repeat(" ", tc.bytes-len(unchained)-len(","+entry))+unchained)
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
			expect(t, conflist.Mend(o, conflist.Read(o, known()), known()), tc.want)
			want := conflist.OK
			if tc.want != "" {
				want = conflist.Append
			}
			judged(t, conflist.Read(o, known()), want)
		})
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".nodegate-1.tmp", ".nodegate-2.tmp", "10-n.conflist", ".other-1.tmp"} {
		put(t, dir, name, unchained)
	}
	for _, name := range []string{".nodegate-1.tmp", "10-n.conflist", ".other-1.tmp"} {
		if err := os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Now().Add(-2*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	conflist.Sweep(dir)
	if _, err := os.Stat(filepath.Join(dir, ".nodegate-1.tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("what a crash left is still there")
	}
	if left := tree(t, dir); len(left) != 4 {
		t.Errorf("left: %v", left)
	}
	// What a crash leaves harms nobody.
	o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
	judged(t, conflist.Read(o, known()), conflist.Append)
}

func TestParseEntry(t *testing.T) {
	for text, want := range map[string]string{
		entry:                      "",
		" " + entry + "\n":         "",
		"":                         "unexpected end of JSON",
		"null":                     "missing 'type'",
		"[" + entry + "]":          "cannot unmarshal array",
		entry + entry:              "after top-level value",
		`{"type":"other"}`:         `of the type "other", not "gate-cni"`,
		`{"type":"gate-cni",`:      "unexpected end of JSON",
		strings.Repeat(" ", 65537): "too many",
	} {
		got, err := conflist.ParseEntry([]byte(text), plugin)
		expect(t, err, want)
		if want == "" && string(got) != entry {
			t.Errorf("entry %s", got)
		}
	}
	if _, _, err := conflist.ReadEntry(filepath.Join(t.TempDir(), "none"), plugin); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
