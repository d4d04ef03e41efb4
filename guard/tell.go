package guard

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// Events are written at this rate, in events per second, after a burst: what
	// arms Nodes has to go through the same API server, and goes first.
	eventRate, eventBurst = 20, 10

	// maxQueuedEvents is how many may wait. Of more there is only the metric.
	maxQueuedEvents = 16 << 10
)

// telling is an Event to be written. The reason says why, for people; action tells
// apart what must not be taken for a repetition.
type telling struct {
	regarding            runtime.Object
	kind, reason, action string
	note                 string
}

// teller writes Events, later and slower than they come. Repetitions are told by
// client-go's recorder: it counts them in a series and writes that every few
// minutes.
type teller struct {
	recorder events.EventRecorder
	queue    chan *telling
	metrics  *Metrics
}

func newTeller(recorder events.EventRecorder, metrics *Metrics) *teller {
	return &teller{recorder: recorder, queue: make(chan *telling, maxQueuedEvents), metrics: metrics}
}

// tell queues an Event. A nil teller tells nobody.
func (t *teller) tell(what telling) {
	if t == nil {
		return
	}
	select {
	case t.queue <- &what:
	default:
		t.metrics.eventDropped()
	}
}

// run writes what is queued until the context ends.
func (t *teller) run(ctx context.Context) error {
	limit := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case what := <-t.queue:
			if limit.Wait(ctx) != nil {
				return nil // the context has ended
			}
			t.recorder.Eventf(what.regarding, nil, what.kind, what.reason, what.action, "%s", what.note)
		}
	}
}

// tellOfNode tells of a Node.
func (g *Guard) tellOfNode(node *corev1.Node, kind, reason, action, note string) {
	about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID}}
	g.teller.tell(telling{regarding: about, kind: kind, reason: reason, action: action, note: note})
}

// tellOfFleet tells of what concerns no single Node: of the leader's Lease, where
// there is one.
func (g *Guard) tellOfFleet(kind, reason, action, note string) {
	if g.Lease == nil {
		return
	}
	about := &coordinationv1.Lease{ObjectMeta: g.Lease.meta()}
	g.teller.tell(telling{regarding: about, kind: kind, reason: reason, action: action, note: note})
}
