package conflist_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodegate/nodegate/internal/conflist"
)

const plugin = "gate-cni"

// observed is what runtimes did with a directory, and what is to be done about it
// where containerd runs. See testdata/cases.
type observed struct {
	Case                  string          `json:"case"`
	Verdict               string          `json:"verdict"`
	FileOrder             []string        `json:"fileOrder"`
	Containerd            map[string]seen `json:"containerd"`
	CRIO                  seen            `json:"crio"`
	CRIOWithoutGateBinary seen            `json:"crioWithoutGateBinary"`
}

// seen is what one runtime loads.
type seen struct {
	Loads       *string  `json:"loads"`
	Network     string   `json:"network"`
	CNIVersion  string   `json:"cniVersion"`
	Plugins     []string `json:"plugins"`
	GateEntries int      `json:"gateEntries"`
}

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

func runtime(t *testing.T, text string) conflist.Runtime {
	t.Helper()
	r, err := conflist.ParseRuntime(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRead_Containerd compares what is loaded, and the verdict, with what three
// versions of containerd were seen to load.
func TestRead_Containerd(t *testing.T) {
	for version, libcni := range map[string]string{"1.7.27": "libcni-1.1.2", "2.0.5": "libcni-1.2.3", "2.2.0": "libcni-1.3.0"} {
		t.Run(version, func(t *testing.T) {
			for _, tc := range cases(t) {
				t.Run(tc.Case, func(t *testing.T) {
					got := conflist.Read(conflist.Options{
						Dir: directory(t, tc.Case), Plugin: plugin, Runtime: runtime(t, "containerd://"+version),
					}, conflist.Known{})
					loads(t, got.Active, tc.Containerd[libcni])
					want := conflist.Verdict(tc.Verdict)
					if want == conflist.Version { // here the version is known
						want = conflist.Refuse
						if tc.Containerd[libcni].GateEntries == 1 {
							want = conflist.OK
						}
					}
					judged(t, got, want)
				})
			}
		})
	}
}

// TestRead_VersionUnknown: what depends on the version is no chain.
func TestRead_VersionUnknown(t *testing.T) {
	for _, tc := range cases(t) {
		t.Run(tc.Case, func(t *testing.T) {
			dir := directory(t, tc.Case)
			got := conflist.Read(conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}, conflist.Known{})
			if tc.Case != "c36-cniversions-bad-entry" { // the one that only the oldest loads
				loads(t, got.Active, tc.Containerd["libcni-1.3.0"])
			}
			judged(t, got, conflist.Verdict(tc.Verdict))
			if got.Reason != nil && len(tc.FileOrder) > 0 && !strings.Contains(got.Reason.Error(), filepath.Join(dir, tc.FileOrder[0])) {
				t.Errorf("reason %q does not name %s", got.Reason, tc.FileOrder[0])
			}
		})
	}
}

// TestRead_CRIO compares with what CRI-O was seen to use, with the binaries of all
// plugins there, and with all but the gate's.
func TestRead_CRIO(t *testing.T) {
	for _, tc := range cases(t) {
		t.Run(tc.Case, func(t *testing.T) {
			dir := directory(t, tc.Case)
			o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "cri-o://1.34.0")}
			got := conflist.Read(o, conflist.Known{})
			loads(t, got.Active, tc.CRIO)
			switch chains := got.Verdict == conflist.OK; {
			case tc.CRIO.Loads == nil && (chains || got.Reason == nil):
				t.Errorf("nothing is loaded, and the verdict is %s", got.Verdict)
			case tc.CRIO.Loads != nil && *tc.CRIO.Loads == tc.FileOrder[0] && tc.Verdict != "version":
				judged(t, got, conflist.Verdict(tc.Verdict))
			case tc.CRIO.Loads != nil && chains != (tc.CRIO.GateEntries == 1):
				t.Errorf("verdict %s (%v) with %d entries", got.Verdict, got.Reason, tc.CRIO.GateEntries)
			}

			o.BinDir = t.TempDir()
			for _, name := range []string{"flannel", "portmap", "calico", "bandwidth", "istio-cni", "cilium-cni", "aws-cni", "egress-cni",
				"linkerd-cni", "multus", "multus-shim", "ptp", "azure-vnet", "bridge", "ovn-k8s-cni-overlay", "terway", "firewall",
				"tuning", "sbr", "gate-cni-legacy", "not-gate-cni", "GATE-CNI", "gate-cni ", "gate_cni"} {
				if err := os.WriteFile(filepath.Join(o.BinDir, name), nil, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			loads(t, conflist.Read(o, conflist.Known{}).Active, tc.CRIOWithoutGateBinary)
		})
	}
}

// TestRead_CRIO_ByName: CRI-O may be told the network's name.
func TestRead_CRIO_ByName(t *testing.T) {
	o := conflist.Options{Dir: directory(t, "b19-two-names-pick-by-name"), Plugin: plugin, Runtime: runtime(t, "cri-o://1.31.0")}
	judged(t, conflist.Read(o, conflist.Known{}), conflist.Append)
	o.Network = "beta"
	got := conflist.Read(o, conflist.Known{})
	judged(t, got, conflist.OK)
	if name := filepath.Base(got.Active.Path); name != "10-beta.conflist" {
		t.Errorf("active is %s", name)
	}
	o.Network = "gamma"
	judged(t, conflist.Read(o, conflist.Known{}), conflist.Wait)
	// containerd knows no such setting: another network is not the cluster's.
	o.Runtime = runtime(t, "containerd://2.2.0")
	judged(t, conflist.Read(o, conflist.Known{}), conflist.Wait)
}

// TestRead_Bystanders: whatever is chained in a network that is not the cluster's
// does not count, unless it is named.
func TestRead_Bystanders(t *testing.T) {
	list := func(name, extra string) string {
		return `{"name":"` + name + `","cniVersion":"1.0.0",` + extra + `"plugins":[{"type":"bridge"},{"type":"gate-cni"}]}`
	}
	for _, tc := range []struct{ file, name, content string }{
		{"87-podman-bridge.conflist", "podman", list("podman", "")},
		{"11-crio-ipv4-bridge.conflist", "crio", list("crio", "")},
		{"nerdctl-bridge.conflist", "bridge", list("bridge", "")},
		{"10-x.conflist", "bridge", list("bridge", `"nerdctlID":"0a",`)},
		{"99-loopback.conf", "lo", `{"name":"lo","cniVersion":"1.0.0","type":"loopback"}`},
	} {
		t.Run(tc.file, func(t *testing.T) {
			o := conflist.Options{Dir: t.TempDir(), Plugin: plugin, Runtime: runtime(t, "containerd")}
			if err := os.WriteFile(filepath.Join(o.Dir, tc.file), []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			judged(t, conflist.Read(o, conflist.Known{}), conflist.Refuse)
			if o.Network = tc.name; filepath.Ext(tc.file) == ".conflist" {
				judged(t, conflist.Read(o, conflist.Known{}), conflist.OK)
			}
		})
	}
}

func TestParseRuntime(t *testing.T) {
	for _, text := range []string{"", "docker://28.0", "containerd2://1.7", "://"} {
		if _, err := conflist.ParseRuntime(text); err == nil || !strings.Contains(err.Error(), "is not known") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func loads(t *testing.T, got *conflist.Active, want seen) {
	t.Helper()
	if want.Loads == nil {
		if got != nil {
			t.Errorf("loaded %s, want nothing", got.Path)
		}
		return
	}
	if got == nil {
		t.Fatalf("loaded nothing, want %s", *want.Loads)
	}
	gate := 0
	for _, pluginType := range got.Types() {
		if pluginType == plugin {
			gate++
		}
	}
	is := seen{Loads: new(string), Network: got.Network, CNIVersion: got.CNIVersion, Plugins: got.Types(), GateEntries: gate}
	*is.Loads = filepath.Base(got.Path)
	if want.CNIVersion == "" { // not noted
		is.CNIVersion = ""
	}
	if diff := cmp.Diff(want, is); diff != "" {
		t.Errorf("loaded something else (-want +got):\n%s", diff)
	}
}

func judged(t *testing.T, got conflist.Reading, want conflist.Verdict) {
	t.Helper()
	if got.Verdict != want || (got.Reason == nil) != (want == conflist.OK) {
		t.Errorf("verdict %s (%v), want %s", got.Verdict, got.Reason, want)
	}
}

const (
	chained   = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"gate-cni"}]}`
	unchained = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}`
)

func TestRead_Reasons(t *testing.T) {
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
		"a drop-in that adds it":        {[]func(*testing.T, string){write(list, unchained), write("n/90-gate.conf", `{"type":"gate-cni"}`)}, "with libcni 1.2 append"},
		"a drop-in that adds it twice":  {[]func(*testing.T, string){write(list, chained), write("n/90-gate.conf", `{"type":"gate-cni"}`)}, "2 times"},
		"a drop-in that is broken":      {[]func(*testing.T, string){write(list, chained), write("n/90-gate.conf", `{`)}, "n/90-gate.conf: error parsing"},
		"a drop-in that is harmless":    {[]func(*testing.T, string){write(list, chained), write("n/50-tuning.conf", `{"type":"tuning"}`)}, ""},
		"a single plugin of the type":   {[]func(*testing.T, string){write("10-net.conf", `{"name":"n","type":"gate-cni"}`)}, "10-net.conf: plugin \"gate-cni\" is alone"},
		"a network without a name":      {[]func(*testing.T, string){write(list, `{"name":"","plugins":[{"type":"bridge"},{"type":"gate-cni"}]}`), write("99-loop.conf", `{"type":"gate-cni"}`)}, "2 times"},
		"a delegator that repeats it":   {[]func(*testing.T, string){write(list, `{"name":"n","plugins":[{"type":"multus","delegates":[{"plugins":[{"type":"gate-cni"}]}]},{"type":"gate-cni"}]}`)}, "in the list and in what the main plugin itself says"},
		"a delegator with nothing else": {[]func(*testing.T, string){write(list, `{"name":"n","plugins":[{"type":"multus"},{"type":"gate-cni"}]}`), write("20-x.conflist", unchained)}, ""},
		"chained":                       {[]func(*testing.T, string){write(list, chained)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, given := range tc.given {
				given(t, dir)
			}
			expect(t, reason(t, dir), tc.want)
		})
	}
	t.Run("a directory that is a file", func(t *testing.T) {
		write("file", "")(t, t.TempDir())
		path := filepath.Join(t.TempDir(), "net.d")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, reason(t, path), "listing "+path)
	})
}

func reason(t *testing.T, dir string) error {
	t.Helper()
	return conflist.Read(conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}, conflist.Known{}).Reason
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
