package report

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

const (
	boot      = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	otherBoot = "0f3c9c54-7d0e-4a53-9d0b-6a2f7a1b5e11"
	agentPod  = "nodegate-agent-"
)

var (
	now       = time.Date(2026, 11, 29, 11, 3, 5, 0, time.UTC)
	installed = now.Add(-24 * time.Hour)
)

// animal is a Node in a state.
type animal struct {
	name   string
	armed  bool
	change func(*corev1.Node)
	// heartbeat is changed from one that is fresh; nil for none.
	heartbeat func(*gate.Heartbeat)
	// pod is changed from one that is Ready; nil for none.
	pod func(*corev1.Pod)
}

func fresh(*gate.Heartbeat) {}
func ready(*corev1.Pod)     {}

func unready(reason string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions[0].Status = corev1.ConditionFalse
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
}

func annotated(key, value string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Annotations[key] = value }
}

const (
	heartbeatKey = gate.HeartbeatPrefix + gate.DefaultName
	bypassKey    = gate.BypassPrefix + gate.DefaultName
)

// animals are one of each kind.
func animals() []animal {
	tainted := func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule})
	}
	return []animal{
		{name: "absent", armed: true, pod: unready("ErrImagePull")},
		{name: "bypassed", change: annotated(bypassKey, "until=2026-11-29T12:00:00Z reason=the image cannot be pulled")},
		{name: "bypassed-armed", armed: true, change: annotated(bypassKey, "until=2026-11-29T12:00:00Z reason=x")},
		{name: "cannot-run", armed: true, change: tainted},
		{name: "expired", armed: true, heartbeat: func(hb *gate.Heartbeat) { hb.Time = now.Add(-time.Hour) }},
		{name: "expired-cannot-run", change: tainted, heartbeat: func(hb *gate.Heartbeat) { hb.Time = now.Add(-time.Hour) }},
		{name: "expired-open", heartbeat: func(hb *gate.Heartbeat) { hb.Time = now.Add(-time.Hour) }, pod: unready("CrashLoopBackOff")},
		{name: "fresh", heartbeat: fresh, pod: ready},
		{name: "fresh-armed", armed: true, heartbeat: fresh, pod: ready},
		{name: "agent-gone", armed: true, heartbeat: fresh, pod: unready("")},
		{name: "from-future", armed: true, heartbeat: func(hb *gate.Heartbeat) { hb.Time = now.Add(time.Hour) }, pod: ready},
		{name: "malformed", armed: true, change: annotated(heartbeatKey, "v=1 ready=\x1b[2Jperhaps"), pod: ready},
		{name: "not-ready", armed: true, heartbeat: func(hb *gate.Heartbeat) {
			hb.Ready = false
			hb.Extra = append(hb.Extra, gate.Token{Key: gate.TokenFailing, Value: "socket,conflist"})
		}, pod: unready("")},
		{name: "no-boot-id", armed: true, change: func(node *corev1.Node) { node.Status.NodeInfo.BootID = "" }, heartbeat: fresh, pod: unready("")},
		{name: "other-boot", armed: true, heartbeat: func(hb *gate.Heartbeat) { hb.BootID = otherBoot }},
		{name: "other-node", armed: true, heartbeat: func(hb *gate.Heartbeat) { hb.NodeUID = "another" }, pod: ready},
		{name: "pending", armed: true, pod: func(pod *corev1.Pod) {
			pod.Spec = corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"pending"}}},
				}}},
			}}}
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			}}}
		}},
		{name: "unadopted", change: func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(installed.Add(-time.Hour)) }},
		{name: "ungoverned", change: func(node *corev1.Node) { node.Labels[gate.ExemptLabel] = "true" }},
		{name: "ungoverned-armed", armed: true, change: func(node *corev1.Node) { node.Labels[gate.ExemptLabel] = "true" }},
	}
}

// zoo is a cluster with one of each.
func zoo(t *testing.T) *Input {
	t.Helper()
	cfg := gate.Default()
	admission, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		t.Fatal(err)
	}
	in := &Input{
		Now: now, Config: cfg, InstalledAt: installed, Admission: admission, LeaseAsOf: now,
		Lease: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{gate.ModeAnnotation: string(cfg.Mode)}},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new("nodegate-controller-7d9f"), LeaseDurationSeconds: new(int32(4)), RenewTime: new(metav1.NewMicroTime(now.Add(-time.Second))),
			},
		},
		DaemonSets: []appsv1.DaemonSet{{
			ObjectMeta: metav1.ObjectMeta{Name: "nodegate-agent", Namespace: gate.Namespace},
			Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{gate.AgentLabel: gate.AgentLabelValue}},
			}},
		}},
	}
	for i, a := range animals() {
		a.join(t, in, i)
	}
	return in
}

func (a animal) join(t *testing.T, in *Input, i int) {
	t.Helper()
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: a.name, UID: types.UID(fmt.Sprintf("0deb1067-949c-4b9d-8907-%012d", i)), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		Labels: map[string]string{corev1.LabelOSStable: "linux"}, Annotations: map[string]string{},
	}}
	node.Status.NodeInfo.BootID = boot
	if a.armed {
		node.Spec.Taints = in.Config.Gates[0].WithTaint(nil)
	}
	if a.heartbeat != nil {
		hb := gate.Heartbeat{Ready: true, Time: now.Add(-12 * time.Second), TTL: 90 * time.Second, BootID: boot, NodeUID: node.UID, Extra: []gate.Token{
			{Key: gate.TokenPod, Value: "8125c226"}, {Key: gate.TokenSequence, Value: "17"},
		}}
		a.heartbeat(&hb)
		value, err := hb.Format()
		if err != nil {
			t.Fatal(err)
		}
		node.Annotations[heartbeatKey] = value
	}
	if a.change != nil {
		a.change(&node)
	}
	in.Nodes = append(in.Nodes, node)
	if a.pod != nil {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: agentPod + a.name, Namespace: gate.Namespace, Labels: map[string]string{gate.AgentLabel: gate.AgentLabelValue}},
			Spec:       corev1.PodSpec{NodeName: a.name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))},
			}},
		}
		a.pod(&pod)
		in.Pods = append(in.Pods, pod)
	}
}
