package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
	"github.com/nodegate/nodegate/internal/report"
)

// look reads what a report rests on: all at the same time, and of what is long no
// more than is needed. What the caller has no right to read is noted, and not looked
// at any further.
type look struct {
	*connection
	// node is the only one to read; empty for all that selector selects.
	node     string
	selector labels.Selector
	// rest leaves Nodes and pods out.
	rest bool

	mu sync.Mutex
	in report.Input
}

// lookAt prepares to look at one node. What is wrong with the call is said before
// anything is asked for.
func (o *options) lookAt(arg string, form *output) (*look, error) {
	node, err := nodeName(arg)
	if err != nil {
		return nil, err
	}
	if _, err := form.printer(); err != nil {
		return nil, err
	}
	c, err := o.connect()
	return &look{connection: c, node: node}, err
}

// input reads all parts.
func (l *look) input(ctx context.Context) (*report.Input, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.readNodes(ctx) })
	group.Go(func() error {
		if err := l.readConfiguration(ctx); err != nil {
			return err
		}
		for namespace, selector := range placement.PodSelectors(l.in.Config) {
			group.Go(func() error { return l.readPods(ctx, namespace, selector) })
			group.Go(func() error { return l.readDaemonSets(ctx, namespace) })
		}
		return nil
	})
	group.Go(func() error { return l.readLease(ctx) })
	group.Go(func() error { return l.readAdmission(ctx) })
	if l.node != "" {
		group.Go(func() error { return l.readEvents(ctx) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	l.in.Now = l.clock.Now()
	return &l.in, nil
}

// nodeAlone reads one Node and the configuration.
func (l *look) nodeAlone(ctx context.Context) (*report.Input, error) {
	if err := errors.Join(l.configurationOrDefault(ctx), l.readNodes(ctx)); err != nil {
		return nil, err
	}
	l.in.Now = l.clock.Now()
	return &l.in, nil
}

// unseen notes that a part may not be read, and passes on every other error.
func (l *look) unseen(part report.Part, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	l.note(part, right(err))
	return nil
}

func (l *look) note(part report.Part, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.Unseen = append(l.in.Unseen, report.Unseen{Part: part, Reason: reason})
	slices.SortFunc(l.in.Unseen, func(a, b report.Unseen) int { return cmp.Compare(a.Part, b.Part) })
}

// right is the one that is missing, in the API server's words without its preface.
func right(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return err.Error()
	}
	_, right, found := strings.Cut(status.ErrStatus.Message, " is forbidden: ")
	if !found {
		return status.ErrStatus.Message
	}
	return right
}

// readConfiguration falls back to the default gate where it may not be read.
func (l *look) readConfiguration(ctx context.Context) error {
	object := configMap()
	if err := l.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		l.in.Config = gate.Default()
		return l.unseen(report.PartConfiguration, l.unconfigured(ctx, err))
	}
	_, cfg, err := parsed(object)
	if err != nil {
		return invalid{err}
	}
	l.in.Config = cfg
	// One that cannot be read counts as not recorded, for the controller too.
	l.in.Added = gate.ParseAdded(object.GetAnnotations()[gate.AddedAnnotation])
	l.in.Retired = gate.ParseRetired(object.GetAnnotations()[gate.RetiredAnnotation])
	l.in.InstalledAt, _ = time.Parse(gate.TimeLayout, object.GetAnnotations()[gate.InstalledAtAnnotation])
	return nil
}

// invalid is the error of a configuration that is there and says nothing.
type invalid struct{ error }

// configurationOrDefault falls back to the default gate also where the configuration
// is invalid, for reports that mean something without it.
func (l *look) configurationOrDefault(ctx context.Context) error {
	err := l.readConfiguration(ctx)
	if fault, ok := errors.AsType[invalid](err); ok {
		l.in.Config = gate.Default()
		l.note(report.PartConfiguration, fault.Error())
		return nil
	}
	return err
}

func (l *look) readNodes(ctx context.Context) error {
	if l.rest {
		return nil
	}
	if l.node != "" {
		node := &corev1.Node{}
		if err := l.Get(ctx, client.ObjectKey{Name: l.node}, node); err != nil {
			return explain(err, newObject(nodeKind, "", l.node))
		}
		l.in.Nodes = []corev1.Node{*node}
		return nil
	}
	options := client.ListOptions{LabelSelector: l.selector}
	err := eachOf(ctx, l.Client, &corev1.NodeList{}, options, func(object runtime.Object) {
		l.in.Nodes = append(l.in.Nodes, *trimNode(object.(*corev1.Node)))
	})
	return explain(err, newObject(nodeKind, "", "(list)"))
}

var nodeKind = corev1.SchemeGroupVersion.WithKind("Node")

// trimNode drops what is long: images, and who wrote what.
func trimNode(node *corev1.Node) *corev1.Node {
	node.ManagedFields = nil
	node.Status = corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: node.Status.NodeInfo.BootID}}
	return node
}

// trimPod drops all but where a pod is, or is to be, and how it does.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Affinity: pod.Spec.Affinity}
	if pod.Spec.NodeName != "" {
		pod.Spec.Affinity = nil
	}
	return pod
}

func (l *look) readPods(ctx context.Context, namespace string, selector labels.Selector) error {
	if l.rest {
		return nil
	}
	selectors := []fields.Selector{nil}
	if l.node != "" { // on it, or waiting to be
		selectors = []fields.Selector{fields.OneTermEqualSelector("spec.nodeName", l.node), fields.OneTermEqualSelector("spec.nodeName", "")}
	}
	for _, where := range selectors {
		options := client.ListOptions{Namespace: namespace, LabelSelector: selector, FieldSelector: where}
		err := eachOf(ctx, l.Client, &corev1.PodList{}, options, func(object runtime.Object) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.in.Pods = append(l.in.Pods, *trimPod(object.(*corev1.Pod)))
		})
		if err != nil {
			return l.unseen(report.PartPods, err)
		}
	}
	return nil
}

func (l *look) readDaemonSets(ctx context.Context, namespace string) error {
	var list appsv1.DaemonSetList
	if err := l.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return l.unseen(report.PartDaemonSets, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.DaemonSets = append(l.in.DaemonSets, list.Items...)
	return nil
}

func (l *look) readLease(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	err := l.Get(ctx, client.ObjectKey{Namespace: gate.Namespace, Name: gate.ControllerLease}, lease)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return l.unseen(report.PartLease, err)
	}
	l.in.Lease, l.in.LeaseAsOf = lease, l.clock.Now()
	return nil
}

func (l *look) readAdmission(ctx context.Context) error {
	objects, err := installed(ctx, l.connection, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration")
	if err != nil {
		return l.unseen(report.PartAdmission, err)
	}
	l.in.Admission = objects
	return nil
}

// readEvents reads the guard's about the Node.
func (l *look) readEvents(ctx context.Context) error {
	var list corev1.EventList
	err := l.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{
		"involvedObject.kind": "Node", "involvedObject.name": l.node, "reportingComponent": gate.ManagerGuard,
	})
	if err != nil {
		return l.unseen(report.PartEvents, err)
	}
	l.in.Events = list.Items
	return nil
}

// pageSize is kubectl's: an API server has no more than that in hand at a time.
const pageSize = 500

// eachOf lists in pages, of which the next is fetched while one is worked on.
func eachOf(ctx context.Context, c client.Client, kind client.ObjectList, options client.ListOptions, do func(runtime.Object)) error {
	p := pager.New(func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
		page, _ := kind.DeepCopyObject().(client.ObjectList)
		options := options
		options.Limit, options.Continue, options.Raw = raw.Limit, raw.Continue, &raw
		err := c.List(ctx, page, &options)
		return page, err
	})
	p.PageSize = pageSize
	return p.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error { do(object); return nil })
}
