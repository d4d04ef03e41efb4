package gate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Write is one write to a Node as admission sees it.
type Write struct {
	Operation admissionv1.Operation
	// Subresource is empty for the Node itself, "status" for nodes/status.
	Subresource string
	// Name is the Node's name.
	Name string
	User authenticationv1.UserInfo
	// Old is the stored Node; nil on CREATE.
	Old *corev1.Node
	// New is the Node as sent, or as other admission left it; nil on DELETE.
	New *corev1.Node
}

// Cause says why admission arms.
type Cause string

const (
	// CauseCreated: a Node is born armed.
	CauseCreated Cause = "Created"
	// CauseGoverned: the write makes the Node a governed one.
	CauseGoverned Cause = "Governed"
	// CauseKept: the write removes the taint and nothing shows that the agent
	// serves.
	CauseKept Cause = "Kept"
	// CauseEvidence: the Node is open and the write shows that it must not be.
	CauseEvidence Cause = "Evidence"
)

// Decision is what admission does with a write.
type Decision struct {
	// Arm says that the gate's taint is to be added at the end of the list.
	Arm bool
	// Value is the taint's value: as stored where it is put back, else the
	// gate's.
	Value string
	// TimeAdded is the taint's time where it is put back: as stored or, if that is
	// later, when the heartbeat expired or the bypass ended for which it is.
	TimeAdded *metav1.Time
	// Cause says why, where Arm is set.
	Cause Cause
	// Verdict is the heartbeat's, on UPDATE of a governed Node.
	Verdict Verdict
}

// Admit decides what mutating admission does with a write, in the mode enforce.
// It is the twin of the mutation policies. Only the main resource is mutated:
// the API server would drop a taint set through nodes/status.
//
// now is the judge's clock: the API server's corrected time where there is one,
// else the [Gate.LatestTime] of the stored and the sent Node.
func (g *Gate) Admit(w Write, now time.Time) Decision {
	switch {
	case w.Subresource != "" || w.New == nil || !g.Governs(w.New):
		return Decision{}
	case w.Operation == admissionv1.Create:
		return g.decide(w, CauseCreated, "", now)
	case w.Operation != admissionv1.Update || w.Old == nil || w.kubelet():
		return Decision{}
	}
	verdict := g.JudgeWrite(w, now)
	return g.decide(w, g.cause(w, verdict), verdict, now)
}

// JudgeWrite is the verdict on the result of an UPDATE. A heartbeat that the
// gate's agent sets in this very write proves by itself that it lives; every
// other is judged by now.
func (g *Gate) JudgeWrite(w Write, now time.Time) Verdict {
	return evidence{
		annotations: w.New.Annotations,
		uid:         w.Old.UID,
		bootID:      w.Old.Status.NodeInfo.BootID,
	}.judge(g, now, g.setsHeartbeat(w) && g.byAgent(w))
}

// cause is the reason to arm an UPDATE by this verdict, or empty.
func (g *Gate) cause(w Write, verdict Verdict) Cause {
	switch {
	case !g.Governs(w.Old):
		return CauseGoverned
	case g.Armed(w.Old) && !verdict.Opens():
		return CauseKept
	case !g.Armed(w.Old) && verdict.Timeless() && (g.Adopted(w.Old) || g.Adopted(w.New)):
		return CauseEvidence
	}
	return ""
}

// decide arms for the cause, unless there is none or the result is armed
// already.
func (g *Gate) decide(w Write, cause Cause, verdict Verdict, now time.Time) Decision {
	if cause == "" || g.Armed(w.New) {
		return Decision{Verdict: verdict}
	}
	d := Decision{Arm: true, Value: g.Taint.Value, Cause: cause, Verdict: verdict}
	if w.Old == nil {
		return d
	}
	if stored, ok := g.find(w.Old.Spec.Taints); ok {
		d.Value, d.TimeAdded = stored.Value, stored.TimeAdded
		if at := g.overSince(w, verdict, now); at.After(notedTime(stored)) {
			d.TimeAdded = &metav1.Time{Time: at}
		}
	}
	return d
}

// overSince is since when the clock shows what the verdict rests on, that the
// heartbeat expired or the bypass ended, or zero if it rests on no time. Noted on
// the taint it is a clock that leads to the same verdict again, and it is the same
// at every removal, so that all but the first change nothing.
func (g *Gate) overSince(w Write, verdict Verdict, now time.Time) time.Time {
	var since time.Time
	if !validClock(now) {
		return since
	}
	if bypass, err := ParseBypass(w.New.Annotations[g.BypassAnnotation()]); err == nil && verdict != Bypassed {
		since = bypass.Until
	}
	if verdict != Expired {
		return since
	}
	hb, err := ParseHeartbeat(w.New.Annotations[g.HeartbeatAnnotation()])
	if expiry := hb.Time.Add(hb.TTL); err == nil && expiry.After(since) {
		return expiry
	}
	return since
}

// FinalMessage is what the caller reads of a write that leaves the Node open
// against the rules after all mutation.
func (g *Gate) FinalMessage() string {
	return fmt.Sprintf("taint %s:%s of gate %q was taken away by other admission, and the node's agent has not shown that it serves",
		g.Taint.Key, g.Taint.Effect, g.Name)
}

// Apply returns the taints as the decision leaves them. The argument is never
// changed.
func (g *Gate) Apply(d Decision, taints []corev1.Taint) []corev1.Taint {
	if !d.Arm {
		return taints
	}
	return g.with(taints, corev1.Taint{Key: g.Taint.Key, Value: d.Value, Effect: g.Taint.Effect, TimeAdded: d.TimeAdded})
}

// kubelet reports whether the write is a kubelet's own. NodeRestriction refuses
// any change of taints in it, so a mutation would make it fail.
func (w Write) kubelet() bool {
	return strings.HasPrefix(w.User.Username, KubeletUserPrefix) && slices.Contains(w.User.Groups, KubeletGroup)
}

// boundToNode reports whether the caller's token is bound to a pod on this Node.
func (w Write) boundToNode() bool {
	nodes, pods := w.User.Extra[ExtraNodeName], w.User.Extra[ExtraPodUID]
	return len(nodes) == 1 && nodes[0] == w.Name && len(pods) > 0
}

// byAgent reports whether the gate's agent of this very node writes.
func (g *Gate) byAgent(w Write) bool {
	return w.User.Username == g.Agent.Username() && w.boundToNode()
}

// setsHeartbeat reports whether the write sets or changes the heartbeat.
func (g *Gate) setsHeartbeat(w Write) bool { return sets(w, g.HeartbeatAnnotation()) }

func sets(w Write, annotation string) bool {
	sent, ok := w.New.Annotations[annotation]
	if !ok {
		return false
	}
	if w.Old == nil {
		return true
	}
	stored, had := w.Old.Annotations[annotation]
	return !had || stored != sent
}

func removes(w Write, annotation string) bool {
	if w.Old == nil {
		return false
	}
	_, had := w.Old.Annotations[annotation]
	_, has := w.New.Annotations[annotation]
	return had && !has
}
