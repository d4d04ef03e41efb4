package guard

import (
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
	// actedFor is the reason that was acted on in the trouble that lasts, actedOn
	// the heartbeat that the Node carried then.
	actedFor Reason
	actedOn  string
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
}

// look notes whether the node's agent is missing now and returns what is
// remembered.
func (m *memory) look(in input) trouble {
	missing, lost := in.agentMissing(), in.lostSince
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.of(in.node, in.gate)
	switch {
	case !missing:
		t.missingSince = time.Time{}
	case t.missingSince.IsZero():
		t.missingSince = in.now
	default:
		// A pod that was Ready in between, too briefly to be seen so.
		if at := lost(t.missingSince); at.After(t.missingSince) {
			t.missingSince = at
		}
	}
	return *t
}

// acted notes that the decision was acted on.
func (m *memory) acted(in input, d decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.of(in.node, in.gate)
	t.actedFor, t.actedOn = d.reason, in.node.Annotations[in.gate.HeartbeatAnnotation()]
}

// over notes that nothing is wrong any more with a Node that is open.
func (m *memory) over(in input) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.of(in.node, in.gate)
	t.actedFor, t.actedOn = "", ""
}

// forget drops a Node that is gone.
func (m *memory) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, node)
}

func (m *memory) of(node *corev1.Node, g *gate.Gate) *trouble {
	r, ok := m.nodes[node.Name]
	if !ok || r.uid != node.UID {
		r = &remembered{uid: node.UID, gates: map[string]*trouble{}}
		if m.nodes == nil {
			m.nodes = map[string]*remembered{}
		}
		m.nodes[node.Name] = r
	}
	if r.gates[g.Name] == nil {
		r.gates[g.Name] = &trouble{}
	}
	return r.gates[g.Name]
}
