package report

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// Part is something that is read of a cluster.
type Part string

const (
	// PartConfiguration is the ConfigMap; unseen, the default gate is assumed.
	PartConfiguration Part = "configuration"
	PartPods          Part = "pods"
	PartDaemonSets    Part = "daemonSets"
	PartLease         Part = "lease"
	PartAdmission     Part = "admission"
	PartEvents        Part = "events"
	PartController    Part = "controller"
)

// Unseen is a part that could not be read, mostly for want of a right.
type Unseen struct {
	Part   Part   `json:"part"`
	Reason string `json:"reason"`
}

// Input is all that a report rests on.
type Input struct {
	// Now is the API server's time.
	Now    time.Time
	Config *gate.Configuration
	// InstalledAt adopts Nodes that were created later; zero if it is not recorded.
	InstalledAt time.Time
	// Added is when gates came to the installation, by their names.
	Added map[string]time.Time
	// Retired are gates that were configured once.
	Retired []gate.Retired
	Nodes   []corev1.Node
	// Pods and DaemonSets are those in the agents' namespaces, perhaps others too.
	Pods       []corev1.Pod
	DaemonSets []appsv1.DaemonSet
	// Lease is the guard's as of a time, nil if there is none.
	Lease     *coordinationv1.Lease
	LeaseAsOf time.Time
	// Admission is what nodegate has that admits.
	Admission []*unstructured.Unstructured
	// Events are about Nodes.
	Events []corev1.Event
	Unseen []Unseen
}

func (in *Input) saw(part Part) bool {
	return !slices.ContainsFunc(in.Unseen, func(u Unseen) bool { return u.Part == part })
}

// index is what of the input is looked up for every Node.
type index struct {
	*Input
	// pods are by namespace and node.
	pods map[[2]string][]*corev1.Pod
	sets map[string][]appsv1.DaemonSet
}

func newIndex(in *Input) *index {
	x := &index{Input: in, pods: map[[2]string][]*corev1.Pod{}, sets: map[string][]appsv1.DaemonSet{}}
	for i := range in.Pods {
		pod := &in.Pods[i]
		key := [2]string{pod.Namespace, placement.NodeOf(pod)}
		x.pods[key] = append(x.pods[key], pod)
	}
	for i := range in.Config.Gates {
		g := &in.Config.Gates[i]
		x.sets[g.Name] = placement.DaemonSets(g, in.DaemonSets)
	}
	return x
}

// podsOf are the gate's agent pods that are bound to a Node, or wait for that.
func (x *index) podsOf(node string, g *gate.Gate) []*corev1.Pod {
	agent := labels.SelectorFromSet(g.Agent.PodLabels)
	var pods []*corev1.Pod
	for _, pod := range x.pods[[2]string{g.Agent.Namespace, node}] {
		if agent.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// adopted is the guard's notion: by what the Node carries, or by its age.
func (x *index) adopted(node *corev1.Node, g *gate.Gate) bool {
	return g.Adopted(node) || !x.InstalledAt.IsZero() && node.CreationTimestamp.After(x.installedAt(g))
}

// installedAt is since when the gate is there.
func (x *index) installedAt(g *gate.Gate) time.Time {
	if at := x.Added[g.Name]; at.After(x.InstalledAt) {
		return at
	}
	return x.InstalledAt
}

func stamp(t time.Time) string { return t.UTC().Format(gate.TimeLayout) }
