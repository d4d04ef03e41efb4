package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/netconf"
)

const (
	// podQPS and podBurst bound what a node asks about its pods, apart from its
	// heartbeats: after a power cut all nodes do so at the same time.
	podQPS   = 10
	podBurst = 50
	// podsAtOnce bounds what is read at the same time: whoever may create a pod decides
	// how large it is, up to some megabytes.
	podsAtOnce = 4
	// seenFor is how long an answer counts. A pod's tolerations can grow while it
	// waits.
	seenFor = 5 * time.Minute
	// missedFor is how long nothing is asked after there was no answer.
	missedFor = 3 * time.Second
	// maxSeen bounds what is remembered: peers name the pods.
	maxSeen = 1024

	// staticPodAnnotation on the pod that stands for a static one holds the UID by
	// which its kubelet, and so the runtime, knows it.
	staticPodAnnotation = "kubernetes.io/config.hash"
)

// errNotAsked: the pod is not known yet, and there is nothing to tell of that.
var errNotAsked = errors.New("the API server has not answered yet")

// podLookup asks the API server for pods of this node, one by one, and by name:
// whoever may list pods may read those of all nodes.
type podLookup struct {
	node string
	// gates are those of which is remembered whether the pod passes them.
	gates []*gate.Gate
	get   func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	clock clock.PassiveClock
	log   *slog.Logger
	// changed is called when there is an answer.
	changed func()
	// turns has one free place for each question that may be asked now.
	turns chan struct{}

	mu   sync.Mutex
	seen map[netconf.Pod]sighting
	// told: it was logged that the right is missing.
	told bool
}

// sighting is what is known of a pod.
type sighting struct {
	passes passes
	err    error
	// until is how long that counts; zero while the API server is being asked.
	until time.Time
}

func newPodLookup(a *Agent, config *rest.Config) (*podLookup, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = podQPS, podBurst
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client for pods: %w", err)
	}
	l := &podLookup{
		node: a.name, clock: a.clock, log: a.log.With("node", a.name), changed: a.bell.ring, turns: make(chan struct{}, podsAtOnce),
		get: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return client.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		seen: map[netconf.Pod]sighting{},
	}
	for _, g := range a.gates {
		l.gates = append(l.gates, g.gate)
	}
	return l, nil
}

// find returns which gates the pod passes, and has the API server asked where that is
// not known, for as long as the context lasts.
func (l *podLookup) find(ctx context.Context, pod netconf.Pod) (passes, error) {
	if pod == (netconf.Pod{}) {
		return nil, errNotAsked // STATUS is of no pod
	}
	if pod.Namespace == "" || pod.Name == "" {
		return nil, errors.New("the runtime did not say which pod it is")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.seen[pod]
	if ok && (known.until.IsZero() || l.clock.Now().Before(known.until)) {
		return known.passes, known.err
	}
	if !ok {
		known.err = errNotAsked
		l.makeRoom()
	}
	known.until = time.Time{}
	l.seen[pod] = known
	go l.ask(ctx, pod)
	return known.passes, known.err
}

// makeRoom forgets everything that is not being asked for: what is still of use is
// asked again.
func (l *podLookup) makeRoom() {
	if len(l.seen) < maxSeen {
		return
	}
	for pod, s := range l.seen {
		if !s.until.IsZero() {
			delete(l.seen, pod)
		}
	}
}

func (l *podLookup) ask(ctx context.Context, asked netconf.Pod) {
	found, err := l.read(ctx, asked)
	l.mu.Lock()
	switch {
	case err == nil:
		l.seen[asked] = sighting{passes: found, until: l.clock.Now().Add(seenFor)}
	case ctx.Err() != nil: // its plugin has gone, and may come again
		delete(l.seen, asked)
	default:
		l.seen[asked] = sighting{err: shortened(err), until: l.clock.Now().Add(missedFor)}
	}
	l.tell(err)
	l.mu.Unlock()
	l.changed()
}

// read returns which gates the pod passes, when its turn has come.
func (l *podLookup) read(ctx context.Context, asked netconf.Pod) (passes, error) {
	select {
	case l.turns <- struct{}{}:
		defer func() { <-l.turns }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pod, err := l.get(ctx, asked.Namespace, asked.Name)
	if err == nil {
		err = l.isAsked(pod, asked)
	}
	if err != nil {
		return nil, err
	}
	found := passes{}
	for _, g := range l.gates {
		found[g] = podPasses(pod, g)
	}
	return found, nil
}

// isAsked: a pod of the same name may have been created since, for another node.
func (l *podLookup) isAsked(pod *corev1.Pod, asked netconf.Pod) error {
	if asked.UID != "" && string(pod.UID) != asked.UID && pod.Annotations[staticPodAnnotation] != asked.UID {
		return errors.New("the API server has another pod of that name")
	}
	if pod.Spec.NodeName != l.node {
		return errors.New("the API server has that pod on another node")
	}
	return nil
}

// tell logs once that the right to get pods is missing.
func (l *podLookup) tell(err error) {
	if apierrors.IsForbidden(err) && !l.told {
		l.told = true
		l.log.Warn("API server refuses to show pods, so that those which tolerate the gate wait as others do", "error", err)
	}
}
