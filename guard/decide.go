package guard

import (
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// Grace is how long a node may be without a Ready agent pod: long enough that a
// pod is replaced within it when the DaemonSet rolls.
const Grace = 30 * time.Second

// Reason says why the guard arms a Node: a verdict that does not open, or
// [AgentAbsent].
type Reason string

const (
	Absent     = Reason(gate.Absent)
	Malformed  = Reason(gate.Malformed)
	OtherNode  = Reason(gate.OtherNode)
	OtherBoot  = Reason(gate.OtherBoot)
	NotReady   = Reason(gate.NotReady)
	FromFuture = Reason(gate.FromFuture)
	Expired    = Reason(gate.Expired)

	// AgentAbsent: the agent DaemonSet should run on the node, which for [Grace]
	// has had no Ready agent pod and no heartbeat.
	AgentAbsent Reason = "AgentAbsent"
)

// Reasons lists all of them.
func Reasons() []Reason {
	return []Reason{Absent, Malformed, OtherNode, OtherBoot, NotReady, FromFuture, Expired, AgentAbsent}
}

// byTime reports whether the reason rests on nothing but time that passed, or on
// clocks. An agent's heartbeat ends such a trouble, whatever the clocks say.
func (r Reason) byTime() bool { return r == FromFuture || r == Expired || r == AgentAbsent }

// input is all that a decision on one gate of one Node rests on.
type input struct {
	gate *gate.Gate
	node *corev1.Node
	// pods are the gate's agent pods that are bound to the Node.
	pods []corev1.Pod
	// daemonSets are those that create the gate's agent pods.
	daemonSets []appsv1.DaemonSet
	// installedAt adopts every Node created after it; see [Guard.InstalledAt].
	installedAt time.Time
	now         time.Time
	// trouble is what is remembered of the Node.
	trouble trouble
}

// decision is what to do about one gate of one Node.
type decision struct {
	// reason and message say what is wrong; empty if nothing is.
	reason  Reason
	message string
	// arm says to act on the reason. It is not set where that was done already
	// and the agent has answered with a heartbeat.
	arm bool
	// since is when the trouble began, as far as it shows; else zero.
	since time.Time
	// lookAgain is when time alone may change the decision; zero if never.
	lookAgain time.Time
}

// rule finds one kind of trouble: the reason and a message for people, and when
// time alone may change what it finds.
type rule func(in input) (reason Reason, message string, lookAgain time.Time)

// rules are tried in this order; the first reason found stands.
func rules() []rule { return []rule{evidence, fromFuture, expired, agentAbsent} }

// decide is the guard's whole judgement. It is pure.
func decide(in input) decision {
	if !in.gate.Governs(in.node) || in.gate.Armed(in.node) {
		return decision{}
	}
	if bypass, ok := in.bypass(); ok {
		return decision{lookAgain: bypass.Until}
	}
	var d decision
	for _, rule := range rules() {
		reason, message, lookAgain := rule(in)
		if reason != "" {
			answered, until := in.answered(reason)
			return decision{
				reason: reason, message: message, arm: !answered, since: in.began(reason), lookAgain: earlier(lookAgain, until),
			}
		}
		d.lookAgain = earlier(d.lookAgain, lookAgain)
	}
	return d
}

// evidence arms for what the Node itself shows, at any time: a heartbeat that is
// missing, of another object or boot, or says that the agent does not serve. A
// Node that was never adopted shows nothing.
func evidence(in input) (Reason, string, time.Time) {
	verdict := in.verdict()
	if !verdict.Timeless() || !in.adopted() {
		return "", "", time.Time{}
	}
	return Reason(verdict), verdict.Meaning(), time.Time{}
}

// fromFuture keeps a heartbeat that is dated ahead from being worth more than
// its ttl.
func fromFuture(in input) (Reason, string, time.Time) {
	if in.verdict() != gate.FromFuture {
		return "", "", time.Time{}
	}
	hb, _ := in.heartbeat()
	return FromFuture, fmt.Sprintf("the heartbeat is of %s, more than its ttl of %s ahead of %s",
		stamp(hb.Time), hb.TTL, stamp(in.now)), hb.Time.Add(-hb.TTL)
}

// expired arms when an agent has fallen silent, at the second its last heartbeat
// says. Where no agent can run, none is waited for.
func expired(in input) (Reason, string, time.Time) {
	hb, ok := in.heartbeat()
	if !ok || !in.agentBelongs() {
		return "", "", time.Time{}
	}
	expiry := hb.Time.Add(hb.TTL)
	if in.now.Before(expiry) {
		return "", "", expiry
	}
	return Expired, fmt.Sprintf("the last heartbeat, of %s, was good until %s", stamp(hb.Time), stamp(expiry)), time.Time{}
}

// agentAbsent arms when nothing is left on the node that could write a
// heartbeat, long before the last one expires.
func agentAbsent(in input) (Reason, string, time.Time) {
	since := in.trouble.missingSince
	if since.IsZero() || !in.watched() {
		return "", "", time.Time{}
	}
	if hb, ok := in.heartbeat(); ok && hb.Time.After(since) {
		return "", "", time.Time{}
	}
	if due := since.Add(Grace); in.now.Before(due) {
		return "", "", due
	}
	return AgentAbsent, fmt.Sprintf("no Ready agent pod and no heartbeat since %s", stamp(since)), time.Time{}
}

// adopted reports whether the Node is in the gate's care.
func (in input) adopted() bool {
	return in.gate.Adopted(in.node) ||
		!in.installedAt.IsZero() && in.node.CreationTimestamp.After(in.installedAt)
}

// watched is adopted, and every Node for a guard that runs without admission and
// heartbeats; see [Guard.InstalledAt].
func (in input) watched() bool { return in.installedAt.IsZero() || in.adopted() }

// agentBelongs reports whether an agent DaemonSet should run a pod on the Node, or
// lets one that is there stay. A guard without admission and heartbeats takes a
// bound pod's word for it.
func (in input) agentBelongs() bool {
	bound := len(in.pods) > 0
	if in.installedAt.IsZero() && bound {
		return true
	}
	return placement.Belongs(in.daemonSets, in.node, in.gate, bound)
}

// agentMissing reports whether an agent pod should be Ready and none is.
func (in input) agentMissing() bool {
	for i := range in.pods {
		if placement.Ready(&in.pods[i]) {
			return false
		}
	}
	return in.agentBelongs()
}

// lostSince is when a pod that was there at a time has stopped being Ready after
// it, or zero.
func (in input) lostSince(since time.Time) time.Time {
	var latest time.Time
	for i := range in.pods {
		if !in.pods[i].CreationTimestamp.After(since) {
			latest = later(latest, notReadySince(&in.pods[i]))
		}
	}
	return latest
}

// notReadySince is when a pod stopped being Ready, or zero.
func notReadySince(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// answered reports whether this trouble was acted on before and the agent, or in
// its absence whoever opens Nodes where there are no heartbeats, has opened the
// Node since. Arming it again would be a fight that nobody wins. A heartbeat is an
// answer until its ttl has passed since it was heard, whatever the clocks say.
func (in input) answered(reason Reason) (answered bool, until time.Time) {
	if !reason.byTime() || in.trouble.actedFor == "" {
		return false, time.Time{}
	}
	hb, ok := in.heartbeat()
	if !ok {
		return len(in.pods) > 0, time.Time{}
	}
	until = in.trouble.heardAt.Add(hb.TTL)
	if in.heartbeatValue() == in.trouble.actedOn || !in.now.Before(until) {
		return false, time.Time{}
	}
	return true, until
}

// began is when a trouble that rests on time began.
func (in input) began(reason Reason) time.Time {
	switch reason {
	case Expired:
		hb, _ := in.heartbeat()
		return hb.Time.Add(hb.TTL)
	case AgentAbsent:
		return in.trouble.missingSince
	}
	return time.Time{}
}

func (in input) verdict() gate.Verdict { return gate.Judge(in.node, in.gate, in.now) }

// heartbeat is the Node's, if it is one.
func (in input) heartbeat() (gate.Heartbeat, bool) {
	hb, err := gate.ParseHeartbeat(in.heartbeatValue())
	return hb, err == nil
}

func (in input) heartbeatValue() string { return in.node.Annotations[in.gate.HeartbeatAnnotation()] }

// bypass is the one in force.
func (in input) bypass() (gate.Bypass, bool) {
	if in.verdict() != gate.Bypassed {
		return gate.Bypass{}, false
	}
	bypass, err := gate.ParseBypass(in.node.Annotations[in.gate.BypassAnnotation()])
	return bypass, err == nil
}

// running names the agent's processes that run on the node, as far as its pods
// show them: one that ends, or starts anew, is not the same any more.
func (in input) running() []string {
	var all []string
	for i := range in.pods {
		if process := processOf(&in.pods[i]); process != "" {
			all = append(all, process)
		}
	}
	return all
}

// processOf names what runs in a pod all of whose containers run, or is empty.
func processOf(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	restarts := int32(0)
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		if status.State.Running == nil {
			return ""
		}
		restarts += status.RestartCount
	}
	return string(pod.UID) + "/" + strconv.Itoa(int(restarts))
}

// earlier returns the earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func stamp(t time.Time) string { return t.UTC().Format(gate.TimeLayout) }
