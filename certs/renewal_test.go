package certs_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/webhook"
)

const (
	day     = 24 * time.Hour
	writers = 4
	// callsPerStep are made at least between two steps of a renewal.
	callsPerStep = 100
)

// The ages of authority and certificate at which each is young, or has a third of
// its time left. API servers judge by their own clock, so that what is served at
// last must be of the real present.
const (
	beginning        = -245 * day
	certificateMade  = -65 * day
	certificateIsDue = -3 * day
	authorityIsDue   = 0
)

// fleet is two replicas behind one address, which answer in turns, an API server
// that fails a write if it cannot call them, and writers of Nodes.
type fleet struct {
	*environment
	clock    *clocktesting.FakePassiveClock
	replicas []*certs.SelfManaged
	// held calls fail, as if the API server were away for them. A call is under way
	// as long as it is locked for reading.
	held    string
	calling sync.RWMutex

	calls, handshakes atomic.Int64
	shown             sync.Map // serial numbers
	stop              func()
}

// What can be held back.
const (
	holdNothing      = ""
	holdSecret       = "reading and writing the Secret"
	holdRegistration = "writing the registration"
)

var errHeld = errors.New("held back by the test")

func (e *environment) newFleet(t *testing.T) *fleet {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	now := time.Now()
	f := &fleet{environment: e, clock: clocktesting.NewFakePassiveClock(now.Add(beginning))}
	e.clean(t)
	e.register(t, "https://"+f.serve(t))
	c := interceptor.NewClient(e.client(t), interceptor.Funcs{Get: f.get, Update: f.update})
	f.replicas = []*certs.SelfManaged{e.replica(t, c, f.clock), e.replica(t, c, f.clock)}
	f.awaitAgreement(t, "")
	f.step(certificateMade)
	f.awaitAgreement(t, serial(f.replicas[0]))
	f.write(t)
	f.awaitCalls(t)
	return f
}

func (f *fleet) get(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	f.calling.RLock()
	defer f.calling.RUnlock()
	if isSecret(object) && f.held == holdSecret {
		return errHeld
	}
	return c.Get(ctx, key, object, o...)
}

func (f *fleet) update(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
	f.calling.RLock()
	defer f.calling.RUnlock()
	if isSecret(object) && f.held == holdSecret || !isSecret(object) && f.held == holdRegistration {
		return errHeld
	}
	return c.Update(ctx, object, o...)
}

func isSecret(object client.Object) bool {
	_, ok := object.(*corev1.Secret)
	return ok
}

// hold returns when no call is under way that would not have been held back.
func (f *fleet) hold(what string) {
	f.calling.Lock()
	defer f.calling.Unlock()
	f.held = what
}

// step sets the clock by which certificates are made and renewed.
func (f *fleet) step(fromNow time.Duration) { f.clock.SetTime(time.Now().Add(fromNow)) }

// serve answers every call on a new connection, so that every call shows a
// certificate.
func (f *fleet) serve(t *testing.T) (address string) {
	t.Helper()
	pair, err := certs.SelfSigned(time.Now(), host)
	if err != nil {
		t.Fatal(err)
	}
	unused, err := pair.Source()
	if err != nil {
		t.Fatal(err)
	}
	handler, err := webhook.NewServer(host+":0", unused, &webhook.Handler{Configuration: gate.Default, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:           handler.WebhookMux(),
		TLSConfig:         &tls.Config{GetCertificate: f.show, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}},
		ReadHeaderTimeout: time.Minute,
	}
	server.SetKeepAlivesEnabled(false)
	done := make(chan error, 1)
	go func() { done <- server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serving: %v", err)
		}
	})
	return listener.Addr().String()
}

func (f *fleet) show(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := f.replicas[f.handshakes.Add(1)%int64(len(f.replicas))].GetCertificate(hello)
	if err == nil {
		f.shown.Store(pair.Leaf.SerialNumber.Text(16), true)
	}
	return pair, err
}

// register stores the registration as it is rendered, save that a write fails if
// the webhook cannot be called, however slow the machine.
func (e *environment) register(t *testing.T, url string) {
	t.Helper()
	rendered, err := manifests.Webhook(gate.Default(), &admissionregistrationv1.WebhookClientConfig{URL: new(url + gate.WebhookPath)})
	if err != nil {
		t.Fatal(err)
	}
	registration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(rendered.Object, registration); err != nil {
		t.Fatal(err)
	}
	registration.Webhooks[0].FailurePolicy = new(admissionregistrationv1.Fail)
	registration.Webhooks[0].TimeoutSeconds = new(int32(30))
	e.create(t, registration)
}

// write starts writers, each of which takes the taint off its own Node again and
// again. Each write is a call, which must put the taint back.
func (f *fleet) write(t *testing.T) {
	t.Helper()
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for writer := range writers {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "renewal-", Labels: map[string]string{"kubernetes.io/os": "linux"},
		}}
		await(t, "the webhook to be called", func() bool { return f.admin.Create(t.Context(), node) == nil })
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				removal := fmt.Sprintf(`{"metadata":{"labels":{"example.com/n":"%d"}},"spec":{"taints":null}}`, i)
				err := f.admin.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(removal)))
				if ctx.Err() != nil {
					return
				}
				if err != nil || !gate.DefaultGate().Armed(node) {
					t.Errorf("writer %d, call %d: %v, taints %v", writer, i, err, node.Spec.Taints)
				}
				f.calls.Add(1)
			}
		})
	}
	f.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(f.stop)
}

func (f *fleet) awaitCalls(t *testing.T) {
	t.Helper()
	want := f.calls.Load() + callsPerStep
	await(t, "calls", func() bool { return f.calls.Load() >= want })
}

// awaitAgreement waits until both replicas serve another certificate than before.
func (f *fleet) awaitAgreement(t *testing.T, before string) {
	t.Helper()
	await(t, "another certificate than "+before, func() bool {
		now := serial(f.replicas[0])
		return now != "" && now != before && serial(f.replicas[1]) == now
	})
}

func (f *fleet) awaitBundle(t *testing.T) {
	t.Helper()
	await(t, "the registration to trust the authority", func() bool { return f.bundle(t) == string(f.secret(t).Data["ca.crt"]) })
}

func (f *fleet) expectShown(t *testing.T, serial string) {
	t.Helper()
	if _, shown := f.shown.Load(serial); !shown {
		t.Errorf("certificate %s was shown to no caller", serial)
	}
}

// end says how many calls were made. Each that failed has been reported.
func (f *fleet) end(t *testing.T) {
	t.Helper()
	f.stop()
	f.expectNoSecrets(t, f.secret(t))
	t.Logf("%d calls, %d handshakes", f.calls.Load(), f.handshakes.Load())
}

// renewals: the certificate becomes due, and later the authority.
func (e *environment) renewals(t *testing.T) {
	f := e.newFleet(t)
	first, bundle := serial(f.replicas[0]), f.bundle(t)
	f.step(certificateIsDue)
	f.awaitAgreement(t, first)
	f.awaitCalls(t)
	if f.bundle(t) != bundle {
		t.Error("the authority was replaced before it was due")
	}
	second := serial(f.replicas[0])
	f.step(authorityIsDue)
	f.awaitAgreement(t, second)
	f.awaitBundle(t)
	f.awaitCalls(t)
	if f.bundle(t) == bundle {
		t.Error("the authority was not replaced")
	}
	for _, serial := range []string{first, second, serial(f.replicas[0])} {
		f.expectShown(t, serial)
	}
	f.end(t)
}

// authority: the authority is replaced in two steps, of which one is held back
// for a while.
func (e *environment) authority(t *testing.T, held string) {
	f := e.newFleet(t)
	before, bundle := serial(f.replicas[0]), f.bundle(t)
	f.hold(held)
	f.step(authorityIsDue)
	if held == holdSecret {
		// A further replica is not held back, and serves nobody.
		other := e.replica(t, e.client(t), f.clock)
		await(t, "the other replica to renew", func() bool { return serial(other) != "" && serial(other) != before })
		f.awaitBundle(t)
		f.awaitCalls(t)
		if got := serial(f.replicas[0]); got != before {
			t.Errorf("serves %s, want still %s", got, before)
		}
	}
	if held == holdRegistration {
		f.awaitAgreement(t, before)
		f.awaitCalls(t)
		if f.bundle(t) != bundle {
			t.Error("the registration was written")
		}
	}
	f.hold(holdNothing)
	f.awaitAgreement(t, before)
	f.awaitBundle(t)
	f.awaitCalls(t)
	f.expectShown(t, before)
	f.expectShown(t, serial(f.replicas[0]))
	f.end(t)
}

// deleted: to delete the Secret renews everything.
func (e *environment) deleted(t *testing.T) {
	f := e.newFleet(t)
	for range 3 {
		before := serial(f.replicas[0])
		if err := e.admin.Delete(t.Context(), f.secret(t)); err != nil {
			t.Fatal(err)
		}
		f.awaitAgreement(t, before)
		f.awaitBundle(t)
		f.awaitCalls(t)
		f.expectShown(t, serial(f.replicas[0]))
	}
	f.end(t)
}
