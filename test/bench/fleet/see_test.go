//go:build linux

package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

// buildCLI builds kubectl nodegate once.
var buildCLI = sync.OnceValues(func() (string, error) {
	path := filepath.Join(shared, "kubectl-nodegate")
	out, err := exec.CommandContext(context.Background(), "go", "build", "-o", path, "../../../cmd/kubectl-nodegate").CombinedOutput() //nolint:forbidigo // it is of no single benchmark
	if err != nil {
		err = fmt.Errorf("building kubectl-nodegate: %w\n%s", err, out)
	}
	return path, err
})

// BenchmarkSee is what the commands that look cost in a large cluster: the time of the
// whole program, what it receives, encrypted, and its memory at most. A first run, not
// counted, finds out what the API server serves. It comes last: policies stay.
func BenchmarkSee(b *testing.B) {
	f := theLarge(b)
	if err := f.configure(b.Context()); err != nil {
		b.Fatal(err)
	}
	program, err := buildCLI()
	if err != nil {
		b.Fatal(err)
	}
	wire, err := cluster.NewWire(f.Admin)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(wire.Cut)
	kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(wire.Config(f.Admin), kubeconfig); err != nil {
		b.Fatal(err)
	}
	flags := []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + b.TempDir()}
	for _, line := range []string{
		"status", "status -o json", "status --disable-compression", "explain " + nodeName(0), "heartbeat " + nodeName(0), "__complete heartbeat " + nodeName(0),
	} {
		b.Run(strings.ReplaceAll(line, " ", "_"), func(b *testing.B) {
			words := strings.Split(line, " ")
			args := slices.Concat(words[:1], flags, words[1:])
			look(b, program, args)
			once(b, func() {
				var took []time.Duration
				before, most := wire.Received(), 0.0
				for range looks {
					began := time.Now()
					most = max(most, look(b, program, args))
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				b.ReportMetric(took[looks/2].Seconds(), "s")
				b.ReportMetric(float64(wire.Received()-before)/looks/(1<<20), "MiB-received")
				b.ReportMetric(most, "MiB-at-most")
			})
		})
	}
}

// looks is how often each command is run.
const looks = 5

// look runs a command and returns its memory at most, in MiB. That something is amiss
// is no failure.
func look(b *testing.B, program string, args []string) float64 {
	b.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(b.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	highest := 0.0
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case err := <-ended:
			tick.Stop()
			if code := cmd.ProcessState.ExitCode(); code < 0 || code == 1 {
				b.Fatalf("%v: %v\n%.2000s", args, err, out.String())
			}
			return highest
		case <-tick.C:
			if _, most, err := memory(cmd.Process); err == nil {
				highest = max(highest, most)
			}
		}
	}
}

// configure installs what else the commands read.
func (f *fleet) configure(ctx context.Context) error {
	const config = "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\nmode: observe\n"
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: gate.ConfigMapName}, Data: map[string]string{gate.ConfigMapKey: config}}
	if _, err := f.admin.CoreV1().ConfigMaps(gate.Namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	cfg, err := gate.ParseConfiguration([]byte(config))
	if err != nil {
		return err
	}
	policies, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		return err
	}
	return f.Apply(ctx, policies)
}
