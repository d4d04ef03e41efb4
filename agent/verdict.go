package agent

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// failingBoot stands among the failing checks where the boot is not known. It is
// no DNS label, and so no check's name.
const failingBoot = "bootID"

// verdict is what a gate's checks amount to on this Node. Heartbeat, readiness
// and opening follow from it and from nothing else.
type verdict struct {
	gate *gate.Gate
	// known: the Node was read and every check has answered. Nothing is written
	// before.
	known bool
	// ready: no check counts as failing, in the boot that the Node shows.
	ready bool
	// opens: ready, and no check wavers.
	opens bool
	// armed: the Node carries the taint.
	armed bool
	// boot is why this boot is not the Node's; nil if it is.
	boot   error
	checks []checkVerdict
}

// checkVerdict is what a check's answers amount to.
type checkVerdict struct {
	name   string
	state  State
	reason error
}

// candidate is a gate and what its checks have answered.
type candidate struct {
	gate   *gate.Gate
	checks []candidateCheck
}

type candidateCheck struct {
	probe   Probe
	answers answers
}

// judge reduces the answers of a gate's checks to a verdict. Without a Node
// nothing is known.
func judge(c candidate, node *corev1.Node, boot bootID) verdict {
	v := verdict{gate: c.gate, known: node != nil, ready: true, opens: true}
	open := false
	if node != nil {
		v.armed = c.gate.Armed(node)
		v.boot = boot.differs(node.Status.NodeInfo.BootID)
		open = !v.armed && claims(c.gate, node, boot)
	}
	for _, check := range c.checks {
		state := check.answers.state(check.probe.Dwell, open)
		v.checks = append(v.checks, checkVerdict{name: check.probe.Name, state: state, reason: check.answers.reason})
		v.known = v.known && state != Unknown
		v.ready = v.ready && (state == Passing || state == Wavering)
		v.opens = v.opens && state == Passing
	}
	v.ready = v.ready && v.known && v.boot == nil
	v.opens = v.opens && v.ready
	return v
}

// claims reports whether the Node's heartbeat says that an agent serves in this
// boot, at whatever time.
func claims(g *gate.Gate, node *corev1.Node, boot bootID) bool {
	hb, ok := ownHeartbeat(g, node, boot)
	return ok && hb.Ready && boot.differs(node.Status.NodeInfo.BootID) == nil
}

// ownHeartbeat is the heartbeat on the Node, if it is of this Node and boot.
func ownHeartbeat(g *gate.Gate, node *corev1.Node, boot bootID) (gate.Heartbeat, bool) {
	hb, err := gate.ParseHeartbeat(node.Annotations[g.HeartbeatAnnotation()])
	return hb, err == nil && hb.NodeUID == node.UID && hb.BootID == boot.inHeartbeat()
}

// failing names what keeps the gate from being ready.
func (v verdict) failing() []string {
	var names []string
	if v.boot != nil {
		names = append(names, failingBoot)
	}
	for _, check := range v.checks {
		if check.state == Failing {
			names = append(names, check.name)
		}
	}
	return names
}

// reason is why the gate does not open, by its checks; nil if they pass.
func (v verdict) reason() error {
	var reasons []error
	for _, check := range v.checks {
		if check.state != Passing {
			reasons = append(reasons, fmt.Errorf("%s: %w", check.name, check.reason))
		}
	}
	return errors.Join(reasons...)
}

// maxFailingBytes leaves room for everything else that a heartbeat holds.
const maxFailingBytes = 160

// failingToken is the heartbeat's list of failing checks, cut where it would grow
// too long.
func (v verdict) failingToken() string {
	token := strings.Join(v.failing(), ",")
	if len(token) <= maxFailingBytes {
		return token
	}
	return token[:maxFailingBytes] + "..."
}
