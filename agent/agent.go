package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/apiclock"
	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
)

// DefaultCheckInterval is the time from one answer of a check to the next
// question.
const DefaultCheckInterval = time.Second

// Options are what an agent needs to know.
type Options struct {
	// Config reaches the API server as an account that may get, list, watch and
	// patch nodes, with a token bound to a pod on this node.
	Config *rest.Config
	// NodeName is the Node's name.
	NodeName string
	// PodUID is the agent pod's, for people who read a heartbeat. Optional.
	PodUID types.UID
	// BootIDPath is a file with the id of the running boot, as the kubelet reads
	// it. Default: [DefaultBootIDPath].
	BootIDPath string
	// BootID is used instead of a file, where the Node shows another than the
	// kernel's. Whoever sets it sees to it that it is another after every reboot.
	BootID string
	// Gates are the gates to open; at least one.
	Gates []Gate
	// CheckInterval defaults to [DefaultCheckInterval].
	CheckInterval time.Duration
	// PodSocket is where the CNI plugin nodegate-cni asks whether a pod may start that
	// is bound to this node, in a directory of the agent's own. The account then needs
	// get on pods as well. Default: nobody is answered.
	PodSocket string
	// Mode is asked for each such pod: it waits in [gate.ModeEnforce] alone. Default:
	// that one.
	Mode func() gate.Mode
	// Log defaults to none.
	Log *slog.Logger
}

// Agent runs the checks of its gates, writes their heartbeats and opens them.
type Agent struct {
	name       string
	podUID     types.UID
	readBootID func() bootID
	log        *slog.Logger
	clock      clock.Clock
	uptime     func() (time.Duration, error)
	api        *apiclock.Clock
	rest       rest.Interface
	nodes      nodeClient
	own        *ownNode
	gates      []*running
	metrics    *metrics
	board      board
	// pods answers the CNI plugin; nil if nobody does.
	pods *hold.Server
	// bell rings when another answer to a pod is possible.
	bell bell
	// wake has a message when there may be something to do.
	wake chan struct{}
	loop loop
}

// running is a gate with what was done about it. All but the probers belongs to
// the loop.
type running struct {
	gate    *gate.Gate
	probers []*prober
	pace    pace
	// saidNo: the last that was written is ready=false.
	saidNo bool
}

// New returns an agent that runs once it is started.
func New(o Options) (*Agent, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("creating the agent: %w", err)
	}
	o = o.withDefaults()
	api := apiclock.New()
	config := rest.CopyConfig(o.Config)
	config.Wrap(api.Wrap)
	reach := &reach{log: o.Log.With("node", o.NodeName), clock: clock.RealClock{}}
	config.Wrap(reach.wrap)
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the agent's client: %w", err)
	}
	a := &Agent{
		name:       o.NodeName,
		podUID:     o.PodUID,
		readBootID: o.readBootID,
		log:        o.Log,
		clock:      clock.RealClock{},
		uptime:     func() (time.Duration, error) { return readUptime(uptimePath) },
		api:        api,
		rest:       client.RESTClient(),
		nodes:      client.Nodes(),
		metrics:    newMetrics(api),
		wake:       make(chan struct{}, 1),
	}
	a.own = &ownNode{changed: a.rouse}
	for _, g := range o.Gates {
		a.gates = append(a.gates, a.prepare(g, o.CheckInterval))
	}
	if o.PodSocket != "" {
		pods, err := newPodLookup(a, config)
		if err != nil {
			return nil, err
		}
		a.pods = &hold.Server{Path: o.PodSocket, Keeper: &podKeeper{a, o.Mode, pods}, Log: a.log.With("node", a.name), Waiting: a.metrics.wait}
	}
	return a, nil
}

func (o Options) validate() error {
	var faults []error
	if o.Config == nil {
		faults = append(faults, errors.New("no client configuration is given"))
	}
	if o.NodeName == "" {
		faults = append(faults, errors.New("no node name is given"))
	}
	if slices.ContainsFunc([]rune(o.PodUID), unprintable) {
		faults = append(faults, fmt.Errorf("the pod UID %q holds a blank or another character that no UID has", o.PodUID))
	}
	if o.BootID != "" && !usableBootID(o.BootID) {
		faults = append(faults, fmt.Errorf("%.80q is no boot id", o.BootID))
	}
	if len(o.Gates) == 0 {
		faults = append(faults, errors.New("no gate is given"))
	}
	if o.PodSocket != "" {
		pods := netconf.Defaults()
		pods.Socket = o.PodSocket
		for _, fault := range pods.Validate() {
			faults = append(faults, fmt.Errorf("the socket for pods: %w", fault))
		}
	}
	names := map[string]bool{}
	for _, g := range o.Gates {
		if g.Gate == nil {
			faults = append(faults, errors.New("a gate is nil"))
			continue
		}
		if names[g.Name] {
			faults = append(faults, fmt.Errorf("gate %q is given twice", g.Name))
		}
		names[g.Name] = true
		faults = append(faults, g.validate())
	}
	return errors.Join(faults...)
}

func (g Gate) validate() error {
	var faults []error
	if len(g.Probes) == 0 {
		faults = append(faults, fmt.Errorf("gate %q has no checks", g.Name))
	}
	names := map[string]bool{}
	for _, p := range g.Probes {
		if p.Check == nil || p.Timeout <= 0 {
			faults = append(faults, fmt.Errorf("check %q of gate %q lacks a check or a timeout", p.Name, g.Name))
		}
		if len(validation.IsDNS1123Label(p.Name)) > 0 || names[p.Name] {
			faults = append(faults, fmt.Errorf("%q of gate %q is no name for a check, or is one twice", p.Name, g.Name))
		}
		names[p.Name] = true
	}
	return errors.Join(faults...)
}

// readBootID is what the options say of the running boot.
func (o Options) readBootID() bootID {
	if o.BootID != "" {
		return bootID{id: o.BootID}
	}
	return readBootID(o.BootIDPath)
}

func (o Options) withDefaults() Options {
	if o.BootIDPath == "" {
		o.BootIDPath = DefaultBootIDPath
	}
	if o.CheckInterval <= 0 {
		o.CheckInterval = DefaultCheckInterval
	}
	if o.Mode == nil {
		o.Mode = func() gate.Mode { return gate.ModeEnforce }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (a *Agent) prepare(g Gate, interval time.Duration) *running {
	a.metrics.expect(g.Name)
	for _, p := range g.Probes {
		if check, ok := p.Check.(attached); ok {
			check.attach(a)
		}
	}
	with := asking{clock: a.clock, interval: interval, node: a.node, changed: a.rouse}
	return with.prepare(g, a.log.With("node", a.name), a.metrics.conflist)
}

// node is the agent's own as last seen.
func (a *Agent) node() *corev1.Node {
	node, _ := a.own.get()
	return node
}

// rouse makes the loop look again, and those who answer pods.
func (a *Agent) rouse() {
	a.bell.ring()
	wakeUp(a.wake)
}

func wakeUp(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // it is about to look
	}
}

// Start runs the agent until the context ends. It writes no farewell: an agent
// that is replaced must not close its gates, and one that stays away is noticed
// by its heartbeat's expiry.
func (a *Agent) Start(ctx context.Context) error {
	a.log.Info("Agent started", "node", a.name, "gates", a.gateNames())
	var group sync.WaitGroup
	for _, g := range a.gates {
		for _, p := range g.probers {
			group.Go(func() { p.run(ctx) })
			go p.follow(ctx)
		}
	}
	// Watches are not waited for: while the API server refuses connections,
	// client-go's reflector (0.37) sleeps up to half a minute and hears of no
	// context.
	refused := &refusals{log: a.log.With("node", a.name)}
	go a.own.watch(ctx, a.rest, a.name, refused.note)
	group.Go(func() { a.run(ctx) })
	if a.pods != nil {
		group.Go(func() { a.pods.Run(ctx) })
	}
	group.Wait()
	a.log.Info("Agent stopped", "node", a.name)
	return nil
}

// NeedLeaderElection makes a manager of controller-runtime run the agent on every
// node.
func (a *Agent) NeedLeaderElection() bool { return false }

func (a *Agent) gateNames() []string {
	var names []string
	for _, g := range a.gates {
		names = append(names, g.gate.Name)
	}
	return names
}
