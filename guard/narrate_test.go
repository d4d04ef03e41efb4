package guard

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

func TestSeen(t *testing.T) {
	node := func(changes ...func(*input)) *corev1.Node { in := newInput(changes...); return in.node }
	armed := taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule)
	notReady := heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false })
	earlierBeat := heartbeatOf(now.Add(-10 * time.Second))
	tests := map[string]struct {
		before, after *corev1.Node
		want          change
		nothing       bool
	}{
		"nothing of the gate has changed": {before: node(earlierBeat), after: node(), nothing: true},
		"it stays armed":                  {before: node(armed), after: node(armed), nothing: true},
		"the key's other effect": {
			before: node(), after: node(taint(gate.DefaultTaintKey, corev1.TaintEffectNoExecute)), nothing: true,
		},
		"a Node that is not governed": {
			before: node(label(gate.ExemptLabel, "true")), after: node(label(gate.ExemptLabel, "true"), armed), nothing: true,
		},
		"a Node that is opened as it leaves the gate's reach": {
			before: node(armed), after: node(label(gate.ExemptLabel, "true")), want: change{by: byOther},
		},
		"a Node is created":      {after: node(noHeartbeat, armed), want: change{armed: true, reason: atCreation, by: byAdmission}},
		"a Node is created open": {after: node(noHeartbeat), nothing: true},
		"the agent says that it does not serve": {
			before: node(), after: node(notReady, armed), want: change{armed: true, reason: NotReady, by: byAdmission},
		},
		"a write after a reboot": {
			before: node(), after: node(armed, func(in *input) { in.node.Status.NodeInfo.BootID = newBoot }),
			want: change{armed: true, reason: OtherBoot, by: byAdmission},
		},
		"armed by hand though the agent serves": {
			before: node(), after: node(armed), want: change{armed: true, reason: Reason(gate.Fresh), by: byOther},
		},
		"armed though only time speaks against the Node": {
			before: node(heartbeatOf(now.Add(-ttl))), after: node(heartbeatOf(now.Add(-ttl)), armed),
			want: change{armed: true, reason: Expired, by: byOther},
		},
		"the agent opens":                {before: node(notReady, armed), after: node(), want: change{by: byAgent}},
		"a removal in the agent's stead": {before: node(armed), after: node(), want: change{by: byOther}},
		"a removal against the rules":    {before: node(notReady, armed), after: node(notReady), want: change{by: byOther}},
		"a person bypasses the gate": {
			before: node(notReady, armed), after: node(notReady, bypass(now.Add(time.Hour))), want: change{by: byBypass},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := seen(tc.before, tc.after, gate.DefaultGate(), now)
			if ok == tc.nothing {
				t.Fatalf("seen: %t (%+v)", ok, got)
			}
			if ok && got.message == "" {
				t.Error("it is not said why")
			}
			if got.message = ""; got != tc.want {
				t.Errorf("saw %+v, want %+v", got, tc.want)
			}
		})
	}
}
