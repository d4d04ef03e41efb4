package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

const nodeUID = types.UID("0deb1067-949c-4b9d-8907-4eaeaea221b2")

func testNow() time.Time { return time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC) }

// passing, wavering and failing are what checks may have answered, with a dwell
// of ten seconds.
func passing() answers { return answers{}.and(nil, testNow()) }
func wavering() answers {
	return passing().and(errDown, testNow())
}
func failingFor(d time.Duration) answers {
	return answers{}.and(errDown, testNow().Add(-d)).and(errDown, testNow())
}

// scene is a Node, a gate with one check and what happened before.
type scene struct {
	node  *corev1.Node
	boot  bootID
	check answers
	pace  pace
	said  bool
}

func newScene() *scene {
	return &scene{
		node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: nodeUID},
			Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: thisBoot}},
		},
		boot:  bootID{id: thisBoot},
		check: passing(),
	}
}

func (s *scene) armed() *scene {
	g := gate.DefaultGate()
	s.node.Spec.Taints = g.WithTaint(s.node.Spec.Taints)
	return s
}

// says puts a heartbeat of some age on the Node.
func (s *scene) says(ready bool, age time.Duration) *scene {
	return s.saysOf(gate.Heartbeat{Ready: ready, Time: testNow().Add(-age), BootID: thisBoot, NodeUID: nodeUID})
}

func (s *scene) saysOf(hb gate.Heartbeat) *scene {
	hb.TTL = 3 * time.Minute
	value, err := hb.Format()
	if err != nil {
		panic(err)
	}
	return s.annotated(gate.DefaultGate().HeartbeatAnnotation(), value)
}

func (s *scene) annotated(key, value string) *scene {
	metav1.SetMetaDataAnnotation(&s.node.ObjectMeta, key, value)
	return s
}

func (s *scene) with(change func(*scene)) *scene {
	change(s)
	return s
}

func (s *scene) view() view {
	g := gate.DefaultGate()
	c := candidate{gate: g, checks: []candidateCheck{{
		probe: Probe{Name: "socket", Dwell: 10 * time.Second}, answers: s.check,
	}}}
	return view{
		node: s.node, boot: s.boot, now: testNow(), local: testNow(), sequence: 7,
		gates: []gateView{{verdict: judge(c, s.node, s.boot), pace: s.pace, saidNo: s.said}},
	}
}

func TestDecide(t *testing.T) {
	const nothing = ""
	const shown = 2 * time.Minute
	for name, tc := range map[string]struct {
		scene *scene
		// write is what is written, or nothing.
		write string
		// after is when to look again.
		after time.Duration
	}{
		"no Node":                  {newScene().with(func(s *scene) { s.node = nil }), nothing, idle},
		"a check has not answered": {newScene().armed().with(func(s *scene) { s.check = answers{} }), nothing, idle},
		"passing, armed: opens with the heartbeat":      {newScene().armed(), "ready=true open", 0},
		"passing, armed, heartbeat there: opens":        {newScene().armed().says(true, time.Second), "ready=true open", 0},
		"passing, open, no heartbeat: writes it":        {newScene(), "ready=true", 0},
		"passing, open, heartbeat fresh: waits":         {newScene().says(true, 10*time.Second), nothing, 50 * time.Second},
		"passing, open, heartbeat due":                  {newScene().says(true, time.Minute), "ready=true", 0},
		"heartbeat a little ahead: waits":               {newScene().says(true, -maxAhead), nothing, idle},
		"heartbeat far ahead: written anew":             {newScene().says(true, -maxAhead-time.Second), "ready=true", 0},
		"heartbeat malformed: written anew":             {newScene().annotated(gate.HeartbeatPrefix+"agent", "{"), "ready=true", 0},
		"heartbeat of another Node: written anew":       {newScene().saysOf(gate.Heartbeat{Ready: true, Time: testNow(), BootID: thisBoot, NodeUID: "other"}), "ready=true", 0},
		"heartbeat of another boot: written anew":       {newScene().saysOf(gate.Heartbeat{Ready: true, Time: testNow(), BootID: otherBoot, NodeUID: nodeUID}), "ready=true", 0},
		"failing, heartbeat says ready: told at once":   {newScene().armed().says(true, time.Second).with(fails), "ready=false failing=socket", 0},
		"failing, nothing said: told at once":           {newScene().armed().with(fails), "ready=false failing=socket", 0},
		"failing, open, no heartbeat: told at once":     {newScene().with(fails), "ready=false failing=socket", 0},
		"failing, told by another process: told anew":   {newScene().armed().says(false, time.Second).with(fails), "ready=false failing=socket", 0},
		"failing, told: waits":                          {newScene().armed().says(false, time.Second).with(fails).with(saidNo), nothing, 59 * time.Second},
		"failing, told, heartbeat due":                  {newScene().armed().says(false, time.Minute).with(fails).with(saidNo), "ready=false failing=socket", 0},
		"passing again: opens at once":                  {newScene().armed().says(false, time.Second).with(saidNo), "ready=true open", 0},
		"restarted on an open Node, failing: dwells":    {newScene().says(true, time.Second).with(fails), nothing, 59 * time.Second},
		"and renews the heartbeat meanwhile":            {newScene().says(true, shown).with(fails), "ready=true", 0},
		"restarted, failing for its dwell: told":        {newScene().says(true, time.Second).with(func(s *scene) { s.check = failingFor(10 * time.Second) }), "ready=false failing=socket", 0},
		"restarted on an armed Node, failing: told":     {newScene().armed().says(true, time.Second).with(fails), "ready=false failing=socket", 0},
		"wavering, open: waits":                         {newScene().says(true, time.Second).with(wavers), nothing, 59 * time.Second},
		"wavering, armed: does not open":                {newScene().armed().says(true, time.Second).with(wavers), nothing, 59 * time.Second},
		"wavering, armed, heartbeat due: does not open": {newScene().armed().says(true, shown).with(wavers), "ready=true", 0},
		"the Node shows another boot: closes":           {newScene().says(true, time.Second).with(shows(otherBoot)), "ready=false failing=bootID", 0},
		"the Node shows no boot: closes":                {newScene().armed().with(shows("")), "ready=false failing=bootID", 0},
		"the Node shows a boot of zeros, as read":       {newScene().armed().with(shows("0-0")).with(unknownBoot), "ready=false failing=bootID", 0},
		"the boot is not known: closes":                 {newScene().says(true, time.Second).with(unknownBoot), "ready=false failing=bootID", 0},
		"the Node shows a boot called unknown":          {newScene().armed().with(shows("unknown")).with(unknownBoot), "ready=false failing=bootID", 0},
		"the Node shows this boot at last: opens":       {newScene().armed().says(false, time.Second).with(saidNo), "ready=true open", 0},
		"armed again: opens again":                      {newScene().armed().says(true, time.Second).with(repeated(1)), "ready=true open", 0},
		"armed again and again: waits its turn":         {newScene().armed().says(true, time.Second).with(repeated(5)), nothing, 2 * time.Second},
		"waiting its turn, heartbeat due: only that":    {newScene().armed().says(true, shown).with(repeated(5)), "ready=true", 0},
		"heartbeat dropped again and again: waits":      {newScene().with(repeated(5)), nothing, 2 * time.Second},
		"closing is never held back":                    {newScene().says(true, time.Second).with(repeated(9)).with(func(s *scene) { s.check = failingFor(time.Minute) }), "ready=false failing=socket", 0},
		"closing, overwritten again and again: waits":   {newScene().armed().says(true, time.Second).with(repeated(5)).with(fails).with(saidNo), nothing, 2 * time.Second},
		"another effect of the key is not the gate's":   {newScene().says(true, time.Second).with(otherEffect), nothing, 59 * time.Second},
		"a small cluster's cadence":                     {newScene().says(true, time.Second).annotated("node.alpha.kubernetes.io/ttl", "0"), nothing, 9 * time.Second},
		"a large cluster's cadence":                     {newScene().says(true, time.Second).annotated("node.alpha.kubernetes.io/ttl", "300"), nothing, idle},
		"a cluster that grew, as the old ttl runs out":  {newScene().says(true, 90*time.Second).annotated("node.alpha.kubernetes.io/ttl", "300"), "ready=true", 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := tc.scene.view()
			d := decide(v)
			if got := written(t, v, d); got != tc.write {
				t.Errorf("writes %q, want %q", got, tc.write)
			}
			if d.after != tc.after {
				t.Errorf("looks again after %s, want %s", d.after, tc.after)
			}
		})
	}
}

func fails(s *scene)       { s.check = answers{}.and(errDown, testNow()) }
func wavers(s *scene)      { s.check = wavering() }
func saidNo(s *scene)      { s.said = true }
func unknownBoot(s *scene) { s.boot = bootID{err: errDown} }
func shows(boot string) func(*scene) {
	return func(s *scene) { s.node.Status.NodeInfo.BootID = boot }
}
func repeated(times int) func(*scene) {
	return func(s *scene) { s.pace = pace{last: testNow(), repeats: times} }
}
func otherEffect(s *scene) {
	s.node.Spec.Taints = []corev1.Taint{{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoExecute}}
}

// written reads a decision's patch back in a few words.
func written(t *testing.T, v view, d decision) string {
	t.Helper()
	if len(d.writes) == 0 {
		return ""
	}
	data, err := v.patch(d)
	if err != nil {
		t.Fatal(err)
	}
	patch := withoutTests(t, data)
	var words []string
	for _, word := range []string{"ready=true", "ready=false"} {
		if strings.Contains(patch, word) {
			words = append(words, word)
		}
	}
	if _, rest, ok := strings.Cut(patch, "failing="); ok {
		words = append(words, "failing="+strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '"' })[0])
	}
	if strings.Contains(patch, `"remove"`) {
		words = append(words, "open")
	}
	return strings.Join(words, " ")
}

// withoutTests is a patch as far as it changes something.
func withoutTests(t *testing.T, data []byte) string {
	t.Helper()
	var all []operation
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	changes, err := json.Marshal(slices.DeleteFunc(all, func(o operation) bool { return o.Op == "test" }))
	if err != nil {
		t.Fatal(err)
	}
	return string(changes)
}

func TestDecide_OneWriteForAllGates(t *testing.T) {
	s := newScene().armed().says(true, 10*time.Second)
	other := gate.DefaultGate()
	other.Name, other.Taint.Key = "mesh", "example.com/mesh-not-ready"
	s.node.Spec.Taints = append(s.node.Spec.Taints, corev1.Taint{Key: "foreign", Effect: corev1.TaintEffectNoSchedule})
	s.node.Spec.Taints = other.WithTaint(s.node.Spec.Taints)
	v := s.view()
	v.gates = append(v.gates, gateView{verdict: judge(candidate{gate: other, checks: []candidateCheck{{answers: passing()}}}, s.node, s.boot)})
	unanswered := gate.DefaultGate()
	unanswered.Name = "slow"
	v.gates = append(v.gates, gateView{verdict: judge(candidate{gate: unanswered, checks: []candidateCheck{{}}}, s.node, s.boot)})

	data, err := v.patch(decide(v))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"op":"test","path":"/metadata/uid","value":"0deb1067-949c-4b9d-8907-4eaeaea221b2"},` +
		`{"op":"test","path":"/metadata/annotations/heartbeat.nodegate.io~1agent","value":"` + s.node.Annotations["heartbeat.nodegate.io/agent"] + `"},` +
		`{"op":"add","path":"/metadata/annotations/heartbeat.nodegate.io~1agent","value":"v=1 ready=true time=2026-11-29T11:02:53Z ttl=180s boot=` + thisBoot + ` node=0deb1067-949c-4b9d-8907-4eaeaea221b2 seq=7"},` +
		`{"op":"test","path":"/metadata/annotations/heartbeat.nodegate.io~1mesh","value":null},` +
		`{"op":"add","path":"/metadata/annotations/heartbeat.nodegate.io~1mesh","value":"v=1 ready=true time=2026-11-29T11:02:53Z ttl=180s boot=` + thisBoot + ` node=0deb1067-949c-4b9d-8907-4eaeaea221b2 seq=7"},` +
		`{"op":"test","path":"/status/nodeInfo/bootID","value":"` + thisBoot + `"},` +
		`{"op":"test","path":"/spec/taints/2","value":{"key":"example.com/mesh-not-ready","effect":"NoSchedule"}},` +
		`{"op":"remove","path":"/spec/taints/2"},` +
		`{"op":"test","path":"/spec/taints/0","value":{"key":"nodegate.io/agent-not-ready","effect":"NoSchedule"}},` +
		`{"op":"remove","path":"/spec/taints/0"}]`
	if string(data) != want {
		t.Errorf("patch\n%s\nwant\n%s", data, want)
	}
}

func TestHeartbeat_StaysReadable(t *testing.T) {
	v := newScene().view()
	v.podUID, v.sequence = nodeUID, 1<<63
	v.boot.id = strings.Repeat("b", maxBootIDBytes)
	for i := range 40 {
		v.gates[0].checks = append(v.gates[0].checks, checkVerdict{name: fmt.Sprintf("a-check-with-a-name-%d", i), state: Failing})
	}
	value, err := v.heartbeat(v.gates[0].verdict).Format()
	if err != nil {
		t.Fatal(err)
	}
	hb, err := gate.ParseHeartbeat(value)
	if err != nil || !slices.ContainsFunc(hb.Extra, func(token gate.Token) bool { return token.Key == gate.TokenPod }) {
		t.Errorf("%q is no complete heartbeat (%v)", value, err)
	}
}

func TestCadence(t *testing.T) {
	for value, want := range map[string]struct{ interval, ttl time.Duration }{
		"0":                    {10 * time.Second, time.Minute},
		"15":                   {15 * time.Second, time.Minute},
		"30":                   {30 * time.Second, 90 * time.Second},
		"60":                   {time.Minute, 3 * time.Minute},
		"300":                  {5 * time.Minute, 15 * time.Minute},
		"301":                  {5 * time.Minute, 15 * time.Minute},
		"2147483647":           {5 * time.Minute, 15 * time.Minute},
		"99999999999999999999": {time.Minute, 3 * time.Minute},
		"-1":                   {time.Minute, 3 * time.Minute},
		"1m":                   {time.Minute, 3 * time.Minute},
		"":                     {time.Minute, 3 * time.Minute},
	} {
		s := newScene().annotated("node.alpha.kubernetes.io/ttl", value)
		interval := intervalOf(s.node)
		if interval != want.interval || ttlOf(interval) != want.ttl {
			t.Errorf("ttl %q: interval %s, ttl %s, want %v", value, interval, ttlOf(interval), want)
		}
	}
	if got := intervalOf(newScene().node); got != time.Minute {
		t.Errorf("without annotations: interval %s", got)
	}
}
