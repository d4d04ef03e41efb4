package conflist_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodegate/nodegate/agent/internal/conflist"
)

const plugin = "gate-cni"

// observed is what a runtime did with a directory. See testdata/cases.
type observed struct {
	Case       string `json:"case"`
	Verdict    string `json:"verdict"`
	FileOrder  []string
	Containerd map[string]struct {
		Loads       *string  `json:"loads"`
		Network     string   `json:"network"`
		Plugins     []string `json:"plugins"`
		GateEntries int      `json:"gateEntries"`
	} `json:"containerd"`
}

// reference is the version of libcni that is built in.
const reference = "libcni-1.3.0"

// links are the symbolic links of the cases. They are made by the test: not
// every checkout keeps them.
func links() map[string]map[string]string {
	return map[string]map[string]string{
		"b13-symlink-to-directory":      {"05-dir.conflist": "store"},
		"b14-dangling-symlink":          {"05-gone.conflist": "/nonexistent/gate-test/05-gone.conflist"},
		"b15-symlink-loop":              {"05-a.conflist": "05-b.conflist", "05-b.conflist": "05-a.conflist"},
		"b17-symlink-to-file-elsewhere": {"10-calico.conflist": "shared/cluster-network.json.src"},
	}
}

func cases(t *testing.T) []observed {
	t.Helper()
	data, err := os.ReadFile("testdata/cases/expect.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []observed
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 87 {
		t.Fatalf("%d cases, want 87", len(all))
	}
	return all
}

// directory copies the case, so that a test may write to it.
func directory(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata/cases", name))); err != nil {
		t.Fatal(err)
	}
	for link, target := range links()[name] {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLoad compares what is loaded with what containerd was seen to load.
func TestLoad(t *testing.T) {
	for _, tc := range cases(t) {
		t.Run(tc.Case, func(t *testing.T) {
			want := tc.Containerd[reference]
			active, err := conflist.Load(directory(t, tc.Case))
			if want.Loads == nil {
				if err == nil {
					t.Fatalf("loaded %s, want nothing", active.Path)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := filepath.Base(active.Path); got != *want.Loads {
				t.Errorf("loaded %s, want %s", got, *want.Loads)
			}
			if active.Single {
				return
			}
			if active.Network != want.Network {
				t.Errorf("network %q, want %q", active.Network, want.Network)
			}
			var types []string
			for _, p := range append(active.Inline, active.DropIns...) {
				types = append(types, p.Network.Type)
			}
			if got, want := strings.Join(types, ","), strings.Join(want.Plugins, ","); got != want {
				t.Errorf("plugins %s, want %s", got, want)
			}
		})
	}
}

// TestVerify holds every case against its repair word: "ok" alone is chained.
// The one list without inline plugins depends on the runtime; every libcni that
// loads it chains the plugin.
func TestVerify(t *testing.T) {
	for _, tc := range cases(t) {
		t.Run(tc.Case, func(t *testing.T) {
			dir := directory(t, tc.Case)
			err := conflist.Verify(dir, plugin)
			if chained := tc.Verdict == "ok" || tc.Verdict == "version"; chained != (err == nil) {
				t.Fatalf("%s: chained %t, want %t (%v)", tc.Verdict, err == nil, chained, err)
			}
			if err != nil && len(tc.FileOrder) > 0 && !strings.Contains(err.Error(), filepath.Join(dir, tc.FileOrder[0])) {
				t.Errorf("error %q does not name %s", err, tc.FileOrder[0])
			}
		})
	}
}

const (
	chained   = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"gate-cni"}]}`
	unchained = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}`
)

func TestVerify_Reasons(t *testing.T) {
	write := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(target, name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const list = "10-net.conflist"
	for name, tc := range map[string]struct {
		given []func(*testing.T, string)
		// want is part of the reason; empty: chained.
		want string
	}{
		"an empty directory":            {nil, "no CNI configuration in"},
		"a FIFO first is never opened":  {[]func(*testing.T, string){write(list, chained), fifo}, "05-x.conflist is no regular file but a FIFO"},
		"a socket first":                {[]func(*testing.T, string){write(list, chained), socket}, "05-s.conflist is no regular file but a socket"},
		"a link to /dev/zero":           {[]func(*testing.T, string){write(list, chained), link("/dev/zero", "05-zero.conflist")}, "but a device"},
		"a link to /dev/null":           {[]func(*testing.T, string){write(list, chained), link("/dev/null", "05-null.conflist")}, "but a device"},
		"an empty file":                 {[]func(*testing.T, string){write(list, "")}, "unexpected end of JSON input"},
		"a file beyond the bound":       {[]func(*testing.T, string){write(list, strings.Repeat(" ", 4<<20)+chained)}, "has more than 4194304 bytes"},
		"a drop-in that adds it":        {[]func(*testing.T, string){write(list, unchained), write("n/90-gate.conf", `{"type":"gate-cni"}`)}, "as runtimes read it that ignore n"},
		"a drop-in that adds it twice":  {[]func(*testing.T, string){write(list, chained), write("n/90-gate.conf", `{"type":"gate-cni"}`)}, "2 times"},
		"a drop-in that is broken":      {[]func(*testing.T, string){write(list, chained), write("n/90-gate.conf", `{`)}, "n/90-gate.conf: error parsing"},
		"a drop-in that is harmless":    {[]func(*testing.T, string){write(list, chained), write("n/50-tuning.conf", `{"type":"tuning"}`)}, ""},
		"a single plugin of the type":   {[]func(*testing.T, string){write("10-net.conf", `{"name":"n","type":"gate-cni"}`)}, "10-net.conf is loaded, a single plugin"},
		"a network without a name":      {[]func(*testing.T, string){write(list, `{"name":"","plugins":[{"type":"bridge"},{"type":"gate-cni"}]}`), write("99-loop.conf", `{"type":"gate-cni"}`)}, "2 times"},
		"a delegator that repeats it":   {[]func(*testing.T, string){write(list, `{"name":"n","plugins":[{"type":"multus","delegates":[{"plugins":[{"type":"gate-cni"}]}]},{"type":"gate-cni"}]}`)}, "in what \"multus\" delegates to"},
		"a delegator with nothing else": {[]func(*testing.T, string){write(list, `{"name":"n","plugins":[{"type":"multus"},{"type":"gate-cni"}]}`), write("20-x.conflist", unchained)}, ""},
		"chained":                       {[]func(*testing.T, string){write(list, chained)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, given := range tc.given {
				given(t, dir)
			}
			expect(t, conflist.Verify(dir, plugin), tc.want)
		})
	}
	t.Run("a directory that is a file", func(t *testing.T) {
		write("file", "")(t, t.TempDir())
		path := filepath.Join(t.TempDir(), "net.d")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, conflist.Verify(path, plugin), "listing "+path)
	})
}

func TestVerifyBinary(t *testing.T) {
	dir := t.TempDir()
	expect(t, conflist.VerifyBinary(dir, plugin), "no such file or directory")
	path := filepath.Join(dir, plugin)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, conflist.VerifyBinary(dir, plugin), path+" is not executable")
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, conflist.VerifyBinary(dir, plugin), "")
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, conflist.VerifyBinary(dir, "directory"), "but a directory")
}

func fifo(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mkfifo(filepath.Join(dir, "05-x.conflist"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func socket(t *testing.T, dir string) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, "05-s.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
}

func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want one that says %q", err, want)
	}
}
