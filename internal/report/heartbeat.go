package report

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

// HeartbeatsKind is the kind of [Heartbeats].
const HeartbeatsKind = "Heartbeats"

// Heartbeats are those of one Node, read and judged.
type Heartbeats struct {
	metav1.TypeMeta `json:",inline"`
	Node            string `json:"node"`
	// BootID and UID are the Node's, which a heartbeat must name.
	BootID string `json:"bootID"`
	UID    string `json:"uid"`
	// Time is the API server's, by which they are judged.
	Time       metav1.Time `json:"time"`
	Heartbeats []Judged    `json:"heartbeats"`
	Unseen     []Unseen    `json:"unseen,omitempty"`
}

// Judged is what one annotation is worth.
type Judged struct {
	Gate       string `json:"gate"`
	Annotation string `json:"annotation"`
	// Value is the annotation's, as it is; empty also where there is none.
	Value string `json:"value"`
	// Fault is why it cannot be read.
	Fault     string     `json:"fault,omitempty"`
	Heartbeat *Heartbeat `json:"heartbeat,omitempty"`
	// GoodUntil is when it expires.
	GoodUntil *metav1.Time `json:"goodUntil,omitempty"`
	Verdict   gate.Verdict `json:"verdict"`
	Meaning   string       `json:"meaning"`
}

// DeepCopyObject implements [runtime.Object], for kubectl's printers, which change
// nothing.
func (h *Heartbeats) DeepCopyObject() runtime.Object { c := *h; return &c }

// NewHeartbeats judges those of the one Node of the input: for the gates that govern
// it, and for any other of which it carries one.
func NewHeartbeats(in *Input) *Heartbeats {
	node := &in.Nodes[0]
	h := &Heartbeats{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: HeartbeatsKind},
		Node:     node.Name, BootID: node.Status.NodeInfo.BootID, UID: string(node.UID),
		Time: metav1.NewTime(in.Now), Heartbeats: []Judged{}, Unseen: in.Unseen,
	}
	for _, g := range beating(in.Config, node) {
		h.Heartbeats = append(h.Heartbeats, judge(node, g, in.Now))
	}
	return h
}

// beating are the gates of which a heartbeat is awaited or there.
func beating(cfg *gate.Configuration, node *corev1.Node) []*gate.Gate {
	var gates []*gate.Gate
	known := map[string]bool{}
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		if _, there := node.Annotations[g.HeartbeatAnnotation()]; there || g.Governs(node) {
			gates = append(gates, g)
			known[g.Name] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if name, ok := strings.CutPrefix(key, gate.HeartbeatPrefix); ok && !known[name] {
			gates = append(gates, &gate.Gate{Name: name})
		}
	}
	return gates
}

func judge(node *corev1.Node, g *gate.Gate, now time.Time) Judged {
	verdict := gate.Judge(node, g, now)
	j := Judged{Gate: g.Name, Annotation: g.HeartbeatAnnotation(), Heartbeat: heartbeatOf(node, g, now), Verdict: verdict, Meaning: verdict.Meaning()}
	value, there := node.Annotations[j.Annotation]
	j.Value = value
	hb, err := gate.ParseHeartbeat(value)
	switch {
	case err == nil:
		j.GoodUntil = &metav1.Time{Time: hb.Time.Add(hb.TTL)}
	case there:
		j.Fault = err.Error()
	}
	return j
}
