package report

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
)

// Mutation is how admission arms.
type Mutation string

const (
	MutationPolicy  Mutation = "policy"
	MutationWebhook Mutation = "webhook"
	// MutationBoth is one too many: a cluster needs one.
	MutationBoth Mutation = "policy and webhook"
	MutationNone Mutation = "none"
)

// Installation is what of nodegate is there, as far as it was seen.
type Installation struct {
	// Mode is the configuration's, empty if that was not seen.
	Mode        gate.Mode    `json:"mode,omitempty"`
	InstalledAt *metav1.Time `json:"installedAt,omitempty"`
	// Mutation is empty if it was not seen. MutationVersion is that of the policies.
	Mutation        Mutation `json:"mutation,omitempty"`
	MutationVersion string   `json:"mutationVersion,omitempty"`
	// Guard is absent if it was not seen.
	Guard *Guard `json:"guard,omitempty"`
}

// Guard is what the guard says of itself on its Lease.
type Guard struct {
	// Running: a replica holds the Lease and renews it.
	Running bool         `json:"running"`
	Holder  string       `json:"holder,omitempty"`
	Renewed *metav1.Time `json:"renewed,omitempty"`
	Mode    gate.Mode    `json:"mode,omitempty"`
	// Suspended: until then nothing is armed for an agent's silence.
	Suspended *Suspension `json:"suspended,omitempty"`
	// Breakers are of the gates for whose agents' silence Nodes were armed lately.
	Breakers []Breaker `json:"breakers,omitempty"`
}

// Suspension is why the guard waits.
type Suspension struct {
	Until  metav1.Time `json:"until"`
	Reason string      `json:"reason"`
}

// Breaker limits how many Nodes are armed for silence.
type Breaker struct {
	Gate  string `json:"gate"`
	Armed int    `json:"armed"`
	Limit int    `json:"limit"`
	// Tripped: others wait.
	Tripped bool `json:"tripped"`
}

// Held reports whether the Lease's holder renews it, by the API server's time. One
// that was killed stays noted as its holder.
func Held(lease *coordinationv1.Lease, now time.Time) bool {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	return now.Before(spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second))
}

func (x *index) installation() Installation {
	var i Installation
	if x.saw(PartConfiguration) {
		i.Mode = x.Config.Mode
		if !x.InstalledAt.IsZero() {
			i.InstalledAt = &metav1.Time{Time: x.InstalledAt}
		}
	}
	if x.saw(PartAdmission) {
		i.Mutation, i.MutationVersion = mutation(x.Admission)
	}
	if x.saw(PartLease) {
		i.Guard = x.guard()
	}
	return i
}

func (x *index) guard() *Guard {
	if x.Lease == nil {
		return &Guard{}
	}
	g := &Guard{Running: Held(x.Lease, x.LeaseAsOf), Mode: gate.Mode(x.Lease.Annotations[gate.ModeAnnotation])}
	if x.Lease.Spec.HolderIdentity != nil {
		g.Holder = *x.Lease.Spec.HolderIdentity
	}
	if renewed := x.Lease.Spec.RenewTime; renewed != nil {
		g.Renewed = &metav1.Time{Time: renewed.Time}
	}
	if s := notice.ParseSuspension(x.Lease.Annotations[gate.SuspendedAnnotation]); s.Holds(x.Now) {
		g.Suspended = &Suspension{Until: metav1.NewTime(s.Until), Reason: s.Reason}
	}
	for i := range x.Config.Gates {
		name := x.Config.Gates[i].Name
		if value, ok := x.Lease.Annotations[gate.BreakerPrefix+name]; ok {
			b := notice.ParseBreaker(value)
			g.Breakers = append(g.Breakers, Breaker{Gate: name, Armed: b.Armed, Limit: b.Limit, Tripped: b.Tripped})
		}
	}
	return g
}
