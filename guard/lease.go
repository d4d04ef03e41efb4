package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"github.com/nodegate/nodegate/gate"
)

// Timing of the leader election. A replica that is killed is followed by another
// within five seconds: at most 2.2 retries until the other one sees the last
// renewal, the Lease's duration, and 2.2 retries until it asks again (client-go
// stretches the waiting replica's retries to that). It costs the API server five
// small writes a second from the one that leads and fewer reads from the other,
// where a cluster of 5000 nodes makes 500 such writes for its kubelets. An API
// server that does not answer for RenewDeadline ends the leader's term; no Node
// could have been armed in that time either.
const (
	LeaseDuration = 4 * time.Second
	RenewDeadline = 3800 * time.Millisecond
	RetryPeriod   = 200 * time.Millisecond
)

// Lease is the lock of a manager's leader election and, in its annotations, what
// the guard that holds it has to tell people and the guard that follows it. Both
// go through one writer, so that they are never in each other's way.
//
// It needs get, update and create on leases.
type Lease struct {
	client   coordinationv1client.LeaseInterface
	key      types.NamespacedName
	identity string
	clock    clock.PassiveClock

	mu sync.Mutex
	// stored is the Lease as last read or written.
	stored *coordinationv1.Lease
	// vacant is for how long nobody had renewed the Lease when this replica took
	// it; never says that nobody ever held it.
	vacant time.Duration
	never  bool
}

var _ resourcelock.Interface = (*Lease)(nil)

// NewLease returns the lock for ctrl.Options.LeaderElectionResourceLockInterface.
// The clock shows the API server's time.
func NewLease(config *rest.Config, namespace, name string, clock clock.PassiveClock) (*Lease, error) {
	config = rest.CopyConfig(config)
	// One request that hangs must not cost the term.
	config.Timeout = RenewDeadline / 2
	client, err := coordinationv1client.NewForConfig(rest.AddUserAgent(config, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("creating client for Lease %s/%s: %w", namespace, name, err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("naming this replica: %w", err)
	}
	return &Lease{
		client:   client.Leases(namespace),
		key:      types.NamespacedName{Namespace: namespace, Name: name},
		identity: host + "_" + string(uuid.NewUUID()),
		clock:    clock,
	}, nil
}

// Get implements [resourcelock.Interface].
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, err := l.client.Get(ctx, l.key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err // the elector asks for NotFound
	}
	l.stored = lease
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the record of Lease %s: %w", l.key, err)
	}
	return record, raw, nil
}

// Create implements [resourcelock.Interface].
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, err := l.client.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.key.Namespace, Name: l.key.Name},
		Spec:       l.spec(record),
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating Lease %s: %w", l.key, err)
	}
	l.stored, l.never = lease, true
	return nil
}

// Update implements [resourcelock.Interface].
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stored == nil {
		return errors.New("the Lease was neither read nor created yet")
	}
	before, now := &l.stored.Spec, l.spec(record)
	taken := record.HolderIdentity == l.identity && (before.HolderIdentity == nil || *before.HolderIdentity != l.identity)
	vacant, never := now.RenewTime.Sub(renewedAt(before)), before.RenewTime == nil
	err := l.update(ctx, func(lease *coordinationv1.Lease) { lease.Spec = now })
	if err == nil && taken {
		l.vacant, l.never = vacant, never
	}
	return err
}

func renewedAt(spec *coordinationv1.LeaseSpec) time.Time {
	if spec.RenewTime == nil {
		return time.Time{}
	}
	return spec.RenewTime.Time
}

// update changes the Lease as it was last seen. It fails with a conflict where
// somebody else has changed it; the elector then reads it again.
func (l *Lease) update(ctx context.Context, change func(*coordinationv1.Lease)) error {
	lease := l.stored.DeepCopy()
	change(lease)
	lease, err := l.client.Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		return err // the elector asks for Conflict
	}
	l.stored = lease
	return nil
}

// spec is the record's, in the API server's time: the next holder, on another
// machine, goes by it.
func (l *Lease) spec(record resourcelock.LeaderElectionRecord) coordinationv1.LeaseSpec {
	spec := resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	spec.RenewTime = new(metav1.NewMicroTime(l.clock.Now()))
	return spec
}

// RecordEvent implements [resourcelock.Interface]. Who leads is logged, and to be
// read on the Lease.
func (l *Lease) RecordEvent(string) {}

// Identity implements [resourcelock.Interface].
func (l *Lease) Identity() string { return l.identity }

// Describe implements [resourcelock.Interface].
func (l *Lease) Describe() string { return l.key.String() }

// meta is enough for a reference to the Lease.
func (l *Lease) meta() metav1.ObjectMeta {
	l.mu.Lock()
	defer l.mu.Unlock()
	meta := metav1.ObjectMeta{Namespace: l.key.Namespace, Name: l.key.Name}
	if l.stored != nil {
		meta.UID = l.stored.UID
	}
	return meta
}

// vacancy is for how long nobody had led when this replica took the Lease. The
// second result is false if nobody ever had.
func (l *Lease) vacancy() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.vacant, !l.never
}

// notices are the guard's annotations on the Lease.
func (l *Lease) notices() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stored == nil {
		return nil
	}
	notices := maps.Clone(l.stored.Annotations)
	maps.DeleteFunc(notices, func(key, _ string) bool { return !isNotice(key) })
	return notices
}

// publish replaces the guard's annotations, if they differ. A Lease that somebody
// else has changed is read again, once.
func (l *Lease) publish(ctx context.Context, notices map[string]string) error {
	if maps.Equal(l.notices(), notices) {
		return nil
	}
	err := l.put(ctx, notices)
	if err != nil {
		if _, _, unread := l.Get(ctx); unread == nil {
			err = l.put(ctx, notices)
		}
	}
	if err != nil {
		return fmt.Errorf("publishing on Lease %s: %w", l.key, err)
	}
	return nil
}

func (l *Lease) put(ctx context.Context, notices map[string]string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stored == nil || l.stored.Spec.HolderIdentity == nil || *l.stored.Spec.HolderIdentity != l.identity {
		return errors.New("this replica does not hold it")
	}
	return l.update(ctx, func(lease *coordinationv1.Lease) {
		maps.DeleteFunc(lease.Annotations, func(key, _ string) bool { return isNotice(key) })
		if lease.Annotations == nil {
			lease.Annotations = map[string]string{}
		}
		maps.Copy(lease.Annotations, notices)
	})
}

func isNotice(key string) bool {
	return key == gate.ModeAnnotation || key == gate.SuspendedAnnotation || strings.HasPrefix(key, gate.BreakerPrefix)
}
