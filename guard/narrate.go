package guard

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// atCreation is the reason of an arming that came with the Node itself.
const atCreation Reason = "Created"

// author is who armed or opened a Node, as far as what was written shows. Who owns
// the taint in managedFields is no witness: what admission adds is owned by nobody,
// or by whoever had tried to remove it.
type author string

const (
	byGuard     author = "guard"
	byAdmission author = "admission"
	byAgent     author = "agent"
	byBypass    author = "bypass"
	byOther     author = "other"
)

// change is one arming or opening of a gate.
type change struct {
	armed bool
	// reason is why it was armed.
	reason  Reason
	message string
	by      author
}

// seen finds what happened to a gate between two states of a Node, of which the
// first is nil for one that was created. Whether the guard has done it is not to be
// seen.
func seen(before, after *corev1.Node, g *gate.Gate, now time.Time) (change, bool) {
	was, is := before != nil && g.Armed(before), g.Armed(after)
	if was == is || !g.Governs(after) && (before == nil || !g.Governs(before)) {
		return change{}, false
	}
	verdict := gate.Judge(after, g, now)
	if is {
		return armedAs(before, verdict), true
	}
	return openedAs(before, after, g, verdict), true
}

// armedAs: what only time has to say against, admission leaves open.
func armedAs(before *corev1.Node, verdict gate.Verdict) change {
	switch {
	case before == nil:
		return change{armed: true, reason: atCreation, message: "every Node starts so", by: byAdmission}
	case verdict.Timeless():
		return change{armed: true, reason: Reason(verdict), message: verdict.Meaning(), by: byAdmission}
	}
	return change{armed: true, reason: Reason(verdict), message: verdict.Meaning(), by: byOther}
}

// openedAs: an agent opens in the write that carries its heartbeat.
func openedAs(before, after *corev1.Node, g *gate.Gate, verdict gate.Verdict) change {
	opened := change{message: verdict.Meaning(), by: byOther}
	key := g.HeartbeatAnnotation()
	switch {
	case verdict == gate.Bypassed:
		opened.by = byBypass
	case verdict == gate.Fresh && before.Annotations[key] != after.Annotations[key]:
		opened.by = byAgent
	}
	return opened
}

// saw tells of what has happened to a Node, whoever has done it. The Node before is
// nil if it was created.
func (g *Guard) saw(before, after *corev1.Node) {
	if !g.term.leading.Load() {
		return
	}
	if before != nil && before.UID != after.UID {
		before = nil // it was deleted, and another one created
	}
	now, cfg := g.now(), g.configuration()
	g.memory.changed(after, now)
	for i := range cfg.Gates {
		gt := &cfg.Gates[i]
		c, ok := seen(before, after, gt, now)
		if !ok {
			continue
		}
		if c.armed && before != nil {
			if own, ok := g.memory.armedBy(before, gt); ok {
				c.reason, c.message, c.by = own.reason, own.message, byGuard
			}
		}
		g.narrate(after, gt, c)
	}
}

// narrate tells of one change.
func (g *Guard) narrate(node *corev1.Node, gt *gate.Gate, c change) {
	g.Metrics.saw(gt, c)
	kind := corev1.EventTypeWarning
	if !c.armed {
		if c.by != byOther {
			kind = corev1.EventTypeNormal
		}
		g.tellOfNode(node, kind, "Opened", "Open/"+gt.Name, fmt.Sprintf("Gate %q opened by %s: %s", gt.Name, c.by, c.message))
		return
	}
	if c.reason == atCreation {
		kind = corev1.EventTypeNormal
	}
	g.tellOfNode(node, kind, string(c.reason), "Arm/"+gt.Name, fmt.Sprintf("Gate %q armed by %s: %s", gt.Name, c.by, c.message))
}
