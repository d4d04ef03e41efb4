package guard

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
)

// newLeases returns the locks of two replicas, over one Lease that an API server
// stores, and their clock.
func newLeases(api *fake.Clientset) (first, second *Lease, clock *clocktesting.FakePassiveClock) {
	clock = clocktesting.NewFakePassiveClock(now)
	lock := func(identity string) *Lease {
		return &Lease{
			client: api.CoordinationV1().Leases(gate.Namespace), key: types.NamespacedName{Namespace: gate.Namespace, Name: gate.ControllerLease},
			identity: identity, clock: clock,
		}
	}
	return lock("first"), lock("second"), clock
}

func heldBy(l *Lease) resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{HolderIdentity: l.Identity(), LeaseDurationSeconds: 4}
}

func (l *Lease) mustHold(t *testing.T) {
	t.Helper()
	_, _, err := l.Get(t.Context())
	if apierrors.IsNotFound(err) {
		err = l.Create(t.Context(), heldBy(l))
	} else if err == nil {
		err = l.Update(t.Context(), heldBy(l))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (l *Lease) expectVacancy(t *testing.T, want time.Duration, wantLed bool) {
	t.Helper()
	if got, led := l.vacancy(); got != want || led != wantLed {
		t.Errorf("%s took it when it was vacant for %s (led before: %t), want %s (%t)", l.identity, got, led, want, wantLed)
	}
}

// TestLease_Vacancy is measured when the Lease is taken, and stays as it was.
func TestLease_Vacancy(t *testing.T) {
	first, second, clock := newLeases(fake.NewClientset())
	first.mustHold(t)
	first.expectVacancy(t, 0, false)
	clock.SetTime(now.Add(10 * time.Second))
	first.mustHold(t)
	first.expectVacancy(t, 0, false)
	clock.SetTime(now.Add(30 * time.Second))
	second.mustHold(t)
	second.expectVacancy(t, 20*time.Second, true)
	clock.SetTime(now.Add(31 * time.Second))
	second.mustHold(t)
	second.expectVacancy(t, 20*time.Second, true)
}

// TestLease_Publish: what is told replaces what was told, and nothing else; it costs
// no write where nothing has changed, outlasts another writer, and is refused where
// another replica holds the Lease.
func TestLease_Publish(t *testing.T) {
	api := fake.NewClientset()
	first, second, _ := newLeases(api)
	first.mustHold(t)
	ctx := t.Context()
	told := map[string]string{gate.ModeAnnotation: "enforce", gate.BreakerPrefix + "agent": "armed=1"}
	stored := func() *coordinationv1.Lease {
		lease, err := first.client.Get(ctx, gate.ControllerLease, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	if err := first.publish(ctx, told); err != nil || !maps.Equal(stored().Annotations, told) {
		t.Errorf("told %v (%v), want %v", stored().Annotations, err, told)
	}
	api.ClearActions()
	if err := first.publish(ctx, told); err != nil || len(api.Actions()) != 0 {
		t.Errorf("telling the same again took %v (%v)", api.Actions(), err)
	}

	lease := stored()
	lease.Annotations["example.com/other"] = "stays"
	if _, err := first.client.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	conflicts := 0
	api.PrependReactor("update", "leases", func(clientgotesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts == 1, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, gate.ControllerLease, nil)
	})
	if err := first.publish(ctx, map[string]string{gate.ModeAnnotation: "paused"}); err != nil {
		t.Errorf("publishing after another writer: %v", err)
	}
	if got := stored().Annotations; len(got) != 2 || got["example.com/other"] != "stays" || got[gate.ModeAnnotation] != "paused" {
		t.Errorf("the Lease tells %v", got)
	}

	second.mustHold(t)
	conflicts = 0
	if err := first.publish(ctx, told); err == nil {
		t.Error("a replica that does not hold the Lease has written it")
	}
}

// TestGuard_Inherits: what the guard before has told holds, of the gates that there
// are.
func TestGuard_Inherits(t *testing.T) {
	first, second, clock := newLeases(fake.NewClientset())
	first.mustHold(t)
	tripped := &breaker{limit: 3}
	takeMany(tripped, "a", 4, now)
	held := notice.Suspension{Until: now.Add(20 * time.Second), Reason: "a test"}
	if err := first.publish(t.Context(), map[string]string{
		gate.BreakerPrefix + gate.DefaultName: tripped.String(), gate.BreakerPrefix + "removed": tripped.String(), gate.SuspendedAnnotation: held.String(),
	}); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(now.Add(5 * time.Second))
	second.mustHold(t)

	b := newBench(t, newInput(at(now.Add(5*time.Second))), interceptor.Funcs{})
	b.tells()
	b.Lease = second
	patrol := func() string {
		t.Helper()
		if err := b.patrol(t.Context()); err != nil {
			t.Fatal(err)
		}
		return strings.Join(b.told(), "\n")
	}
	told := patrol()
	for _, reason := range []string{"|Warning|ExpirySuspended|", "|Warning|BreakerTripped|"} {
		if strings.Count(told, reason) != 1 {
			t.Errorf("told\n%s\nwant%s", told, reason)
		}
	}
	if got := b.breaker(gate.DefaultName); got.count() != 3 || len(b.term.breakers) != 1 {
		t.Errorf("counts %d, of %d gates", got.count(), len(b.term.breakers))
	}
	notices := second.notices()
	if notices[gate.ModeAnnotation] != "enforce" || notices[gate.BreakerPrefix+"removed"] != "" ||
		notices[gate.BreakerPrefix+gate.DefaultName] != tripped.String() || notices[gate.SuspendedAnnotation] != held.String() {
		t.Errorf("the Lease tells %v", notices)
	}
	if told := patrol(); told != "" {
		t.Errorf("told again:\n%s", told)
	}

	b.clock.SetTime(now.Add(20 * time.Second))
	if told := patrol(); strings.Count(told, "|Normal|ExpiryResumed|") != 1 || second.notices()[gate.SuspendedAnnotation] != "" {
		t.Errorf("when the suspension ends, told\n%s\nand the Lease tells %v", told, second.notices())
	}
	b.clock.SetTime(now.Add(breakerWindow + time.Minute))
	if told := patrol(); strings.Count(told, "|Normal|BreakerClosed|") != 1 || second.notices()[gate.BreakerPrefix+gate.DefaultName] != "" {
		t.Errorf("when the breaker closes, told\n%s\nand the Lease tells %v", told, second.notices())
	}
	if told := patrol(); told != "" {
		t.Errorf("told again:\n%s", told)
	}
}

// TestGuard_TellsThatItTrips at once, and what was counted without tripping too.
func TestGuard_TellsThatItTrips(t *testing.T) {
	first, _, _ := newLeases(fake.NewClientset())
	first.mustHold(t)
	first.never = false
	b := newBench(t, newInput(at(now.Add(ttl))), interceptor.Funcs{})
	b.Lease = first
	b.copies(t, 3, func(*input) {})
	b.lookAtAll(t)
	want := "armed=3 limit=3 tripped=true window=2026-11-29T11:04:00Z/3"
	if got := first.notices()[gate.BreakerPrefix+gate.DefaultName]; got != want {
		t.Errorf("the Lease tells %q, want %q", got, want)
	}
}

// TestTeller_Drops what too many Events are, and counts it.
func TestTeller_Drops(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.tells()
	for range maxQueuedEvents + 2 {
		b.teller.tell(telling{})
	}
	b.expectMetrics(t, `
# HELP nodegate_guard_events_dropped_total Events that were not written because too many were waiting.
# TYPE nodegate_guard_events_dropped_total counter
nodegate_guard_events_dropped_total 2
`, "nodegate_guard_events_dropped_total")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.teller.run(ctx); err != nil {
		t.Errorf("a teller that ends says %v", err)
	}
}
