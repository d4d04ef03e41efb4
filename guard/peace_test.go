package guard_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/agent"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

var (
	peaceNodes  = flag.Int("peace-nodes", 14, "nodes of TestPeace")
	peaceRounds = flag.Int("peace-rounds", 1, "rounds of TestPeace, in each of which every node has a trouble")
	peaceSeed   = flag.Uint64("peace-seed", 0, "seed of TestPeace; 0 takes one from the clock")
)

// peacePatience is how long a node may take to open: an agent that was cut off may
// sleep for half a minute before it looks again.
const peacePatience = 3 * time.Minute

// peace is a cluster with admission, two guards, and nodes with real agents.
type peace struct {
	*environment
	cluster *cluster.Cluster
	wire    *cluster.Wire
	nodes   []*peaceNode
	guards  [2]context.CancelFunc
	wg      sync.WaitGroup
	// disturbed counts what makes heartbeats later than a trouble does: the API
	// server was away, or this machine too busy.
	disturbed atomic.Int32
}

// peaceNode is a node, its agent and the agent's pod.
type peaceNode struct {
	*peace
	name     string
	random   *rand.Rand
	wire     *cluster.Wire
	identity *rest.Config
	pod      *corev1.Pod
	bootFile string
	// failing is the agent's one check.
	failing atomic.Bool
	stop    func()

	mu sync.Mutex
	// isArmed is what was seen last, arms the verdicts with which the node was seen
	// to become armed.
	isArmed bool
	arms    []string
}

// saw takes note of what a watch shows.
func (n *peaceNode) saw(node *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.isArmed
	n.isArmed = gate.DefaultGate().Armed(node)
	if was || !n.isArmed {
		return
	}
	now := time.Now().UTC()
	n.arms = append(n.arms, fmt.Sprintf("%s at %s by %q", gate.Judge(node, gate.DefaultGate(), now), now.Format(gate.TimeLayout),
		node.Annotations[gate.HeartbeatPrefix+gate.DefaultName]))
}

// since are the arms from a number on.
func (n *peaceNode) since(from int) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.arms[from:])
}

// TestPeace: agents and guards never fight. Whatever befalls a node, it is armed at
// most once for it, and ends open.
func TestPeace(t *testing.T) {
	t.Parallel()
	seed := *peaceSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again by -peace-seed=%d -peace-nodes=%d -peace-rounds=%d", seed, *peaceNodes, *peaceRounds)
	p := newPeace(t, seed)
	p.wg.Go(func() { p.findStalls(t) })
	world := rand.New(rand.NewPCG(seed, 0))
	for round := range *peaceRounds {
		var troubles sync.WaitGroup
		for _, n := range p.nodes {
			troubles.Go(func() { n.suffer(t, round) })
		}
		p.shake(t, world)
		troubles.Wait()
	}
}

func newPeace(t *testing.T, seed uint64) *peace {
	t.Helper()
	c := cluster.ForTest(t)
	p := &peace{environment: &environment{config: c.Admin, cfg: gate.Default()}, cluster: c, wire: newWire(t, c.Admin)}
	var err error
	if p.admin, err = client.NewWithWatch(c.Admin, client.Options{}); err != nil {
		t.Fatal(err)
	}
	p.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}})
	p.create(t, daemonSet())
	p.grant(t)
	if err := c.InstallPolicies(t.Context(), p.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.wg.Wait)
	for i := range p.guards {
		p.startGuard(t, i)
	}
	for i := range *peaceNodes {
		p.addNode(t, i, seed)
	}
	p.watch(t)
	for _, n := range p.nodes {
		n.startAgent(t)
	}
	for _, n := range p.nodes {
		n.awaitOpen(t)
	}
	return p
}

func newWire(t *testing.T, config *rest.Config) *cluster.Wire {
	t.Helper()
	wire, err := cluster.NewWire(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Cut)
	return wire
}

// grant gives the agents what they are installed with.
func (p *peace) grant(t *testing.T) {
	t.Helper()
	objects, err := manifests.Workloads(manifests.Options{Mutation: manifests.ByPolicy, Config: `
apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates: [{name: agent, taint: {key: nodegate.io/agent-not-ready}, checks: [{socket: {path: /run/example}}]}]`})
	if err != nil {
		t.Fatal(err)
	}
	others := func(u *unstructured.Unstructured) bool { return u.GroupVersionKind().Group != rbacv1.GroupName }
	if err := p.cluster.Apply(t.Context(), slices.DeleteFunc(objects, others)); err != nil {
		t.Fatal(err)
	}
}

func (p *peace) startGuard(t *testing.T, i int) {
	ctx, cancel := context.WithCancel(t.Context())
	p.guards[i] = cancel
	p.wg.Go(func() { _ = replica(ctx, p.wire.Config(p.cluster.Admin), p.cfg) })
}

func (p *peace) addNode(t *testing.T, i int, seed uint64) {
	t.Helper()
	n := &peaceNode{
		peace: p, name: fmt.Sprintf("peace-%d", i), random: rand.New(rand.NewPCG(seed, uint64(i)+1)),
		bootFile: filepath.Join(t.TempDir(), "boot_id"), stop: func() {},
	}
	// A ttl of 0 is that of a small cluster: heartbeats every 10 s, good for 60.
	p.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.name, Labels: map[string]string{"kubernetes.io/os": "linux"}, Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: "0"},
	}})
	n.newBoot(t)
	identity, err := p.cluster.PodToken(t.Context(), gate.Namespace, gate.AgentAccount, n.name)
	if err != nil {
		t.Fatal(err)
	}
	// What cuts the guards off cuts the agents off too.
	n.identity, n.wire = identity, newWire(t, p.wire.Config(p.cluster.Admin))
	var pods corev1.PodList
	if err := p.admin.List(t.Context(), &pods, &client.ListOptions{
		Namespace: gate.Namespace, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.name),
	}); err != nil || len(pods.Items) != 1 {
		t.Fatalf("found %d pods of node %s (%v)", len(pods.Items), n.name, err)
	}
	n.pod = &pods.Items[0]
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, gate.AgentLabel, gate.AgentLabelValue)
	if err := p.admin.Patch(t.Context(), n.pod, client.RawPatch(types.MergePatchType, label)); err != nil {
		t.Fatal(err)
	}
	n.ready(t, corev1.ConditionTrue)
	p.nodes = append(p.nodes, n)
}

// watch follows the Nodes.
func (p *peace) watch(t *testing.T) {
	t.Helper()
	clients, err := kubernetes.NewForConfig(p.cluster.Admin)
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(clients, 0)
	saw := func(object any) {
		node := object.(*corev1.Node)
		for _, n := range p.nodes {
			if n.name == node.Name {
				n.saw(node)
			}
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, after any) { saw(after) }}
	seen, err := factory.Core().V1().Nodes().Informer().AddEventHandler(handler)
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), seen.HasSynced) {
		t.Fatal("the Nodes cannot be watched")
	}
}

// findStalls notes when this machine, or the API server on it, has no time.
func (p *peace) findStalls(t *testing.T) {
	const stall = 5 * time.Second
	for t.Context().Err() == nil {
		late := time.AfterFunc(stall, func() { p.disturbed.Add(1) })
		pause(t, time.Second)
		_ = p.admin.Get(t.Context(), client.ObjectKey{Name: gate.Namespace}, &corev1.Namespace{}) // when it answers is what matters
		late.Stop()
	}
}

// newBoot is what a kubelet reports after a reboot.
func (n *peaceNode) newBoot(t *testing.T) {
	id := string(uuid.NewUUID())
	if err := os.WriteFile(n.bootFile, []byte(id+"\n"), 0o600); err != nil {
		t.Error(err)
	}
	n.boot(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, id)
}

// ready sets the pod's condition, as its kubelet does.
func (n *peaceNode) ready(t *testing.T, status corev1.ConditionStatus) {
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"lastTransitionTime":%q}]}}`, status, time.Now().UTC().Format(time.RFC3339))
	if err := n.admin.Status().Patch(t.Context(), n.pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch)); err != nil && t.Context().Err() == nil {
		t.Errorf("%s: %v", n.name, err)
	}
}

func (n *peaceNode) startAgent(t *testing.T) {
	check := agent.CheckFunc(func(context.Context) error {
		if n.failing.Load() {
			return fmt.Errorf("the test says so")
		}
		return nil
	})
	a, err := agent.New(agent.Options{
		Config: n.wire.Config(n.identity), NodeName: n.name, PodUID: n.pod.UID, BootIDPath: n.bootFile, CheckInterval: 100 * time.Millisecond,
		Gates: []agent.Gate{{Gate: gate.DefaultGate(), Probes: []agent.Probe{{Name: "check", Check: check, Dwell: time.Second, Timeout: time.Second}}}},
	})
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	n.wg.Go(func() {
		defer close(ended)
		_ = a.Start(ctx)
	})
	n.stop = func() { cancel(); <-ended }
}

func (n *peaceNode) await(t *testing.T, armed bool) bool {
	for began := time.Now(); time.Since(began) < peacePatience && t.Context().Err() == nil; pause(t, 100*time.Millisecond) {
		n.mu.Lock()
		is := n.isArmed
		n.mu.Unlock()
		if is == armed {
			return true
		}
	}
	return false
}

func (n *peaceNode) awaitOpen(t *testing.T) {
	if !n.await(t, false) {
		t.Errorf("%s is healthy and was not opened within %s", n.name, peacePatience)
	}
}

func pause(t *testing.T, d time.Duration) {
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

// trouble befalls a node and is over when it returns; arms are how often it must
// arm the node, or -1 for once at most.
type trouble struct {
	name string
	arms int
	run  func(*peaceNode, *testing.T)
}

func troubles() []trouble {
	return []trouble{
		{"the pod is not Ready while the agent serves", 0, func(n *peaceNode, t *testing.T) {
			n.ready(t, corev1.ConditionFalse)
			pause(t, guard.Grace+5*time.Second)
			n.ready(t, corev1.ConditionTrue)
		}},
		{"heartbeats lag and are in time", 0, func(n *peaceNode, t *testing.T) { n.cutOff(t, 15*time.Second) }},
		{"heartbeats lag for longer than they last", -1, func(n *peaceNode, t *testing.T) {
			n.wire.Cut()
			n.age(t)
			pause(t, 20*time.Second)
			n.mend(t)
		}},
		{"the agent restarts", -1, func(n *peaceNode, t *testing.T) { n.restart(t, 2*time.Second) }},
		{"the agent restarts and takes its time", -1, func(n *peaceNode, t *testing.T) { n.restart(t, guard.Grace+5*time.Second) }},
		{"the agent does not serve for a while", 1, func(n *peaceNode, t *testing.T) {
			n.failing.Store(true)
			n.await(t, true)
			n.failing.Store(false)
		}},
		{"the node reboots", 1, func(n *peaceNode, t *testing.T) {
			n.stop()
			n.ready(t, corev1.ConditionFalse)
			n.newBoot(t)
			n.await(t, true)
			n.startAgent(t)
			n.awaitOpen(t)
			n.ready(t, corev1.ConditionTrue)
		}},
	}
}

func (n *peaceNode) cutOff(t *testing.T, d time.Duration) {
	n.wire.Cut()
	pause(t, d)
	n.mend(t)
}

// age makes the agent's last heartbeat one that is about to expire.
func (n *peaceNode) age(t *testing.T) {
	node := &corev1.Node{}
	if err := n.admin.Get(t.Context(), client.ObjectKey{Name: n.name}, node); err != nil {
		t.Error(err)
		return
	}
	hb, err := gate.ParseHeartbeat(node.Annotations[gate.HeartbeatPrefix+gate.DefaultName])
	if err != nil {
		t.Error(err)
		return
	}
	hb.TTL = max(0, time.Since(hb.Time).Truncate(time.Second)) + 5*time.Second
	value, err := hb.Format()
	if err != nil {
		t.Error(err)
		return
	}
	itself, err := client.New(n.identity, client.Options{})
	if err != nil {
		t.Error(err)
		return
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, gate.HeartbeatPrefix+gate.DefaultName, value)
	if err := itself.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Error(err)
	}
}

func (n *peaceNode) mend(t *testing.T) {
	if err := n.wire.Mend(); err != nil {
		t.Error(err)
	}
}

func (n *peaceNode) restart(t *testing.T, d time.Duration) {
	n.stop()
	n.ready(t, corev1.ConditionFalse)
	pause(t, d)
	n.startAgent(t)
	n.awaitOpen(t)
	n.ready(t, corev1.ConditionTrue)
}

// suffer has a node go through a trouble. If something else is amiss meanwhile, a
// trouble that must not arm may do so.
func (n *peaceNode) suffer(t *testing.T, round int) {
	all := troubles()
	what := all[n.random.IntN(len(all))]
	before, disturbed := len(n.since(0)), n.disturbed.Load()
	what.run(n, t)
	n.awaitOpen(t)
	pause(t, time.Duration(n.random.IntN(3000))*time.Millisecond)
	if t.Context().Err() != nil {
		return
	}
	arms := n.since(before)
	undue := what.arms == 0 && len(arms) > 0 && n.disturbed.Load() == disturbed
	if undue || what.arms == 1 && len(arms) == 0 || len(arms) > 1 {
		t.Errorf("round %d: %s was armed %d times when %s: %q", round, n.name, len(arms), what.name, arms)
	}
}

// shake changes the leader, or takes the API server away for a while, a few times.
func (p *peace) shake(t *testing.T, random *rand.Rand) {
	for range 3 {
		pause(t, time.Duration(3+random.IntN(8))*time.Second)
		switch i := random.IntN(3); i {
		case 2:
			away := time.Duration(5+random.IntN(15)) * time.Second
			t.Logf("the API server goes away at %s for %s", time.Now().UTC().Format(gate.TimeLayout), away)
			p.disturbed.Add(1)
			p.wire.Cut()
			pause(t, away)
			if err := p.wire.Mend(); err != nil {
				t.Error(err)
			}
		default:
			p.guards[i]()
			p.startGuard(t, i)
		}
	}
}
