package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	gateEntry = `{"type":"gate-cni","socket":"/run/gate.sock"}`
	unchained = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`
	chained   = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},` + gateEntry + `]}`
)

// node is a node's directories.
type node struct {
	*testing.T
	netDir, binDir string
}

func newNode(t *testing.T, files map[string]string) node {
	t.Helper()
	n := node{t, t.TempDir(), t.TempDir()}
	for name, text := range files {
		n.put(name, text)
	}
	return n
}

func (n node) put(name, text string) string {
	n.Helper()
	path := filepath.Join(n.netDir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
	return path
}

// files are those in the directory, with the time of their last change.
func (n node) files() map[string]string {
	n.Helper()
	entries, err := os.ReadDir(n.netDir)
	if err != nil {
		n.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(n.netDir, entry.Name()))
		if err != nil {
			n.Fatal(err)
		}
		files[entry.Name()] = string(data)
	}
	return files
}

func (n node) expect(want map[string]string) {
	n.Helper()
	if diff := cmp.Diff(want, n.files()); diff != "" {
		n.Errorf("files (-want +got):\n%s", diff)
	}
}

func (n node) run(command string, args ...string) (string, error) {
	n.Helper()
	return run(n.Context(), noEnvironment, append([]string{command, "--dir=" + n.netDir, "--plugin-type=gate-cni"}, args...)...)
}

// show is what "conflist -o json" says, and whether it ends as for what is
// chained.
func (n node) show(args ...string) (shown report, chained bool) {
	n.Helper()
	output, err := n.run("conflist", append(args, "-o", "json")...)
	if err != nil && !errors.Is(err, errNotChained) {
		n.Fatal(err)
	}
	if err := json.Unmarshal([]byte(output), &shown); err != nil {
		n.Fatalf("%v in %s", err, output)
	}
	return shown, err == nil
}

func TestConflist(t *testing.T) {
	n := newNode(t, map[string]string{"05-z.conflist": "{", "10-net.conflist": chained})
	name := "10-net.conflist"
	got, ok := n.show("--runtime=cri-o")
	want := report{Runtime: "cri-o", Active: &name, Network: "net", Plugins: []string{"bridge", "gate-cni"}, Entries: 1, Verdict: "ok",
		Passed: []string{"reading " + n.netDir + "/05-z.conflist: error parsing configuration list: unexpected end of JSON input"}}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("chained %t (-want +got):\n%s", ok, diff)
	}
	got, ok = n.show()
	want = report{Runtime: "containerd", Plugins: []string{}, Verdict: "wait", Reason: want.Passed[0]}
	if diff := cmp.Diff(want, got); diff != "" || ok {
		t.Errorf("chained %t (-want +got):\n%s", ok, diff)
	}
	output, err := n.run("conflist")
	if !errors.Is(err, errNotChained) || output != "runtime:  containerd\nactive:   nothing\nentries:  0\nverdict:  wait\nreason:   "+want.Reason+"\n" {
		t.Errorf("%v:\n%s", err, output)
	}
}

func TestConflist_Repair(t *testing.T) {
	n := newNode(t, map[string]string{"10-net.conflist": unchained})
	if got, ok := n.show(); ok || got.Verdict != "append" || *got.Active != "10-net.conflist" {
		t.Errorf("%+v", got)
	}
	if _, err := n.run("conflist", "--repair"); err == nil ||
		!strings.Contains(err.Error(), `no entry is known to put into the list: give --entry, or let "nodegate-agent chain" keep one in `+n.netDir+"/.gate-cni-entry") {
		t.Errorf("error %v", err)
	}
	n.expect(map[string]string{"10-net.conflist": unchained})
	entry := filepath.Join(t.TempDir(), "entry")
	if err := os.WriteFile(entry, []byte(gateEntry), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 { // once, and then there is nothing to do
		got, ok := n.show("--repair", "--entry="+entry)
		if !ok || got.Entries != 1 {
			t.Errorf("%+v", got)
		}
		n.expect(map[string]string{"10-net.conflist": chained})
	}
}

// TestConflist_KeptEntry: the entry that chain has kept is the one that belongs
// into the list, whoever looks.
func TestConflist_KeptEntry(t *testing.T) {
	n := newNode(t, map[string]string{"10-net.conflist": unchained, ".gate-cni-entry": gateEntry})
	want := map[string]string{"10-net.conflist": chained, ".gate-cni-entry": gateEntry}
	if got, ok := n.show("--repair"); !ok || got.Entries != 1 {
		t.Errorf("%+v", got)
	}
	n.expect(want)

	// Another that was kept since is to take its place.
	soon := time.Now().Add(time.Minute)
	newer := n.put(".gate-cni-entry", strings.Replace(gateEntry, "gate.sock", "new.sock", 1))
	if err := os.Chtimes(newer, soon, soon); err != nil {
		t.Fatal(err)
	}
	if got, ok := n.show(); ok || got.Verdict != "update" {
		t.Errorf("%+v", got)
	}

	n.put(".gate-cni-entry", "{")
	if _, err := n.run("conflist"); err == nil || !strings.Contains(err.Error(), newer) {
		t.Errorf("error %v", err)
	}
	if _, err := n.run("conflist", "--entry="+os.DevNull); err == nil || !strings.Contains(err.Error(), os.DevNull) {
		t.Errorf("error %v", err)
	}
}

func TestConflist_Refuses(t *testing.T) {
	const loaded = "cannot be kept in /x/e.conflist: a runtime would load it"
	for want, args := range map[string][]string{
		"--plugin-type is missing":       {"conflist"},
		"--plugin-type is \"a/b\"":       {"chain", "--plugin-type=a/b"},
		"--plugin-type is \"..\"":        {"unchain", "--plugin-type=..", "--dir=/nowhere"},
		"--runtime: the runtime is":      {"conflist", "--plugin-type=a", "--runtime=docker"},
		"--output is \"yaml\"":           {"conflist", "--plugin-type=a", "-o", "yaml"},
		"--dir is empty":                 {"unchain", "--plugin-type=a", "--dir="},
		"--bin-dir is empty":             {"chain", "--plugin-type=a", "--bin-dir="},
		"reading the entry: stat /nowh":  {"conflist", "--plugin-type=a", "--entry=/nowhere"},
		"reading --entry: open /nowhere": {"chain", "--plugin-type=a", "--entry=/nowhere"},
		"give one as --entry":            {"chain", "--plugin-type=a", "--dir=/nowhere", "--binary=/nowhere"},
		"an entry " + loaded:             {"unchain", "--plugin-type=a", "--dir=/nowhere", "--entry-file=/x/e.conflist"},
	} {
		if _, err := run(t.Context(), noEnvironment, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", args, err, want)
		}
	}
}

// TestConflist_ExitCode runs the real program.
func TestConflist_ExitCode(t *testing.T) {
	program := build(t)
	n := newNode(t, map[string]string{"10-net.conflist": chained})
	for dir, want := range map[string]int{n.netDir: 0, t.TempDir(): 2, n.netDir + "/10-net.conflist": 2} {
		command := exec.CommandContext(t.Context(), program, "conflist", "--dir="+dir, "--plugin-type=gate-cni")
		output, err := command.Output()
		if got := command.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit code %d (%v), want %d:\n%s", dir, got, err, want, output)
		}
	}
}

// TestChain_ThereAndBack: what chain does, unchain undoes, and neither writes what
// is so already.
func TestChain_ThereAndBack(t *testing.T) {
	n := newNode(t, map[string]string{"10-net.conflist": unchained, "20-other.conflist": unchained})
	source := t.TempDir()
	for name, text := range map[string]string{"entry": gateEntry, "plugin": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--bin-dir=" + n.binDir, "--entry=" + filepath.Join(source, "entry")}
	before := n.files()
	if _, err := n.run("chain", args...); err == nil || !strings.Contains(err.Error(), "install it before, or give it as --binary: looking for the plugin's binary") {
		t.Errorf("without a binary: error %v", err)
	}
	n.expect(before)

	args = append(args, "--binary="+filepath.Join(source, "plugin"))
	output, err := n.run("chain", args...)
	if err != nil || !strings.Contains(output, "verdict:  ok\n") {
		t.Fatalf("%v:\n%s", err, output)
	}
	n.expect(map[string]string{"10-net.conflist": chained, "20-other.conflist": unchained, ".gate-cni-entry": gateEntry + "\n"})
	info, err := os.Stat(filepath.Join(n.binDir, "gate-cni"))
	if err != nil || info.Mode() != 0o755 {
		t.Fatalf("binary: %v %v", info.Mode(), err)
	}

	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	paths := []string{filepath.Join(n.binDir, "gate-cni"), filepath.Join(n.netDir, ".gate-cni-entry"), filepath.Join(n.netDir, "10-net.conflist")}
	for _, path := range paths {
		if err := os.Chtimes(path, time.Time{}, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.run("chain", args...); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(old) {
			t.Errorf("%s was written again (%v)", path, err)
		}
	}

	// Somebody copied the list with our entry.
	n.put("20-other.conflist", chained)
	for range 2 {
		if _, err := n.run("unchain", "--bin-dir="+n.binDir, "--remove-binary"); err != nil {
			t.Fatal(err)
		}
		n.expect(before)
	}
	if _, err := os.Stat(paths[0]); err == nil {
		t.Error("the binary is still there")
	}
}

// TestChain_Early: before there is a list, nothing is made, and the agent finds
// what it needs.
func TestChain_Early(t *testing.T) {
	n := newNode(t, nil)
	for name, text := range map[string]string{"gate-cni": "", "entry": gateEntry} {
		if err := os.WriteFile(filepath.Join(n.binDir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, arg := range []string{"--entry=" + filepath.Join(n.binDir, "entry"), "--convert"} {
		output, err := n.run("chain", "--bin-dir="+n.binDir, arg)
		if err != nil || !strings.Contains(output, "verdict:  wait\n") {
			t.Errorf("%v:\n%s", err, output)
		}
		n.expect(map[string]string{".gate-cni-entry": gateEntry + "\n"})
	}
}

// TestUnchain_BinaryStays while something names it.
func TestUnchain_BinaryStays(t *testing.T) {
	n := newNode(t, map[string]string{"10-net.conflist": `{"name":"n","plugins":[` + gateEntry + `]}`})
	if err := os.WriteFile(filepath.Join(n.binDir, "gate-cni"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := n.run("unchain", "--bin-dir="+n.binDir, "--remove-binary")
	if err == nil || !strings.Contains(err.Error(), "nothing else is in the list") {
		t.Errorf("error %v", err)
	}
	n.put("10-net.conflist", `{"name":"n","plugins":[{"type":"bridge"},{"type":"gate-cni"`)
	_, err = n.run("unchain", "--bin-dir="+n.binDir, "--remove-binary")
	if err == nil || !strings.Contains(err.Error(), "still names plugin") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(n.binDir, "gate-cni")); err != nil {
		t.Error(err)
	}
}

// TestChain_Convert: of a single plugin's file a list is made beside it, with its
// name, its version and its spelling, and made again when the file has changed.
func TestChain_Convert(t *testing.T) {
	const single = `{"name":"podnet", "cniVersion":"0.4.0", "type":"bridge", "mtu":1.50e3}`
	for _, extension := range []string{".conf", ".json"} {
		t.Run(extension, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-bridge" + extension: single, "99-loopback.conf": `{"name":"lo","cniVersion":"0.4.0","type":"loopback"}`, ".gate-cni-entry": gateEntry})
			if err := os.WriteFile(filepath.Join(n.binDir, "gate-cni"), nil, 0o700); err != nil {
				t.Fatal(err)
			}
			before := n.files()
			output, err := n.run("chain", "--bin-dir="+n.binDir)
			if err != nil || !strings.Contains(output, "verdict:  convert\n") {
				t.Errorf("%v:\n%s", err, output)
			}
			n.expect(before)
			for _, mtu := range []string{"1.50e3", "9000"} {
				text := strings.Replace(single, "1.50e3", mtu, 1)
				n.put("10-bridge"+extension, text)
				output, err := n.run("chain", "--bin-dir="+n.binDir, "--convert")
				if err != nil || !strings.Contains(output, "verdict:  ok\n") || !strings.Contains(output, "network:  podnet\n") {
					t.Errorf("%v:\n%s", err, output)
				}
				after := n.files()
				made := after["10-bridge-nodegate.conflist"]
				want := `{"name":"podnet","cniVersion":"0.4.0","plugins":[` + text + `,` + gateEntry + `]}`
				if strings.Join(strings.Fields(made), "") != strings.ReplaceAll(want, " ", "") {
					t.Errorf("made:\n%s", made)
				}
				delete(after, "10-bridge-nodegate.conflist")
				if after["10-bridge"+extension] != text || len(after) != len(before) {
					t.Errorf("files: %v", after)
				}
			}
			n.put("10-bridge"+extension, single) // the owner writes again
			if got, ok := n.show("--entry=" + filepath.Join(n.netDir, ".gate-cni-entry")); ok || got.Verdict != "convert" || !strings.Contains(got.Reason, "which is another by now") {
				t.Errorf("%+v", got)
			}
			if _, err := n.run("unchain", "--bin-dir="+n.binDir, "--remove-binary"); err != nil {
				t.Error(err)
			}
			delete(before, ".gate-cni-entry")
			n.expect(before)
		})
	}
}

// TestUnchain_Stays: as a DaemonSet's container it does not end when it is done, and
// does so in peace when it is told to.
func TestUnchain_Stays(t *testing.T) {
	n := newNode(t, map[string]string{"10-net.conflist": chained})
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		ended := make(chan error, 1)
		go func() {
			_, err := run(ctx, noEnvironment, "unchain", "--dir="+n.netDir, "--plugin-type=gate-cni", "--stay")
			ended <- err
		}()
		synctest.Wait() // until it waits, or has ended
		n.expect(map[string]string{"10-net.conflist": unchained})
		select {
		case err := <-ended:
			t.Fatalf("it has ended (%v) without being told to", err)
		default:
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
