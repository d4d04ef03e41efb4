package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The intervals of a kubelet with default settings.
const (
	DefaultLeaseInterval  = 10 * time.Second
	DefaultStatusInterval = 5 * time.Minute
)

// Options describe a node and its kubelet.
type Options struct {
	// Config is the identity system:node:<Name> in the group system:nodes.
	Config *rest.Config
	Name   string
	// Labels are added to those that every kubelet sets.
	Labels map[string]string
	// Taints are what the Node is registered with.
	Taints []corev1.Taint
	// LeaseInterval and StatusInterval are how often the Lease is renewed and an
	// unchanged status is posted. Defaults: those of a real kubelet.
	LeaseInterval, StatusInterval time.Duration
	// Ready is the readiness probe of the pods. Default: every pod is ready.
	Ready func(ctx context.Context, pod *corev1.Pod) bool
	// Log defaults to none.
	Log *slog.Logger
}

// Kubelet can be started and stopped any number of times, as by reboots.
type Kubelet struct {
	Options
	client kubernetes.Interface

	mu   sync.Mutex
	stop func()
}

// New returns a kubelet that is not started.
func New(o Options) (*Kubelet, error) {
	if o.Config == nil || o.Name == "" {
		return nil, errors.New("creating kubelet: an identity and a name are needed")
	}
	if o.LeaseInterval <= 0 {
		o.LeaseInterval = DefaultLeaseInterval
	}
	if o.StatusInterval <= 0 {
		o.StatusInterval = DefaultStatusInterval
	}
	if o.Ready == nil {
		o.Ready = func(context.Context, *corev1.Pod) bool { return true }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	labels := map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: o.Name,
	}
	maps.Copy(labels, o.Labels)
	o.Labels = labels
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("creating kubelet of %q: %w", o.Name, err)
	}
	return &Kubelet{Options: o, client: client}, nil
}

// Start starts the kubelet in a boot and returns when its Node is registered and
// shows the boot. It runs until Stop, or until the context ends.
func (k *Kubelet) Start(ctx context.Context, bootID string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		return fmt.Errorf("starting kubelet of %q: it runs already", k.Name)
	}
	node, err := k.register(ctx)
	if err != nil {
		return fmt.Errorf("registering node %q: %w", k.Name, err)
	}
	started := metav1.Now()
	postStatus := func(ctx context.Context) error { return k.postStatus(ctx, bootID, started) }
	renewLease := func(ctx context.Context) error { return k.renewLease(ctx, node) }
	if err := errors.Join(renewLease(ctx), postStatus(ctx)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	parts.Go(func() { k.repeat(ctx, k.LeaseInterval, renewLease) })
	parts.Go(func() { k.repeat(ctx, k.StatusInterval, postStatus) })
	parts.Go(func() { k.runPods(ctx) })
	k.stop = func() { cancel(); parts.Wait() }
	return nil
}

// Stop ends the kubelet as a crash does: nobody is told. To stop one that does
// not run is no mistake.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		k.stop()
		k.stop = nil
	}
}

// repeat does something at an interval, the first time after one.
func (k *Kubelet) repeat(ctx context.Context, interval time.Duration, do func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.report(ctx, do(ctx))
		}
	}
}

// report logs what will be tried again.
func (k *Kubelet) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		k.Log.Error("Kubelet will try again", "node", k.Name, "error", err)
	}
}
