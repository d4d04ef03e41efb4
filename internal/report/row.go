package report

import (
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// State of a gate on a Node.
const (
	// Armed: the Node carries the taint.
	Armed = "armed"
	// Open: it does not.
	Open = "open"
)

// Row is one gate on one Node that it governs.
type Row struct {
	// TypeMeta is set where a row is written by itself.
	metav1.TypeMeta `json:",inline"`

	Node string `json:"node"`
	Gate string `json:"gate"`
	// State is armed or open.
	State   string       `json:"state"`
	Verdict gate.Verdict `json:"verdict"`
	// Adopted: the Node is in the gate's care. Others are armed by nothing but their
	// creation.
	Adopted bool `json:"adopted"`
	// AgainstTheRules: the Node is open, and should not be.
	AgainstTheRules bool `json:"againstTheRules,omitempty"`
	// Heartbeat is absent where the Node carries none that can be read.
	Heartbeat *Heartbeat `json:"heartbeat,omitempty"`
	// Bypass is the one that is in force.
	Bypass *Bypass `json:"bypass,omitempty"`
	// Agent is absent where pods or DaemonSets were not seen.
	Agent *Agent `json:"agent,omitempty"`
}

// Heartbeat is what the agent wrote.
type Heartbeat struct {
	Ready bool        `json:"ready"`
	Time  metav1.Time `json:"time"`
	// AgeSeconds is by the API server's clock; negative for a time ahead of it.
	AgeSeconds int64  `json:"ageSeconds"`
	TTLSeconds int64  `json:"ttlSeconds"`
	BootID     string `json:"bootID"`
	NodeUID    string `json:"nodeUID"`
	// Failing are the checks that fail.
	Failing []string `json:"failing,omitempty"`
	// PodUID and Sequence are the agent's pod and the number of its heartbeat, if it
	// says so.
	PodUID   string `json:"podUID,omitempty"`
	Sequence string `json:"sequence,omitempty"`
}

// Bypass is a person's.
type Bypass struct {
	Until  metav1.Time `json:"until"`
	Reason string      `json:"reason"`
}

// Agent is what is known of the agent on the node.
type Agent struct {
	// Belongs: one of the agent's DaemonSets should run a pod there.
	Belongs bool   `json:"belongs"`
	Pod     string `json:"pod,omitempty"`
	Ready   bool   `json:"ready"`
	// Problem is why the pod is not ready, as far as its status says.
	Problem string `json:"problem,omitempty"`
}

// RowKind is the kind of a [Row] that is written by itself.
const RowKind = "NodeGate"

// DeepCopyObject implements [runtime.Object], for kubectl's printers, which change
// nothing.
func (r *Row) DeepCopyObject() runtime.Object { c := *r; return &c }

// Gone is the state of a row whose Node is not there any more, or not governed.
const Gone = "gone"

// Changes are the rows that have changed, in more than the passing of time.
func Changes(before, after []Row) []Row {
	type key struct{ node, gate string }
	known := map[key]Row{}
	for _, row := range before {
		known[key{row.Node, row.Gate}] = row
	}
	var changed []Row
	for _, row := range after {
		k := key{row.Node, row.Gate}
		if was, ok := known[k]; !ok || !reflect.DeepEqual(was.timeless(), row.timeless()) {
			changed = append(changed, alone(row))
		}
		delete(known, k)
	}
	for _, row := range before {
		if _, left := known[key{row.Node, row.Gate}]; left {
			changed = append(changed, alone(Row{Node: row.Node, Gate: row.Gate, State: Gone}))
		}
	}
	return changed
}

func alone(row Row) Row {
	row.TypeMeta = metav1.TypeMeta{APIVersion: APIVersion, Kind: RowKind}
	return row
}

// timeless leaves out what every heartbeat changes.
func (r Row) timeless() Row {
	if r.Heartbeat != nil {
		r.Heartbeat = &Heartbeat{Ready: r.Heartbeat.Ready, Failing: r.Heartbeat.Failing}
	}
	return r
}

// rows are those of a Node, one for each gate that governs it.
func (x *index) rows(node *corev1.Node) []Row {
	var rows []Row
	for i := range x.Config.Gates {
		if g := &x.Config.Gates[i]; g.Governs(node) {
			rows = append(rows, x.row(node, g))
		}
	}
	return rows
}

func (x *index) row(node *corev1.Node, g *gate.Gate) Row {
	verdict := gate.Judge(node, g, x.Now)
	row := Row{
		Node: node.Name, Gate: g.Name, State: Open, Verdict: verdict, Adopted: x.adopted(node, g),
		Heartbeat: heartbeatOf(node, g, x.Now), Bypass: bypassOf(node, g, verdict), Agent: x.agent(node, g),
	}
	if g.Armed(node) {
		row.State = Armed
	}
	row.AgainstTheRules = row.State == Open && row.Adopted && wouldArm(row)
	return row
}

// wouldArm: the guard arms for every verdict that does not open; but for silence only
// where an agent can run.
func wouldArm(row Row) bool {
	if row.Verdict == gate.Expired {
		return row.Agent == nil || row.Agent.Belongs
	}
	return !row.Verdict.Opens()
}

func heartbeatOf(node *corev1.Node, g *gate.Gate, now time.Time) *Heartbeat {
	hb, err := gate.ParseHeartbeat(node.Annotations[g.HeartbeatAnnotation()])
	if err != nil {
		return nil
	}
	seen := &Heartbeat{
		Ready: hb.Ready, Time: metav1.NewTime(hb.Time), AgeSeconds: int64(now.Sub(hb.Time) / time.Second), TTLSeconds: int64(hb.TTL / time.Second),
		BootID: hb.BootID, NodeUID: string(hb.NodeUID),
	}
	for _, token := range hb.Extra {
		switch token.Key {
		case gate.TokenFailing:
			seen.Failing = strings.Split(token.Value, ",")
		case gate.TokenPod:
			seen.PodUID = token.Value
		case gate.TokenSequence:
			seen.Sequence = token.Value
		}
	}
	return seen
}

func bypassOf(node *corev1.Node, g *gate.Gate, verdict gate.Verdict) *Bypass {
	if verdict != gate.Bypassed {
		return nil
	}
	bypass, err := gate.ParseBypass(node.Annotations[g.BypassAnnotation()])
	if err != nil {
		return nil
	}
	return &Bypass{Until: metav1.NewTime(bypass.Until), Reason: bypass.Reason}
}

// agent: of several pods the one that is Ready counts, or else the newest.
func (x *index) agent(node *corev1.Node, g *gate.Gate) *Agent {
	if !x.saw(PartPods) || !x.saw(PartDaemonSets) {
		return nil
	}
	pods := x.podsOf(node.Name, g)
	bound := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	agent := &Agent{Belongs: placement.Belongs(x.sets[g.Name], node, g, bound)}
	var best *corev1.Pod
	for _, pod := range pods {
		if best == nil || placement.Ready(pod) || !placement.Ready(best) && best.CreationTimestamp.Before(&pod.CreationTimestamp) {
			best = pod
		}
	}
	if best == nil {
		return agent
	}
	agent.Pod, agent.Ready = best.Name, placement.Ready(best)
	if !agent.Ready {
		agent.Problem = problem(best)
	}
	return agent
}

// problem is why a pod is not Ready.
func problem(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case status.State.Waiting != nil && status.State.Waiting.Reason != "":
			return status.State.Waiting.Reason
		case status.State.Terminated != nil && status.State.Terminated.Reason != "" && status.State.Terminated.ExitCode != 0:
			return status.State.Terminated.Reason
		}
	}
	if pod.Status.Reason != "" {
		return pod.Status.Reason
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != "" {
			return c.Reason
		}
	}
	if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != "" {
		return string(pod.Status.Phase)
	}
	return notReady
}

// notReady is the problem of a pod that runs and says so itself: an agent is Ready
// only while its node serves.
const notReady = "NotReady"
