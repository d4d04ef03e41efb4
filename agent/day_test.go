package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/apiclock"
)

// day is a node, its agent and an API server with admission and guard, second by
// second in fake time. Whatever can go wrong does, at random.
type day struct {
	*testing.T
	random *rand.Rand
	gate   *gate.Gate
	// now is the API server's time, and the true one.
	now  time.Time
	node *corev1.Node
	// late are writes that were sent and have not arrived.
	late []lateWrite

	// The machine. Its wall clock shows another time, and it may have no agent.
	booted  time.Time
	wall    time.Duration
	boot    string
	boots   int
	serving bool
	agent   *Agent
	clock   *testclock.FakeClock

	// Until these times there is no API server, no agent, no word of the kubelet,
	// and the node's clock stays wrong.
	outage, absent, silent, wrong time.Time
	// calm is since when nothing has been in the way.
	calm time.Time

	openings, refused, outages int
}

type lateWrite struct {
	at   time.Time
	data []byte
}

// TestAgent_ThroughTheDays: API outages, writes that arrive late, reboots, clocks
// that start in 1970 or step by a day. The gate is never opened wrongly, and all
// is well soon after the trouble is over.
func TestAgent_ThroughTheDays(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			d := &day{T: t, random: rand.New(rand.NewPCG(seed, 1)), gate: gate.DefaultGate(), now: testNow(), serving: true}
			d.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: "node-a", UID: nodeUID, ResourceVersion: "1", Labels: governedLabels(),
				Annotations: map[string]string{cadenceAnnotation: []string{"0", "300"}[seed]},
			}}
			d.node.Spec.Taints = d.gate.WithTaint(nil)
			d.reboot()
			for end := d.now.Add(24 * time.Hour); d.now.Before(end); {
				d.second()
			}
			t.Logf("%d boots, %d outages, %d openings, %d late writes refused", d.boots, d.outages, d.openings, d.refused)
			if d.openings < 20 || d.boots < 5 || d.outages < 5 || d.refused == 0 {
				t.Error("too little happened")
			}
		})
	}
}

// seldom is true once in so long, on average.
func (d *day) seldom(every time.Duration) bool { return d.random.Int64N(int64(every/time.Second)) == 0 }

func (d *day) upTo(limit time.Duration) time.Time {
	return d.now.Add(time.Duration(d.random.Int64N(int64(limit))))
}

// disturb notes that something is in the way until then.
func (d *day) disturb(until time.Time) {
	if until.After(d.calm) {
		d.calm = until
	}
}

func (d *day) up() bool { return !d.now.Before(d.outage) }

func (d *day) second() {
	d.now = d.now.Add(time.Second)
	d.trouble()
	if d.up() {
		d.arrive()
		d.kubelet()
		d.guard()
	}
	d.runAgent()
	d.judge()
}

// trouble makes some.
func (d *day) trouble() {
	if d.seldom(time.Hour) {
		d.outage = d.upTo(20 * time.Minute)
		d.outages++
		d.disturb(d.outage)
	}
	if d.seldom(20 * time.Minute) {
		d.serving = !d.serving
		d.disturb(d.now)
	}
	if d.seldom(time.Hour) { // somebody steps the clock, and NTP mends it later
		d.wall = []time.Duration{24 * time.Hour, -24 * time.Hour, 0}[d.random.IntN(3)]
		d.wrong = d.upTo(time.Hour)
	}
	if !d.now.Before(d.wrong) {
		d.wall = 0
	}
	if d.seldom(2 * time.Hour) {
		d.reboot()
	}
	if d.agent != nil && d.seldom(time.Hour) { // a roll, or a crash
		d.agent, d.absent = nil, d.upTo(time.Minute)
		d.disturb(d.absent)
	}
	if d.seldom(30 * time.Minute) { // somebody untaints, in vain or not
		d.store(func(n *corev1.Node) { n.Spec.Taints = d.gate.WithoutTaint(n.Spec.Taints) }, authenticationv1.UserInfo{Username: "admin"})
	}
	if d.seldom(6 * time.Hour) { // another object of the name
		d.node = d.node.DeepCopy()
		d.node.UID = types.UID(fmt.Sprintf("uid-%d", d.now.Unix()))
		d.node.Spec.Taints = d.gate.WithTaint(d.node.Spec.Taints)
		d.disturb(d.now)
	}
}

// reboot begins another boot, whose clock starts in 1970 half of the time.
func (d *day) reboot() {
	d.boots++
	d.boot = fmt.Sprintf("boot-%d", d.boots)
	d.booted, d.agent = d.now, nil
	if d.wall = 0; d.random.IntN(2) == 0 {
		d.wall, d.wrong = time.Unix(10, 0).Sub(d.now), d.upTo(10*time.Minute)
	}
	d.silent, d.absent = d.upTo(30*time.Second), d.upTo(time.Minute)
	d.disturb(d.silent)
	d.disturb(d.absent)
	d.serving = d.random.IntN(2) == 0
}

// kubelet shows the boot, in a write that no admission changes.
func (d *day) kubelet() {
	if !d.now.Before(d.silent) && d.node.Status.NodeInfo.BootID != d.boot {
		d.node = d.node.DeepCopy()
		d.node.Status.NodeInfo.BootID = d.boot
		d.bump()
	}
}

// guard arms.
func (d *day) guard() {
	if !d.gate.Armed(d.node) && !gate.Judge(d.node, d.gate, d.now).Opens() {
		d.store(func(n *corev1.Node) { n.Spec.Taints = d.gate.WithTaint(n.Spec.Taints) }, authenticationv1.UserInfo{Username: "guard"})
	}
}

func (d *day) bump() {
	version, err := strconv.Atoi(d.node.ResourceVersion)
	if err != nil {
		d.Fatal(err)
	}
	d.node.ResourceVersion = strconv.Itoa(version + 1)
}

// store writes the Node as the API server does, admission included.
func (d *day) store(change func(*corev1.Node), by authenticationv1.UserInfo) {
	sent := d.node.DeepCopy()
	change(sent)
	decision := d.gate.Admit(gate.Write{Operation: admissionv1.Update, Name: d.node.Name, User: by, Old: d.node, New: sent}, d.now)
	if decision.Arm {
		sent.Spec.Taints = d.gate.WithTaint(sent.Spec.Taints)
	}
	d.node = sent
	d.bump()
}

// apply carries a patch of the agent's out.
func (d *day) apply(data []byte) error {
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		d.Fatal(err)
	}
	before, err := json.Marshal(d.node)
	if err != nil {
		d.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, d.node.Name, nil)
	}
	wasArmed, said := d.gate.Armed(d.node), d.heartbeat()
	d.store(func(n *corev1.Node) {
		*n = corev1.Node{}
		if err := json.Unmarshal(after, n); err != nil {
			d.Fatal(err)
		}
	}, authenticationv1.UserInfo{Username: d.gate.Agent.Username(), Extra: map[string]authenticationv1.ExtraValue{
		gate.ExtraNodeName: {d.node.Name}, gate.ExtraPodUID: {"pod"},
	}})
	d.expectRight(wasArmed && !d.gate.Armed(d.node), said)
	return nil
}

func (d *day) heartbeat() gate.Heartbeat {
	hb, _ := gate.ParseHeartbeat(d.node.Annotations[d.gate.HeartbeatAnnotation()])
	return hb
}

// expectRight looks at what a write of the agent's has made of the Node.
func (d *day) expectRight(opened bool, before gate.Heartbeat) {
	hb := d.heartbeat()
	if off := hb.Time.Sub(d.now); off > 2*time.Second || off < -lateness-2*time.Second {
		d.Fatalf("%s: a heartbeat says %s", d.now, hb.Time)
	}
	if hb.Time.Before(before.Time.Add(-2 * time.Second)) {
		d.Fatalf("%s: a heartbeat of %s replaced one of %s", d.now, hb.Time, before.Time)
	}
	if !opened {
		return
	}
	d.openings++
	switch node := d.node; {
	case !hb.Ready, hb.NodeUID != node.UID, hb.BootID != node.Status.NodeInfo.BootID, hb.BootID != d.boot:
		d.Fatalf("%s: opened with %+v in boot %s of %s", d.now, hb, d.boot, node.UID)
	case !d.serving && d.now.Sub(hb.Time) < 2*time.Second:
		d.Fatalf("%s: opened while the node does not serve", d.now)
	}
}

// lateness is how long a write may take that the agent has given up.
const lateness = time.Minute

// Patch implements nodeClient. Some writes arrive late.
func (d *day) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	if !d.up() {
		return nil, errors.New("connection refused")
	}
	if d.random.IntN(10) == 0 {
		d.late = append(d.late, lateWrite{d.upTo(lateness), data})
		d.disturb(d.now)
		return nil, context.DeadlineExceeded
	}
	err := d.apply(data)
	d.dated()
	if err != nil {
		return nil, err
	}
	return d.node.DeepCopy(), nil
}

// Get implements nodeClient.
func (d *day) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	if !d.up() {
		return nil, errors.New("connection refused")
	}
	d.dated()
	return d.node.DeepCopy(), nil
}

func (d *day) arrive() {
	var rest []lateWrite
	for _, w := range d.late {
		switch {
		case d.now.Before(w.at):
			rest = append(rest, w)
		case d.now.Sub(w.at) > 2*time.Second: // lost in an outage
		case d.apply(w.data) != nil:
			d.refused++
		}
	}
	d.late = rest
}

// RoundTrip answers with the API server's time.
func (d *day) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody,
		Header: http.Header{"Date": {d.now.UTC().Format(http.TimeFormat)}}}, nil
}

func (d *day) dated() {
	answer, err := d.agent.api.Wrap(d).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	if err != nil {
		d.Fatal(err)
	}
	_ = answer.Body.Close()
}

// Check implements Check.
func (d *day) Check(context.Context, *corev1.Node) error {
	if d.serving {
		return nil
	}
	return errDown
}

func (d *day) startAgent() {
	a, err := New(Options{
		Config: &rest.Config{Host: "localhost"}, NodeName: d.node.Name, BootID: d.boot,
		PodUID: types.UID(fmt.Sprintf("pod-%d", d.now.Unix())), Log: slog.New(slog.DiscardHandler),
		Gates: []Gate{{Gate: d.gate, Probes: []Probe{{Name: "c", Check: d, Dwell: 10 * time.Second, Timeout: time.Second}}}},
	})
	if err != nil {
		d.Fatal(err)
	}
	started := d.now
	// Go's clock shows what the wall did at first, and goes on evenly from there.
	d.clock = testclock.NewFakeClock(d.now.Add(d.wall))
	a.clock, a.nodes = d.clock, d
	a.gates[0].probers[0].clock = d.clock
	a.api = apiclock.On(func() time.Time { return d.now.Add(d.wall) }, func() time.Duration { return d.now.Sub(started) })
	d.agent = a
}

// runAgent lets the agent do a second's work.
func (d *day) runAgent() {
	if d.agent == nil {
		if d.now.Before(d.absent) {
			return
		}
		d.startAgent()
	}
	d.clock.SetTime(d.clock.Now().Add(time.Second))
	if seen, _ := d.agent.own.get(); d.up() && (seen == nil || seen.UID != d.node.UID || seen.ResourceVersion != d.node.ResourceVersion) {
		if seen == nil {
			d.dated() // the answer to the first list
		} else if seen.UID != d.node.UID {
			d.agent.own.gone(seen.UID)
		}
		d.agent.own.event(d.node.DeepCopy())
	}
	p := d.agent.gates[0].probers[0]
	p.record(p.Check.Check(d.Context(), d.agent.node()))
	d.agent.step(d.Context())
}

// judge wants the Node to be right when nothing has been in the way for a while.
func (d *day) judge() {
	const soon = 90 * time.Second
	if !d.up() || d.agent == nil || len(d.late) > 0 || d.now.Sub(d.calm) < soon {
		return
	}
	if open := !d.gate.Armed(d.node); open != d.serving {
		d.Fatalf("%s: open %t, serving %t, heartbeat %+v, calm since %s", d.now, open, d.serving, d.heartbeat(), d.calm)
	}
	if verdict := gate.Judge(d.node, d.gate, d.now); d.serving && verdict != gate.Fresh {
		d.Fatalf("%s: serving, and the verdict is %s of %+v", d.now, verdict, d.heartbeat())
	}
}
