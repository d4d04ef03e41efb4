package guard

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

const (
	nodeName = "worker-1"
	nodeUID  = types.UID("0deb1067-949c-4b9d-8907-4eaeaea221b2")
	bootID   = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	newBoot  = "11111111-35f2-44b5-bea4-72f10b303c45"
	ttl      = 90 * time.Second
)

var now = time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC)

// newInput is a governed, adopted Node in good order: open, with a heartbeat of
// now, a Ready agent pod and the DaemonSet it is of.
func newInput(changes ...func(*input)) input {
	g := gate.DefaultGate()
	in := input{
		gate: g,
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: nodeName, UID: nodeUID,
			Labels:            map[string]string{"kubernetes.io/os": "linux", "zone": "a"},
			Annotations:       map[string]string{},
			CreationTimestamp: metav1.NewTime(now.Add(-48 * time.Hour)),
		}},
		pods:        []corev1.Pod{agentPod("agent-1", true)},
		daemonSets:  []appsv1.DaemonSet{*agentDaemonSet()},
		installedAt: now.Add(-24 * time.Hour),
		now:         now,
	}
	in.node.Status.NodeInfo.BootID = bootID
	heartbeat(nil)(&in)
	for _, change := range changes {
		change(&in)
	}
	return in
}

func agentPod(name string, ready bool) corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: gate.Namespace, Labels: map[string]string{gate.AgentLabel: gate.AgentLabelValue},
		},
		Spec:   corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

func agentDaemonSet() *appsv1.DaemonSet {
	agent := map[string]string{gate.AgentLabel: gate.AgentLabelValue}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "nodegate-agent", Namespace: gate.Namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: agent},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: agent},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
			},
		},
	}
}

func heartbeat(change func(*gate.Heartbeat)) func(*input) {
	hb := gate.Heartbeat{Ready: true, Time: now, TTL: ttl, BootID: bootID, NodeUID: nodeUID}
	if change != nil {
		change(&hb)
	}
	value, err := hb.Format()
	return func(in *input) {
		if err != nil {
			panic(err)
		}
		in.node.Annotations[in.gate.HeartbeatAnnotation()] = value
	}
}

func heartbeatOf(at time.Time) func(*input) {
	return heartbeat(func(hb *gate.Heartbeat) { hb.Time = at })
}

func rawHeartbeat(value string) func(*input) {
	return func(in *input) { in.node.Annotations[in.gate.HeartbeatAnnotation()] = value }
}

func noHeartbeat(in *input) { delete(in.node.Annotations, in.gate.HeartbeatAnnotation()) }

func bypass(until time.Time) func(*input) {
	return func(in *input) {
		in.node.Annotations[in.gate.BypassAnnotation()] = "until=" + stamp(until) + " reason=repair"
	}
}

func label(key, value string) func(*input) { return func(in *input) { in.node.Labels[key] = value } }

func taint(key string, effect corev1.TaintEffect) func(*input) {
	return func(in *input) {
		in.node.Spec.Taints = append(in.node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

func noPods(in *input) { in.pods = nil }

func missing(since time.Time) func(*input) {
	return func(in *input) { in.pods, in.trouble.missingSince = nil, since }
}

func noDaemonSet(in *input) { in.daemonSets = nil }

func template(change func(*corev1.PodSpec)) func(*input) {
	return func(in *input) { change(&in.daemonSets[0].Spec.Template.Spec) }
}

// acted: the guard has armed for the reason, and has just heard what the Node now
// carries.
func acted(reason Reason, on string) func(*input) {
	return func(in *input) {
		in.trouble.actedFor, in.trouble.actedOn, in.trouble.heardAt = reason, on, in.now
	}
}

func valueOf(change func(*input)) string {
	in := newInput(change)
	return in.node.Annotations[in.gate.HeartbeatAnnotation()]
}

func at(t time.Time) func(*input)      { return func(in *input) { in.now = t } }
func created(t time.Time) func(*input) { return func(in *input) { in.node.CreationTimestamp.Time = t } }
func alone(in *input)                  { in.installedAt = time.Time{} }

func TestDecide(t *testing.T) {
	const none = Reason("")
	elsewhere := template(func(pod *corev1.PodSpec) { pod.NodeSelector = map[string]string{"zone": "b"} })
	expiry := now.Add(ttl)
	long := now.Add(-10 * time.Minute)
	tests := map[string]struct {
		in        input
		want      Reason
		answered  bool
		lookAgain time.Time
	}{
		"a node whose agent serves is looked at again when the heartbeat expires": {
			in: newInput(), want: none, lookAgain: expiry,
		},
		"an armed node is left alone": {
			in: newInput(noHeartbeat, taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule)), want: none,
		},
		"another effect of the key is not the gate's taint": {
			in: newInput(noHeartbeat, bypass(long), taint(gate.DefaultTaintKey, corev1.TaintEffectPreferNoSchedule)), want: Absent,
		},
		"a node that is not governed is left alone": {
			in: newInput(rawHeartbeat("{"), label(gate.ExemptLabel, "true")), want: none,
		},

		"the heartbeat of another boot": {
			in:   newInput(heartbeat(func(hb *gate.Heartbeat) { hb.BootID = newBoot })),
			want: OtherBoot,
		},
		"a node whose boot is not known": {
			in: newInput(func(in *input) { in.node.Status.NodeInfo.BootID = "" }), want: OtherBoot,
		},
		"an agent that does not serve": {
			in: newInput(heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false })), want: NotReady,
		},
		"what is no heartbeat": {in: newInput(rawHeartbeat("null")), want: Malformed},
		"two hundred kilobytes": {
			in: newInput(rawHeartbeat(strings.Repeat("v=1 ", 50_000))), want: Malformed,
		},
		"the heartbeat of another Node object": {
			in: newInput(func(in *input) { in.node.UID = "another" }), want: OtherNode,
		},
		"evidence does not need an agent DaemonSet": {
			in: newInput(noDaemonSet, noPods, heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false })), want: NotReady,
		},

		"no heartbeat, adopted by an expired bypass": {in: newInput(noHeartbeat, bypass(long)), want: Absent},
		"no heartbeat, created after installation":   {in: newInput(noHeartbeat, created(now.Add(-time.Hour))), want: Absent},
		"no heartbeat, created before installation":  {in: newInput(noHeartbeat), want: none},
		"no heartbeat, created at installation":      {in: newInput(noHeartbeat, created(now.Add(-24*time.Hour))), want: none},
		"no heartbeat and no pod for long, never adopted": {
			in: newInput(noHeartbeat, missing(long)), want: none,
		},

		"a bypass in force opens until its end": {
			in: newInput(noHeartbeat, bypass(now.Add(time.Minute))), want: none, lookAgain: now.Add(time.Minute),
		},
		"at its very second a bypass is over": {in: newInput(noHeartbeat, bypass(now)), want: Absent},

		"a heartbeat a ttl ahead is looked at again when it expires": {
			in: newInput(heartbeatOf(now.Add(ttl))), want: none, lookAgain: now.Add(2 * ttl),
		},
		"a heartbeat more than a ttl ahead": {
			in: newInput(heartbeatOf(now.Add(ttl + time.Second))), want: FromFuture, lookAgain: now.Add(time.Second),
		},

		"a second before expiry":      {in: newInput(at(expiry.Add(-time.Second))), want: none, lookAgain: expiry},
		"a nanosecond before expiry":  {in: newInput(at(expiry.Add(-1))), want: none, lookAgain: expiry},
		"at the second of expiry":     {in: newInput(at(expiry)), want: Expired},
		"expired while the pod is up": {in: newInput(at(expiry.Add(time.Hour))), want: Expired},
		"expired, no DaemonSet":       {in: newInput(at(expiry), noDaemonSet), want: none},
		"expired, no DaemonSet though a pod is bound": {
			in: newInput(at(expiry), noDaemonSet, func(in *input) { in.pods[0] = agentPod("agent-1", false) }), want: none,
		},
		"expired, the pod stays though a later taint keeps new ones away": {
			in: newInput(at(expiry), taint("dedicated", corev1.TaintEffectNoSchedule)), want: Expired,
		},
		"expired, a later taint keeps pods away and there is none": {
			in: newInput(at(expiry), noPods, taint("dedicated", corev1.TaintEffectNoSchedule)), want: none,
		},
		"expired, a later taint drives the pod away": {
			in: newInput(at(expiry), taint("dedicated", corev1.TaintEffectNoExecute)), want: none,
		},
		"expired, of two DaemonSets the second belongs here": {
			in: newInput(at(expiry), elsewhere, func(in *input) {
				in.daemonSets = append(in.daemonSets, *agentDaemonSet())
			}), want: Expired,
		},
		"expired, the pod is pending": {
			in: newInput(at(expiry), func(in *input) { in.pods[0].Status = corev1.PodStatus{Phase: corev1.PodPending} }), want: Expired,
		},
		"expired, the DaemonSet does not belong here": {in: newInput(at(expiry), elsewhere), want: none},
		"expired by a clock that was never set":       {in: newInput(at(time.Unix(10, 0))), want: none, lookAgain: expiry},
		"a fresh heartbeat where no agent belongs":    {in: newInput(elsewhere), want: none},
		"a heartbeat of another boot where none belongs": {
			in:   newInput(elsewhere, heartbeat(func(hb *gate.Heartbeat) { hb.BootID = newBoot })),
			want: OtherBoot,
		},

		"no agent pod for less than the grace": {
			in:        newInput(missing(now), at(now.Add(Grace-time.Nanosecond))),
			want:      none,
			lookAgain: now.Add(Grace),
		},
		"no agent pod for the grace": {
			in: newInput(missing(now), at(now.Add(Grace))), want: AgentAbsent,
		},
		"no agent pod, but a heartbeat in that time": {
			in:        newInput(missing(now), heartbeatOf(now.Add(time.Second)), at(now.Add(time.Minute))),
			want:      none,
			lookAgain: now.Add(time.Second + ttl),
		},
		"no agent pod, no DaemonSet": {
			in: newInput(missing(long), noDaemonSet), want: none,
		},
		"no agent pod, and expired as well": {in: newInput(missing(long), at(expiry)), want: Expired},
		"no agent pod, the heartbeat expires before the grace is over": {
			in:        newInput(missing(now), heartbeatOf(now.Add(-ttl+10*time.Second))),
			want:      none,
			lookAgain: now.Add(10 * time.Second),
		},

		"expired again, with the heartbeat that was acted on: somebody removed the taint": {
			in: newInput(at(expiry), acted(Expired, valueOf(func(*input) {}))), want: Expired,
		},
		"expired again, with another heartbeat: the clocks disagree": {
			in: newInput(at(expiry), acted(Expired, "another")), want: Expired, answered: true, lookAgain: expiry.Add(ttl),
		},
		"from the future again, with another heartbeat": {
			in:       newInput(heartbeatOf(now.Add(time.Hour)), acted(FromFuture, "another")),
			want:     FromFuture,
			answered: true, lookAgain: now.Add(ttl),
		},
		"no pod again, an agent whose clock is late has answered": {
			in: newInput(missing(long.Add(9*time.Minute)), heartbeatOf(now.Add(-80*time.Second)), acted(AgentAbsent, "another")),
			// Its time is before the trouble began, by its own clock.
			want: AgentAbsent, answered: true, lookAgain: now.Add(ttl),
		},
		"an answer does not outweigh evidence": {
			in:   newInput(heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false }), acted(Expired, "another")),
			want: NotReady,
		},

		"alone: a node that carries nothing and has no pod for the grace": {
			in: newInput(alone, noHeartbeat, missing(now), at(now.Add(Grace))), want: AgentAbsent,
		},
		"alone: a node that carries nothing and has a pod": {in: newInput(alone, noHeartbeat), want: none},
		"alone: a pod that is not Ready, without a DaemonSet": {
			in: newInput(alone, noHeartbeat, noDaemonSet, missing(now), at(now.Add(Grace)), func(in *input) {
				in.pods = []corev1.Pod{agentPod("agent-1", false)}
			}),
			want: AgentAbsent,
		},
		"alone: an agent without heartbeats that removed the taint is not fought": {
			in: newInput(alone, noHeartbeat, missing(now), at(now.Add(time.Hour)), acted(AgentAbsent, ""), func(in *input) {
				in.pods = []corev1.Pod{agentPod("agent-1", false)}
			}),
			want: AgentAbsent, answered: true,
		},
		"alone: the taint was removed, and there is no agent that may have done so": {
			in:   newInput(alone, noHeartbeat, missing(now), at(now.Add(time.Hour)), acted(AgentAbsent, "")),
			want: AgentAbsent,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := decide(tc.in)
			if got.reason != tc.want {
				t.Fatalf("reason %q (%s), want %q", got.reason, got.message, tc.want)
			}
			if want := tc.want != none && !tc.answered; got.arm != want {
				t.Errorf("arm = %t, want %t", got.arm, want)
			}
			if !got.lookAgain.Equal(tc.lookAgain) {
				t.Errorf("look again at %s, want %s", got.lookAgain, tc.lookAgain)
			}
			if tc.want == Expired && !got.since.Equal(expiry) {
				t.Errorf("since %s, want %s", got.since, expiry)
			}
			if (got.message == "") != (tc.want == none) || len(got.message) > 200 {
				t.Errorf("message %q for reason %q", got.message, got.reason)
			}
		})
	}
}

// Every reason that there is must be one that some rule finds.
func TestDecide_ReasonsAreComplete(t *testing.T) {
	verdicts := map[Reason]bool{AgentAbsent: true}
	for _, verdict := range gate.Verdicts() {
		if !verdict.Opens() {
			verdicts[Reason(verdict)] = true
		}
	}
	for _, reason := range Reasons() {
		if !verdicts[reason] {
			t.Errorf("reason %s is no verdict that keeps a gate closed", reason)
		}
		delete(verdicts, reason)
	}
	if len(verdicts) != 0 {
		t.Errorf("no reason for %v", verdicts)
	}
}

func TestShouldRun(t *testing.T) {
	requires := func(terms ...corev1.NodeSelectorTerm) func(*corev1.PodSpec) {
		return func(pod *corev1.PodSpec) {
			pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
	}
	zone := func(operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: operator, Values: values},
		}}
	}
	tests := map[string]struct {
		node func(*input)
		pod  func(*corev1.PodSpec)
		want bool
	}{
		"no condition":            {want: true},
		"selector matches":        {pod: func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{"zone": "a"} }, want: true},
		"selector does not":       {pod: func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{"zone": "b"} }},
		"affinity matches":        {pod: requires(zone(corev1.NodeSelectorOpIn, "b"), zone(corev1.NodeSelectorOpExists)), want: true},
		"affinity does not":       {pod: requires(zone(corev1.NodeSelectorOpNotIn, "a"))},
		"affinity makes no sense": {pod: requires(zone("Near", "a"))},
		"affinity names the node": {pod: requires(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName}},
		}}), want: true},
		"placed on this node":         {pod: func(p *corev1.PodSpec) { p.NodeName = nodeName }, want: true},
		"placed on another":           {pod: func(p *corev1.PodSpec) { p.NodeName = "worker-2" }},
		"the gate's own taint":        {node: taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule), want: true},
		"the key's other effect":      {node: taint(gate.DefaultTaintKey, corev1.TaintEffectNoExecute)},
		"a foreign NoSchedule":        {node: taint("dedicated", corev1.TaintEffectNoSchedule)},
		"a foreign NoExecute":         {node: taint("dedicated", corev1.TaintEffectNoExecute)},
		"a foreign PreferNoSchedule":  {node: taint("dedicated", corev1.TaintEffectPreferNoSchedule), want: true},
		"cordoned":                    {node: taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), want: true},
		"under disk pressure":         {node: taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), want: true},
		"under memory pressure":       {node: taint(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule), want: true},
		"under pid pressure":          {node: taint(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule), want: true},
		"not ready, NoExecute":        {node: taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), want: true},
		"not ready, NoSchedule":       {node: taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule), want: true},
		"unreachable":                 {node: taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute), want: true},
		"without a network":           {node: taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)},
		"without one, host's network": {node: taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), pod: func(p *corev1.PodSpec) { p.HostNetwork = true }, want: true},
		"a taint that is tolerated": {
			node: taint("dedicated", corev1.TaintEffectNoSchedule),
			pod:  func(p *corev1.PodSpec) { p.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
			want: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := newInput()
			if tc.node != nil {
				tc.node(&in)
			}
			if tc.pod != nil {
				template(tc.pod)(&in)
			}
			if got := placement.ShouldRun(&in.daemonSets[0], in.node, in.gate); got != tc.want {
				t.Errorf("placement.ShouldRun() = %t, want %t", got, tc.want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	var m memory
	absent := newInput(noPods)
	if got := m.look(absent).missingSince; !got.Equal(now) {
		t.Errorf("missing since %s, want %s", got, now)
	}
	at(now.Add(time.Second))(&absent)
	if got := m.look(absent).missingSince; !got.Equal(now) {
		t.Errorf("still missing since %s, want %s", got, now)
	}
	m.acted(absent, decision{reason: AgentAbsent})
	if got := m.look(absent); got.actedFor != AgentAbsent || got.actedOn != valueOf(func(*input) {}) {
		t.Errorf("acted for %q on %q", got.actedFor, got.actedOn)
	}
	m.over(absent)
	if got := m.look(absent); got.actedFor != "" || got.missingSince.IsZero() {
		t.Errorf("after the trouble: %+v", got)
	}
	if got := m.look(newInput()).missingSince; !got.IsZero() {
		t.Errorf("a Ready pod leaves it missing since %s", got)
	}
	m.look(absent)
	again := newInput(noPods, at(now.Add(time.Hour)), func(in *input) { in.node.UID = "another" })
	if got := m.look(again).missingSince; !got.Equal(now.Add(time.Hour)) {
		t.Errorf("a re-created Node is missing since %s", got)
	}
	m.forget(nodeName)
	if len(m.nodes) != 0 {
		t.Errorf("remembers %v", m.nodes)
	}
}
