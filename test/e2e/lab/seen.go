//go:build linux

package lab

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/world"
)

// NodeSeen is a state of a Node, as a watch showed it.
type NodeSeen struct {
	At time.Time
	// Revision is that of the write, in the order of all writes to the API server. Two
	// watches tell when each of them has shown something, not what was first.
	Revision uint64

	UID    types.UID
	BootID string
	Ready  bool
	// Armed is whether it carried the default gate's taint.
	Armed bool
	// Reported is the boot of which the agent has written a heartbeat, Serves whether
	// that said so, and Failing what it names else.
	Reported string
	Serves   bool
	Failing  string
}

// PodSeen is what watches showed of a pod, and when.
type PodSeen struct {
	Namespace, Name, Node string
	UID                   types.UID
	Created, Bound        time.Time
	Running, Deleted      time.Time
	// BoundRevision is that of the write that bound it.
	BoundRevision uint64
}

// Seen keeps what watches have shown since the lab began.
type Seen struct {
	gate *gate.Gate

	mu    sync.Mutex
	nodes map[string][]NodeSeen
	pods  map[types.UID]*PodSeen
}

func watch(ctx context.Context, api kubernetes.Interface) (*Seen, error) {
	s := &Seen{gate: &gate.Default().Gates[0], nodes: map[string][]NodeSeen{}, pods: map[types.UID]*PodSeen{}}
	factory := informers.NewSharedInformerFactory(api, 0)
	_, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.node(o) },
		UpdateFunc: func(_, o any) { s.node(o) },
	})
	if err != nil {
		return nil, err
	}
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.pod(o, false) },
		UpdateFunc: func(_, o any) { s.pod(o, false) },
		DeleteFunc: func(o any) { s.pod(o, true) },
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("watching %v: it has not begun", kind)
		}
	}
	return s, nil
}

func (s *Seen) node(object any) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	state := NodeSeen{
		At: time.Now(), Revision: revision(node), UID: node.UID, BootID: node.Status.NodeInfo.BootID,
		Ready: world.Ready(node), Armed: s.gate.Armed(node),
	}
	if heartbeat, err := gate.ParseHeartbeat(node.Annotations[s.gate.HeartbeatAnnotation()]); err == nil {
		state.Reported, state.Serves = heartbeat.BootID, heartbeat.Ready
		for _, token := range heartbeat.Extra {
			if token.Key == gate.TokenFailing {
				state.Failing = token.Value
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.nodes[node.Name]; len(last) > 0 {
		same := last[len(last)-1]
		same.At, same.Revision = state.At, state.Revision
		if same == state {
			return
		}
	}
	s.nodes[node.Name] = append(s.nodes[node.Name], state)
}

// revision is the number that the API server's store counts all writes by.
func revision(object metav1.Object) uint64 {
	number, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64) // always one
	return number
}

func (s *Seen) pod(object any, deleted bool) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[pod.UID]
	if p == nil {
		p = &PodSeen{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Created: now}
		s.pods[pod.UID] = p
	}
	if p.Node == "" && pod.Spec.NodeName != "" {
		p.Node, p.Bound, p.BoundRevision = pod.Spec.NodeName, now, revision(pod)
	}
	if p.Running.IsZero() && pod.Status.Phase == corev1.PodRunning {
		p.Running = now
	}
	if deleted {
		p.Deleted = now
	}
}

// Node returns the states of a Node, the oldest first, in which something changed.
func (s *Seen) Node(name string) []NodeSeen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nodes[name])
}

// Pod returns what was seen of a pod.
func (s *Seen) Pod(uid types.UID) (PodSeen, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		return *p, true
	}
	return PodSeen{}, false
}

// Pods returns those of a namespace.
func (s *Seen) Pods(namespace string) []PodSeen {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []PodSeen
	for _, p := range s.pods {
		if p.Namespace == namespace {
			all = append(all, *p)
		}
	}
	slices.SortFunc(all, func(a, b PodSeen) int { return a.Created.Compare(b.Created) })
	return all
}
