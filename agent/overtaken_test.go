package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
)

// TestPods_OfAListWithoutThePlugin: a runtime goes through the list that it had
// loaded when it began with a pod. A gate that opens since the plugin is chained
// does not let that pod go, but its next attempt.
func TestPods_OfAListWithoutThePlugin(t *testing.T) {
	dir, binDir := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(dir, "10-net.conflist"): `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},{"type":"nodegate-cni"}]}`,
		filepath.Join(dir, ".mesh-cni-entry"): `{"type":"mesh-cni"}`,
		filepath.Join(binDir, "mesh-cni"):     "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil { //nolint:gosec // a plugin is run
			t.Fatal(err)
		}
	}
	socket := podSocket(t)
	a, err := New(Options{
		Config: &rest.Config{Host: "localhost:1"}, NodeName: "node-a", BootID: thisBoot, PodSocket: socket,
		Gates: []Gate{{Gate: gate.DefaultGate(), Probes: []Probe{{
			Name: "chain", Timeout: time.Second, Dwell: time.Second,
			Check: ConflistCheck(gate.ConflistCheck{PluginType: "mesh-cni", Dir: dir, BinDir: binDir, Runtime: "containerd"}),
		}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	settings := netconf.Settings{Socket: socket, Timeout: netconf.MaxTimeout}
	pod := netconf.Pod{Namespace: "shop", Name: "cart-0"}
	waiting := make(chan error, 1)
	go func() { waiting <- hold.Wait(ctx, settings, pod, time.Now()) }()
	go func() { done <- a.Start(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	const want = `gate "agent" is closed: check chain: plugin "mesh-cni" was chained after this attempt to start the pod had begun`
	if err := <-waiting; !strings.Contains(text(err), want) {
		t.Errorf("it ends with %q, want %q", text(err), want)
	}
	if err := hold.Wait(ctx, settings, pod, time.Now()); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}
