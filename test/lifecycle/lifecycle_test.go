package lifecycle

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

var nodes = flag.Int("lifecycle-nodes", 100, "nodes of TestLifecycle")

const configuration = `# Ours.
apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - socket: {path: /run/mesh/cni.sock}
  - conflist: {pluginType: mesh-cni}
`

func (f *fleet) config() string { return f.file(configuration) }

func (f *fleet) file(text string) string {
	path := filepath.Join(f.TempDir(), "gates.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	return path
}

// TestLifecycle installs in a cluster that has nodes, enforces, upgrades and takes
// everything away: no node is closed at any time, new ones are opened by their
// agents.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	f := newFleet(t, *nodes)
	before := f.everything()
	said := f.done("install", "--config="+f.config(), "--image-tag=v1")
	if !strings.Contains(said, "begins in mode observe") {
		t.Error("it does not say that it observes")
	}
	f.await("open, with a heartbeat", f.serves)
	f.expectNoFlaps()
	f.done("install", "--mode=enforce")
	f.addNode("new")
	f.await("open, with a heartbeat", f.serves)
	f.done("upgrade", "--image-tag=v2")
	f.await("open, with a heartbeat", f.serves)
	before["Node /new"] = f.unmarked("new")
	if out, code := f.nodegate("uninstall"); code != 1 || !strings.Contains(out, "nothing was removed") {
		t.Errorf("it did not ask: %d, %s", code, out)
	}
	f.done("uninstall", "--dry-run=server")
	f.await("open, with a heartbeat", f.serves)
	f.done("uninstall", "--yes")
	f.expectAsBefore(before, true)
	f.expectNoFlaps()
	f.done("uninstall", "--yes")
}

// serves reports whether a Node is open by right.
func (f *fleet) serves(node *corev1.Node) bool {
	g := gate.DefaultGate()
	return !g.Armed(node) && gate.Judge(node, g, time.Now()) == gate.Fresh
}
