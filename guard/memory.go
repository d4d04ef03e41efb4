package guard

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// trouble is what the guard remembers of one gate of one Node between two looks.
// The zero value remembers nothing.
type trouble struct {
	// missingSince is since when the node has had no Ready agent pod where one
	// should run; zero while it has one.
	missingSince time.Time
	// running are the agent's processes that ran when last looked at.
	running []string
	// actedFor is the reason for which the Node was armed in the trouble that lasts,
	// actedOn the heartbeat that it carried then.
	actedFor Reason
	actedOn  string
	// counted says that the trouble was counted as one for which it would be armed.
	counted bool
	// heard is the Node's heartbeat, heardAt since when it carries that.
	heard   string
	heardAt time.Time
	// arming is what is being written, or was last: the Node's resourceVersion that
	// it rests on, and why.
	arming arming
}

// arming is a write of the guard's, by which it is known when it is seen.
type arming struct {
	resourceVersion string
	reason          Reason
	message         string
}

// memory holds the troubles of all Nodes. It is lost with the process, or with
// leadership: then a grace starts anew, and one trouble may arm once more. The
// zero value is ready for use.
type memory struct {
	mu    sync.Mutex
	nodes map[string]*remembered
}

// remembered is of one Node object; one that is created under the same name is
// another.
type remembered struct {
	uid   types.UID
	gates map[string]*trouble
	// changedAt is since when something has changed that was not looked at; zero if
	// nothing has.
	changedAt time.Time
}

// look notes whether the node's agent is missing now and returns what is
// remembered.
func (m *memory) look(in input) trouble {
	missing, lost, running := in.agentMissing(), in.lostSince, in.running()
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.of(in.node, in.gate)
	// An agent may have served and died before its pod was ever Ready: its end
	// begins an absence of its own, which no heartbeat from before answers.
	ended := slices.ContainsFunc(t.running, func(process string) bool { return !slices.Contains(running, process) })
	t.running = running
	if beat := in.heartbeatValue(); t.heard != beat || t.heardAt.IsZero() || t.heardAt.After(in.now) {
		t.heard, t.heardAt = beat, in.now
	}
	switch {
	case !missing:
		t.missingSince = time.Time{}
	case t.missingSince.IsZero() || ended || t.missingSince.After(in.now): // by a clock that was ahead
		t.missingSince = in.now
	default:
		// A pod that was Ready in between, too briefly to be seen so. Its node's clock
		// says when.
		if at := lost(t.missingSince); at.After(t.missingSince) && !at.After(in.now) {
			t.missingSince = at
		}
	}
	return *t
}

// arming notes that the decision is about to be acted on.
func (m *memory) arming(in input, d decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(in.node, in.gate).arming = arming{resourceVersion: in.node.ResourceVersion, reason: d.reason, message: d.message}
}

// armedBy returns the guard's write, if it was that which armed a Node that was
// seen before as given.
func (m *memory) armedBy(before *corev1.Node, g *gate.Gate) (arming, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.of(before, g).arming
	return a, a.resourceVersion == before.ResourceVersion
}

// changed notes that there is something new to look at.
func (m *memory) changed(node *corev1.Node, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.node(node); r.changedAt.IsZero() {
		r.changedAt = now
	}
}

// unseenSince is since when there has been something new to look at, or zero.
func (m *memory) unseenSince(node *corev1.Node) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node(node).changedAt
}

// seen notes that what was new since then was looked at.
func (m *memory) seen(node *corev1.Node, since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.node(node); r.changedAt.Equal(since) {
		r.changedAt = time.Time{}
	}
}

// acted notes that the decision was acted on.
func (m *memory) acted(in input, d decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.of(in.node, in.gate)
	t.actedFor, t.actedOn = d.reason, in.heartbeatValue()
}

// counted notes that the trouble was counted.
func (m *memory) counted(in input) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(in.node, in.gate).counted = true
}

// over notes that nothing is wrong any more with a Node that is open.
func (m *memory) over(in input) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.of(in.node, in.gate)
	t.actedFor, t.actedOn, t.counted = "", "", false
}

// forget drops a Node that is gone.
func (m *memory) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, node)
}

// forgetGate drops a gate that is not configured any more.
func (m *memory) forgetGate(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.nodes {
		delete(r.gates, name)
	}
}

func (m *memory) node(node *corev1.Node) *remembered {
	r, ok := m.nodes[node.Name]
	if !ok || r.uid != node.UID {
		r = &remembered{uid: node.UID, gates: map[string]*trouble{}}
		if m.nodes == nil {
			m.nodes = map[string]*remembered{}
		}
		m.nodes[node.Name] = r
	}
	return r
}

func (m *memory) of(node *corev1.Node, g *gate.Gate) *trouble {
	r := m.node(node)
	if r.gates[g.Name] == nil {
		r.gates[g.Name] = &trouble{}
	}
	return r.gates[g.Name]
}
