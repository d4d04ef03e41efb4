package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/internal/placement"
	"github.com/nodegate/nodegate/internal/report"
)

const (
	// A heartbeat may expire at any second, which nothing writes.
	rowsInterval = time.Second
	// What is not watched is read again this often.
	restInterval = 10 * time.Second
)

// follow shows the status, and then each row that changes, until the context ends.
func (o *statusOptions) follow(ctx context.Context, c *connection, selector labels.Selector) error {
	f := &follower{connection: c, failed: func(err error) { o.sayf("Lost sight of the cluster for a moment: %v", err) }}
	if err := f.start(ctx, selector); ctx.Err() != nil {
		return nil // who ends a watch has seen enough
	} else if err != nil {
		return err
	}
	status := report.NewStatus(f.current())
	shown := status.Nodes
	if err := o.show(status); err != nil {
		return err
	}
	rows, rest := time.NewTicker(rowsInterval), time.NewTicker(restInterval)
	defer rows.Stop()
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rest.C:
			if err := f.readRest(ctx); err != nil && ctx.Err() == nil {
				f.failed(err)
			}
			continue
		case <-rows.C:
		}
		if f.blind() {
			continue
		}
		next := report.NewStatus(f.current())
		if err := o.showChanges(shown, next.Nodes); err != nil {
			return err
		}
		for _, found := range next.Findings {
			if !slices.Contains(status.Findings, found) {
				o.sayf("Amiss: %s\n    %s", finding(found), found.Do)
			}
		}
		status, shown = next, next.Nodes
	}
}

// showChanges writes the rows that differ in more than the passing of time.
func (o *statusOptions) showChanges(before, after []report.Row) error {
	var changed []report.Row
	for _, change := range report.Changes(before, after) {
		if !o.armed || change.State != report.Open {
			changed = append(changed, change)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if o.format == "name" {
		o.names(changed)
		return nil
	}
	rows := make([][]cell, 0, len(changed))
	for i := range changed {
		if done, err := o.print(&changed[i], o.Out); err != nil {
			return err
		} else if !done {
			rows = append(rows, o.cells(changed[i]))
		}
	}
	o.rows.write(o.options, rows)
	return nil
}

// follower keeps what a report rests on up to date.
type follower struct {
	*connection
	failed func(error)

	in    *report.Input
	nodes cache.Store
	pods  []cache.Store
	// podsUnseen are those that may not be read.
	podsUnseen []report.Unseen
	// lost are watches that ended, and could not be begun anew.
	lost []*atomic.Bool
}

// blind: time passes, and what it would be judged by is not seen. Heartbeats that
// come meanwhile would be called too old.
func (f *follower) blind() bool {
	return slices.ContainsFunc(f.lost, func(lost *atomic.Bool) bool { return lost.Load() })
}

// start returns when everything was seen once.
func (f *follower) start(ctx context.Context, selector labels.Selector) error {
	if err := f.readRest(ctx); err != nil {
		return err
	}
	var synced []cache.InformerSynced
	run := func(kind client.Object, list client.ObjectList, options client.ListOptions) (cache.Store, error) {
		options.Limit = 1 // whether it may be read at all
		if err := f.List(ctx, list, &options); err != nil {
			return nil, err
		}
		options.Limit = 0
		informer := cache.NewSharedInformer(f.listWatch(list, options), kind, 0)
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("watching: %w", err)
		}
		if err := informer.SetWatchErrorHandlerWithContext(f.watchFailed); err != nil {
			return nil, fmt.Errorf("watching: %w", err)
		}
		go informer.RunWithContext(ctx)
		synced = append(synced, informer.HasSynced)
		return informer.GetStore(), nil
	}
	var err error
	if f.nodes, err = run(&corev1.Node{}, &corev1.NodeList{}, client.ListOptions{LabelSelector: selector}); err != nil {
		return explain(err, newObject(nodeKind, "", "(list)"))
	}
	for namespace, selector := range placement.PodSelectors(f.in.Config) {
		pods, err := run(&corev1.Pod{}, &corev1.PodList{}, client.ListOptions{Namespace: namespace, LabelSelector: selector})
		if apierrors.IsForbidden(err) {
			f.podsUnseen = append(f.podsUnseen, report.Unseen{Part: report.PartPods, Reason: right(err)})
			continue
		}
		if err != nil {
			return fmt.Errorf("listing pods: %w", err)
		}
		f.pods = append(f.pods, pods)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

// readRest reads all but Nodes and pods.
func (f *follower) readRest(ctx context.Context) error {
	in, err := (&look{connection: f.connection, rest: true}).input(ctx)
	if err == nil {
		f.in = in
	}
	return err
}

// current is what a report rests on now.
func (f *follower) current() *report.Input {
	in := *f.in
	in.Now = f.clock.Now()
	in.Unseen = slices.Concat(in.Unseen, f.podsUnseen)
	for _, object := range f.nodes.List() {
		in.Nodes = append(in.Nodes, *object.(*corev1.Node))
	}
	for _, store := range f.pods {
		for _, object := range store.List() {
			in.Pods = append(in.Pods, *object.(*corev1.Pod))
		}
	}
	return &in
}

func (f *follower) listWatch(kind client.ObjectList, options client.ListOptions) *cache.ListWatch {
	lost := &atomic.Bool{}
	f.lost = append(f.lost, lost)
	with := func(raw metav1.ListOptions) *client.ListOptions {
		options := options
		options.Limit, options.Continue, options.Raw = raw.Limit, raw.Continue, &raw
		return &options
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			list, _ := kind.DeepCopyObject().(client.ObjectList)
			err := f.List(ctx, list, with(raw))
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			list, _ := kind.DeepCopyObject().(client.ObjectList)
			begun, err := f.watcher.Watch(ctx, list, with(raw))
			lost.Store(err != nil)
			return begun, err
		},
	}
}

// watchFailed says so, but for what an API server does as a matter of course: it ends
// watches, and forgets old versions.
func (f *follower) watchFailed(ctx context.Context, _ *cache.Reflector, err error) {
	if ctx.Err() == nil && !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		f.failed(err)
	}
}

func trim(object any) (any, error) {
	switch object := object.(type) {
	case *corev1.Node:
		return trimNode(object), nil
	case *corev1.Pod:
		return trimPod(object), nil
	}
	return object, nil
}
