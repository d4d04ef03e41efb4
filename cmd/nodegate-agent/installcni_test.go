package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const holding = `
apiVersion: nodegate.io/v1alpha1
kind: Configuration
cni: {timeout: 5s}
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - conflist: {pluginType: %s, dir: %s, binDir: %s}
`

// TestInstallCNI: the plugin and its entry are put where the configuration says,
// and nothing else is touched.
func TestInstallCNI(t *testing.T) {
	n := newNode(t, map[string]string{"10-net.conflist": unchained})
	image := t.TempDir()
	config, binary := filepath.Join(image, "config.yaml"), filepath.Join(image, "nodegate-cni")
	for path, text := range map[string]string{config: fmt.Sprintf(holding, "nodegate-cni", n.netDir, n.binDir), binary: "one"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	install := func() {
		t.Helper()
		if _, err := run(t.Context(), noEnvironment, "install-cni", "--config="+config, "--binary="+binary); err != nil {
			t.Fatal(err)
		}
	}
	install()
	entry := `{"type":"nodegate-cni","socket":"/run/nodegate/cni.sock","timeout":"5s","exempt":["kube-system"]}` + "\n"
	n.expect(map[string]string{"10-net.conflist": unchained, ".nodegate-cni-entry": entry})
	installed := filepath.Join(n.binDir, "nodegate-cni")
	if info, err := os.Stat(installed); err != nil || info.Mode() != 0o755 {
		t.Fatalf("binary: %v %v", info, err)
	}

	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, path := range []string{installed, filepath.Join(n.netDir, ".nodegate-cni-entry")} {
		if err := os.Chtimes(path, time.Time{}, old); err != nil {
			t.Fatal(err)
		}
		install()
		if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(old) {
			t.Errorf("%s was written again (%v)", path, err)
		}
	}

	// An upgrade, while the one before is run for a pod.
	running, err := os.Open(installed)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	if err := os.WriteFile(binary, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	install()
	before := make([]byte, 3)
	if _, err := running.Read(before); err != nil || string(before) != "one" {
		t.Errorf("the binary was written in place: %q %v", before, err)
	}
	if after, err := os.ReadFile(installed); err != nil || string(after) != "two" {
		t.Errorf("the binary is %q (%v)", after, err)
	}
	left, err := os.ReadDir(n.binDir)
	if err != nil || len(left) != 1 {
		t.Errorf("left over: %v %v", left, err)
	}
}

func TestInstallCNI_Refuses(t *testing.T) {
	n := newNode(t, nil)
	for want, config := range map[string]string{
		"there is nothing to install":    fmt.Sprintf(holding, "mesh-cni", n.netDir, n.binDir),
		"installing the plugin's binary": fmt.Sprintf(holding, "nodegate-cni", n.netDir, n.binDir),
		"answers only where cni is set":  strings.Replace(fmt.Sprintf(holding, "nodegate-cni", n.netDir, n.binDir), "cni: {timeout: 5s}", "", 1),
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := run(t.Context(), noEnvironment, "install-cni", "--config="+path, "--binary=/nowhere")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if diff := cmp.Diff(map[string]string{}, n.files()); diff != "" {
		t.Error(diff)
	}
}
