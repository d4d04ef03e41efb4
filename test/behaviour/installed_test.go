package behaviour

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/internal/cli"
	"github.com/nodegate/nodegate/internal/configfile"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/guardmanager"
)

// configText is the configuration that is installed, as a person wrote it.
const configText = `# Ours. Ask before you change it.
apiVersion: nodegate.io/v1alpha1
kind: Configuration
mode:   enforce   # since the pilot
gates: # one for now
- {name: agent, taint: {key: nodegate.io/agent-not-ready}}
`

// install puts the configuration into its ConfigMap, and runs a guard that reads it
// from a file which a stand-in for the kubelet keeps up to date. The webhook, if
// there is one, reads the same file.
func (e *environment) install(t *testing.T) *guard.Metrics {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}}
	_, err := e.admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.admin.CoreV1().ConfigMaps(gate.Namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: gate.ConfigMapName, Annotations: map[string]string{gate.InstalledAtAnnotation: "2026-01-01T00:00:00Z"}},
		Data:       map[string]string{gate.ConfigMapKey: configText, "other": "of somebody else"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), gate.ConfigMapKey)
	replace(t, path, configText)
	changed := make(chan struct{}, 1)
	file, err := configfile.Open(path, slog.New(slog.DiscardHandler), func(_, _ *gate.Configuration) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, func(ctx context.Context) error { return e.mount(ctx, t, path) })
	inBackground(t, file.Start)
	e.configuration = file.Current
	mgr, metrics, err := guardmanager.New(e.cluster.Admin, e.configuration, changed, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, mgr.Start)
	return metrics
}

// mount keeps a file as the ConfigMap is.
func (e *environment) mount(ctx context.Context, t *testing.T, path string) error {
	last := configText
	for {
		object, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(ctx, gate.ConfigMapName, metav1.GetOptions{})
		if err == nil && object.Data[gate.ConfigMapKey] != last {
			last = object.Data[gate.ConfigMapKey]
			replace(t, path, last)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Error(err)
	}
}

// inBackground runs something until the test ends.
func inBackground(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("in the background: %v", err)
		}
	})
}

// nodegate runs `kubectl nodegate` as an administrator and returns what it wrote.
func (e *environment) nodegate(t *testing.T, args ...string) string {
	t.Helper()
	kubeconfig, err := e.cluster.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
	args = append(args, "--kubeconfig="+kubeconfig, "--cache-dir="+t.TempDir())
	began := time.Now()
	if code := cli.Run(t.Context(), streams, args); code != 0 {
		t.Fatalf("kubectl nodegate %s: exit code %d\n%s%s", strings.Join(args, " "), code, &out, &errOut)
	}
	t.Logf("kubectl nodegate %s: %s\n%s%s", args[0], time.Since(began), &out, &errOut)
	return out.String()
}

// await waits until a Node is as it should be.
func (e *environment) await(t *testing.T, name, what string, condition func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		var err error
		node, err = e.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(node), err
	})
	if err != nil {
		t.Fatalf("waiting for node %s to be %s: %v", name, what, err)
	}
	return node
}
