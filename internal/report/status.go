package report

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

// APIVersion is of everything that is written as JSON or YAML.
const APIVersion = "cli." + gate.Group + "/v1alpha1"

// StatusKind is the kind of [Status].
const StatusKind = "Status"

// Status is how the gates of a cluster stand.
type Status struct {
	metav1.TypeMeta `json:",inline"`
	// Time is the API server's.
	Time         metav1.Time  `json:"time"`
	Installation Installation `json:"installation"`
	// Gates are in the order of the configuration.
	Gates []Totals `json:"gates"`
	// Nodes are by name, and by gate in the order of the configuration.
	Nodes []Row `json:"nodes"`
	// Findings are what is amiss, besides Nodes that are armed.
	Findings []Finding `json:"findings,omitempty"`
	// Unseen is what could not be read. Nothing is said of it.
	Unseen []Unseen `json:"unseen,omitempty"`
}

// Totals are of one gate.
type Totals struct {
	Gate  string `json:"gate"`
	Taint string `json:"taint"`
	// Nodes are all that were looked at; Governed, those that the gate governs.
	Nodes    int `json:"nodes"`
	Governed int `json:"governed"`
	Armed    int `json:"armed"`
	Open     int `json:"open"`
	// AgainstTheRules are open and should not be. In the modes observe and paused
	// these are the Nodes that enforcing would arm.
	AgainstTheRules int `json:"againstTheRules"`
	// Unadopted are open and not in the gate's care yet.
	Unadopted int `json:"unadopted"`
	// WithoutAgent are those where no agent can run. Once armed nothing opens them.
	WithoutAgent int `json:"withoutAgent"`
	// Verdicts counts governed Nodes by what their heartbeat is worth.
	Verdicts map[gate.Verdict]int `json:"verdicts"`
}

// DeepCopyObject implements [runtime.Object], for kubectl's printers, which change
// nothing.
func (s *Status) DeepCopyObject() runtime.Object { c := *s; return &c }

// NewStatus makes the status.
func NewStatus(in *Input) *Status {
	x := newIndex(in)
	s := &Status{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: StatusKind},
		Time:     metav1.NewTime(in.Now), Installation: x.installation(), Nodes: []Row{}, Unseen: in.Unseen,
	}
	for i := range in.Nodes {
		s.Nodes = append(s.Nodes, x.rows(&in.Nodes[i])...)
	}
	slices.SortStableFunc(s.Nodes, func(a, b Row) int { return cmp.Compare(a.Node, b.Node) })
	for i := range in.Config.Gates {
		s.Gates = append(s.Gates, totals(&in.Config.Gates[i], len(in.Nodes), s.Nodes))
	}
	s.Findings = x.findings(s.Nodes)
	return s
}

func totals(g *gate.Gate, nodes int, rows []Row) Totals {
	t := Totals{Gate: g.Name, Taint: g.Taint.Key + ":" + string(g.Taint.Effect), Nodes: nodes, Verdicts: map[gate.Verdict]int{}}
	for _, row := range rows {
		if row.Gate != g.Name {
			continue
		}
		t.Governed++
		t.Verdicts[row.Verdict]++
		count(&t.Armed, row.State == Armed)
		count(&t.Open, row.State == Open)
		count(&t.AgainstTheRules, row.AgainstTheRules)
		count(&t.Unadopted, !row.Adopted)
		count(&t.WithoutAgent, row.Agent != nil && !row.Agent.Belongs)
	}
	return t
}

func count(total *int, holds bool) {
	if holds {
		*total++
	}
}
