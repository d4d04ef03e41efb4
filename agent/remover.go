package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
)

// TaintRemover removes a startup taint from its node while the checks pass, as
// often as somebody adds it, and writes no heartbeat: for projects that have an
// agent and a taint of their own, and a guard that arms. Where nodegate's
// admission governs the node, it puts the taint back: there, use [Agent].
//
// It never fails its host: whatever is wrong it logs once, and the taint stays.
type TaintRemover struct {
	// Client writes the Node: its account may patch nodes.
	Client   client.Client
	NodeName string
	// Log defaults to none.
	Log *slog.Logger
	// Gate has the taint and the checks, at least one. Without a gate, the taint is
	// the default gate's.
	Gate Gate

	rest  rest.Interface
	clock clock.Clock
	log   *slog.Logger
	own   *ownNode
	wake  chan struct{}
	// running is the gate with its probers.
	running *running
	retry   retry
	// said is what was last logged about the taint.
	said string
}

// NeedLeaderElection makes a manager run it on every node.
func (r *TaintRemover) NeedLeaderElection() bool { return false }

// SetupWithManager adds it to a manager, by whose client configuration it watches
// the one Node; the manager's cache need not hold any.
func (r *TaintRemover) SetupWithManager(mgr ctrl.Manager) error {
	core, err := corev1client.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("creating the taint remover's client: %w", err)
	}
	r.rest = core.RESTClient()
	if err := mgr.Add(r); err != nil {
		return fmt.Errorf("adding the taint remover to the manager: %w", err)
	}
	return nil
}

// Start removes the taint until the context ends. It returns nil, and not before.
func (r *TaintRemover) Start(ctx context.Context) error {
	r.prepare()
	if err := r.validate(); err != nil {
		r.log.Error("Taint stays: the remover cannot work", "error", err)
		<-ctx.Done()
		return nil
	}
	var group sync.WaitGroup
	for _, p := range r.running.probers {
		group.Go(func() { p.run(ctx) })
		go p.follow(ctx)
	}
	refused := &refusals{log: r.log}
	go r.own.watch(ctx, r.rest, r.NodeName, refused.note) // see Agent.Start
	group.Go(func() { r.run(ctx) })
	group.Wait()
	return nil
}

func (r *TaintRemover) prepare() {
	r.clock, r.log, r.wake = clock.RealClock{}, r.Log, make(chan struct{}, 1)
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("node", r.NodeName)
	if r.Gate.Gate == nil {
		r.Gate.Gate = gate.DefaultGate()
	}
	r.own = &ownNode{changed: r.rouse}
	with := asking{clock: r.clock, interval: DefaultCheckInterval, node: r.node, changed: r.rouse}
	r.running = with.prepare(r.Gate, r.log, nil)
}

func (r *TaintRemover) validate() error {
	faults := []error{r.Gate.validate()}
	if r.Client == nil {
		faults = append(faults, errors.New("no client is given"))
	}
	if r.rest == nil {
		faults = append(faults, errors.New("it was not set up with a manager"))
	}
	if r.NodeName == "" {
		faults = append(faults, errors.New("no node name is given"))
	}
	for _, p := range r.Gate.Probes {
		if _, ok := p.Check.(attached); ok {
			faults = append(faults, fmt.Errorf("check %q needs an Agent", p.Name))
		}
	}
	return errors.Join(faults...)
}

func (r *TaintRemover) node() *corev1.Node {
	node, _ := r.own.get()
	return node
}

func (r *TaintRemover) rouse() { wakeUp(r.wake) }

func (r *TaintRemover) run(ctx context.Context) { stepUntil(ctx, r.wake, r.step) }

// step removes the taint if that is due, and returns how long to wait if nothing
// happens.
func (r *TaintRemover) step(ctx context.Context) time.Duration {
	node, turn := r.own.get()
	if node == nil || !r.Gate.Armed(node) {
		return idle
	}
	// It speaks of no boot, and so asks for none.
	v := judge(r.running.candidate(), node, bootID{id: node.Status.NodeInfo.BootID})
	if !v.opens {
		if v.known {
			r.say("Taint stays: a check does not pass", v.reason())
		}
		return idle
	}
	now := r.clock.Now()
	if held := max(r.retry.wait("", now), r.running.pace.wait(now)); held > 0 {
		return held
	}
	return r.remove(ctx, node, turn)
}

func (r *TaintRemover) remove(ctx context.Context, node *corev1.Node, turn uint64) time.Duration {
	patch := newNodePatch(node)
	patch.removeTaints(node, []*gate.Gate{r.Gate.Gate})
	data, err := patch.encode()
	if err != nil {
		r.say("Taint stays", err)
		return idle
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	written := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.NodeName}}
	err = r.Client.Patch(ctx, written, client.RawPatch(types.JSONPatchType, data), client.FieldOwner(gate.ManagerAgent))
	now := r.clock.Now()
	if err != nil {
		reason := classify(err)
		if reason != failureStale { // the watch brings what changed
			r.say("Removing the taint failed, trying again", err)
		}
		r.retry = r.retry.failed(reason, "", now)
		return r.retry.wait("", now)
	}
	r.retry, r.running.pace = retry{}, r.running.pace.took(now)
	if r.Gate.Armed(written) {
		r.say("Taint was put back in the write that removed it", nil)
	} else {
		r.said = ""
		r.log.Info("Removed the taint", "gate", r.Gate.Name)
	}
	r.own.answer(written, turn)
	return 0
}

// say logs what is new.
func (r *TaintRemover) say(message string, reason error) {
	if line := message + text(reason); line != r.said {
		r.said = line
		r.log.Warn(message, "gate", r.Gate.Name, "reason", text(reason))
	}
}
