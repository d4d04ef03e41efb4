package gate

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Verdict is what a heartbeat is worth at a given time. Agent, guard, webhook,
// policy and CLI use these words.
type Verdict string

const (
	// Bypassed: a person opened the gate, and the time they gave is not over.
	Bypassed Verdict = "Bypassed"
	// Absent: there is no heartbeat.
	Absent Verdict = "Absent"
	// Malformed: the value is no heartbeat.
	Malformed Verdict = "Malformed"
	// OtherNode: written for another Node object, one that was re-created or
	// restored under this name.
	OtherNode Verdict = "OtherNode"
	// OtherBoot: written in another boot of this node, or the boot is not known.
	OtherBoot Verdict = "OtherBoot"
	// NotReady: the agent says that it does not serve.
	NotReady Verdict = "NotReady"
	// FromFuture: its time is more than a ttl ahead.
	FromFuture Verdict = "FromFuture"
	// Expired: it is a ttl old, or there is no clock to judge it by.
	Expired Verdict = "Expired"
	// Fresh: the agent has recently shown, in this boot, that it serves.
	Fresh Verdict = "Fresh"
)

// Verdicts lists all of them, in the order in which they are tried.
func Verdicts() []Verdict {
	return []Verdict{Bypassed, Absent, Malformed, OtherNode, OtherBoot, NotReady, FromFuture, Expired, Fresh}
}

// Opens reports whether a Node of this verdict may be open.
func (v Verdict) Opens() bool { return v == Fresh || v == Bypassed }

// Timeless reports whether the verdict against the Node holds at any time, so
// that admission may arm an open Node for it. Time alone arms through the guard.
func (v Verdict) Timeless() bool {
	switch v {
	case Absent, Malformed, OtherNode, OtherBoot, NotReady:
		return true
	}
	return false
}

// Judge says what the Node's heartbeat for the gate is worth at now. It is
// total: no Node makes it fail. A now outside the years 2020 to 2099 is no
// clock: nothing is Bypassed or Fresh by it.
func Judge(node *corev1.Node, g *Gate, now time.Time) Verdict {
	return evidence{
		annotations: node.Annotations,
		uid:         node.UID,
		bootID:      node.Status.NodeInfo.BootID,
	}.judge(g, now, false)
}

// evidence is what a verdict rests on. On UPDATE the annotations are the sent
// object's; UID and boot id are the stored one's, since mutating admission runs
// before the API server restores what a write may not change.
type evidence struct {
	annotations map[string]string
	uid         types.UID
	bootID      string
}

// judge tries the verdicts in order. With alive, the heartbeat was just written
// by the agent itself: its time is not asked.
func (e evidence) judge(g *Gate, now time.Time, alive bool) Verdict {
	if e.bypassed(g, now) {
		return Bypassed
	}
	value, ok := e.annotations[g.HeartbeatAnnotation()]
	if !ok {
		return Absent
	}
	hb, err := ParseHeartbeat(value)
	switch {
	case err != nil:
		return Malformed
	case hb.NodeUID != e.uid:
		return OtherNode
	case !ValidBootID(e.bootID) || hb.BootID != e.bootID:
		return OtherBoot
	case !hb.Ready:
		return NotReady
	case alive:
		return Fresh
	case !validClock(now):
		return Expired
	case hb.Time.After(now.Add(hb.TTL)):
		return FromFuture
	case !hb.Time.After(now.Add(-hb.TTL)):
		return Expired
	}
	return Fresh
}

func (e evidence) bypassed(g *Gate, now time.Time) bool {
	value, ok := e.annotations[g.BypassAnnotation()]
	if !ok || !validClock(now) {
		return false
	}
	bypass, err := ParseBypass(value)
	return err == nil && now.Before(bypass.Until)
}

// ValidBootID reports whether a boot id identifies a boot: one that is empty or
// all zero does not, and never matches.
func ValidBootID(id string) bool {
	return strings.Trim(id, "0-") != ""
}

// validClock reports whether a time can be that of a working clock.
func validClock(t time.Time) bool {
	stamp := t.UTC().Format(TimeLayout)
	return len(stamp) == len(MinTime) && MinTime <= stamp && stamp <= MaxTime
}

// LatestTime is what the policies take for now: the [LatestStamp] of the stored
// and the sent Node, or, if that is later, the time of the gate's stored taint.
// Stamps can be lost: a write that only removes is not stamped itself, and takes
// away the stamp of whoever set what it removes. So admission notes on the taint
// that it puts back since when it must be there, see [Decision.TimeAdded], which
// cannot be lost but with the taint. It is no more trustworthy than a stamp.
func (g *Gate) LatestTime(old, sent *corev1.Node) time.Time {
	latest := LatestStamp(old, sent)
	if old == nil {
		return latest
	}
	if t, ok := g.find(old.Spec.Taints); ok && notedTime(t).After(latest) {
		latest = notedTime(t)
	}
	return latest
}

// notedTime is the time on a taint, or zero if that is no clock's.
func notedTime(t corev1.Taint) time.Time {
	if t.TimeAdded == nil || !validClock(t.TimeAdded.Time) {
		return time.Time{}
	}
	return t.TimeAdded.UTC()
}

// MaxStamps is how many entries of a Node's managedFields are looked at: all of
// them or, where there are more, none. Nodes have a dozen; an API server's CEL would
// take half a minute for the fourteen thousand that fit into one.
const MaxStamps = 256

// LatestStamp is the latest time in the managedFields of the Nodes, the clock of
// a judge that has none of its own. Stamps outside the years 2020 to 2099 are
// ignored, and those of a Node with more than [MaxStamps] entries; without any the
// zero time is returned, which is no clock. It is not
// trustworthy (whoever writes a Node may clear or forge stamps), which is why
// nothing but keeping a Node armed may rest on it.
func LatestStamp(nodes ...*corev1.Node) time.Time {
	var latest time.Time
	for _, node := range nodes {
		if node == nil || len(node.ManagedFields) > MaxStamps {
			continue
		}
		for _, entry := range node.ManagedFields {
			if entry.Time != nil && validClock(entry.Time.Time) && entry.Time.After(latest) {
				latest = entry.Time.Time
			}
		}
	}
	return latest.UTC()
}
