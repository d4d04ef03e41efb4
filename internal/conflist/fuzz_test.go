package conflist

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// still is the state of a file that was never written.
type still struct{ fs.FileInfo }

func (still) ModTime() time.Time { return time.Time{} }

// inMemory is a directory with one file that is on no disk.
func inMemory(name string, data []byte) *directory {
	const dir = "/nonexistent/of/nodegate/net.d"
	path := filepath.Join(dir, name)
	return &directory{path: dir, files: []string{path}, read: map[string]content{path: {data: data, info: still{}}}}
}

// seed adds the lists of all cases.
func seed(f *testing.F, add func(data []byte)) {
	f.Helper()
	paths, err := filepath.Glob("testdata/cases/*/*.con*")
	if err != nil || len(paths) == 0 {
		f.Fatal(paths, err)
	}
	for _, path := range paths {
		if data, err := os.ReadFile(path); err == nil && len(data) < 1<<14 {
			add(data)
		}
	}
}

// FuzzRead: whatever a file holds, there is a verdict, and a reason unless it is
// chained.
func FuzzRead(f *testing.F) {
	seed(f, func(data []byte) { f.Add(data, true, true); f.Add(data, false, false) })
	f.Fuzz(func(t *testing.T, data []byte, list, crio bool) {
		o := Options{Plugin: "gate-cni", Runtime: Runtime{Name: Containerd, levels: levels()}}
		if crio {
			o.Runtime.Name = CRIO
		}
		name := "10-net.conf"
		if list {
			name = "10-net.conflist"
		}
		for _, l := range levels() {
			r := inMemory(name, data).readAs(o, Known{}, l)
			if (r.Verdict == OK) != (r.Reason == nil) || r.Verdict == "" {
				t.Errorf("verdict %q, reason %v", r.Verdict, r.Reason)
			}
			if r.Verdict == OK && (count(r.Active.Plugins(), o.Plugin) != 1 || r.Active.Types()[0] == o.Plugin) {
				t.Errorf("this is no chain: %v", r.Active.Types())
			}
		}
	})
}

// FuzzMend: where a list is mended at all, every libcni loads the result, with the
// plugin once behind the main plugin, and what was inserted is all that is new.
func FuzzMend(f *testing.F) {
	const plain = `{"type":"gate-cni","x":1.50}`
	seed(f, func(data []byte) { f.Add(data, []byte(plain)); f.Add(data, []byte("{\n\"type\": \"gate-cni\"}")) })
	f.Fuzz(func(t *testing.T, data, entry []byte) {
		parsed, err := ParseEntry(entry, "gate-cni")
		if err != nil {
			parsed = Entry(plain)
		}
		for _, first := range []bool{false, true} {
			o := Options{Plugin: "gate-cni", First: first, Runtime: Runtime{Name: Containerd, levels: levels()}}
			fuzzMend(t, o, data, Known{Observed: parsed})
		}
	})
}

func fuzzMend(t *testing.T, o Options, data []byte, known Known) {
	t.Helper()
	r := inMemory("10-net.conflist", data).readAs(o, known, libcni13)
	if !r.Repairable() {
		return
	}
	text, err := r.Active.mend(r.Verdict, o, known.entry(o))
	if err != nil {
		if r.Verdict == Append {
			t.Errorf("a list that loads takes no entry: %v", err)
		}
		return
	}
	for _, l := range levels() {
		again := inMemory("10-net.conflist", text).readAs(o, known, l)
		if again.Verdict != OK {
			t.Errorf("%s: verdict %s (%v) for %q", l, again.Verdict, again.Reason, text)
		}
	}
	if r.Verdict != Append {
		return
	}
	i := 0
	for i < len(data) && data[i] == text[i] {
		i++
	}
	if rest := data[i:]; string(text[len(text)-len(rest):]) != string(rest) {
		t.Errorf("more was done than to insert: %q became %q", data, text)
	}
}
