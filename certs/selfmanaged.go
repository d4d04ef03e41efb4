package certs

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// defaultInterval is how long a replica may not know what another one renewed,
	// and an API server not whom to trust after somebody took it from the
	// registration.
	defaultInterval = 15 * time.Second
	// firstRetry is doubled up to the interval.
	firstRetry = time.Second
	// lookTimeout ends a look at an API server that does not answer.
	lookTimeout = 10 * time.Second
	jitter      = 0.2
)

// SelfManaged keeps authority and serving certificate in a Secret. Every replica
// looks at it; whichever finds that something is due renews it, and the Secret's
// resourceVersion decides between two that do so at once. Each then makes sure
// that the registration trusts what the Secret says.
//
// Renewal lets down no call: see [renew]. To renew everything by hand, delete the
// Secret. After a leak delete it while no replica runs, for a running one vouches
// for the new authority with the old one.
//
// It needs the rights to create Secrets in its namespace, to get and update the
// one Secret, and to get and update the one registration, each by name. Where an
// empty Secret is put there by others, it creates none.
type SelfManaged struct {
	// Client reads from the API server, not from a cache.
	Client client.Client
	// Secret is where authority and certificate are kept.
	Secret client.ObjectKey
	// Registration is the MutatingWebhookConfiguration whose webhooks are to trust
	// the authority.
	Registration string
	// Names are the DNS names and IP addresses that callers know the server by. At
	// least one.
	Names []string
	// Clock shows the API server's time.
	Clock clock.PassiveClock
	Log   *slog.Logger
	// Interval is the time between two looks. Default: 15 s.
	Interval time.Duration

	held atomic.Pointer[keyring]
}

var _ Source = (*SelfManaged)(nil)

// Start looks now and then, until the context ends.
func (s *SelfManaged) Start(ctx context.Context) error {
	interval := s.Interval
	if interval == 0 {
		interval = defaultInterval
	}
	fault, pause := "", firstRetry
	for {
		next := interval
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			if err.Error() != fault {
				fault = err.Error()
				s.Log.Error("Looking after the serving certificate", "error", err)
			}
			next = min(pause, interval)
			pause = 2 * next
		} else {
			fault, pause = "", firstRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait.Jitter(next, jitter)):
		}
	}
}

// GetCertificate returns the pair that replicas have agreed on.
func (s *SelfManaged) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if held := s.held.Load(); held != nil {
		return held.serving, nil
	}
	return nil, errNone
}

// Healthy implements [Source]. Whether the registration trusts the certificate is
// no part of it: it may be created after the replicas are ready.
func (s *SelfManaged) Healthy(now time.Time) error {
	if held := s.held.Load(); held != nil {
		return healthy(held.serving, now)
	}
	return errNone
}

// look agrees with the other replicas on a keyring, has it trusted, and serves it,
// trusted or not: a caller may know it from elsewhere. A keyring that cannot be
// renewed is as good until it expires.
func (s *SelfManaged) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return retry.OnError(retry.DefaultRetry, lostRace, func() error {
		ring, err := s.agree(ctx)
		if ring == nil || lostRace(err) {
			return err
		}
		err = errors.Join(err, s.inject(ctx, ring))
		s.serve(ring)
		return err
	})
}

// lostRace: another replica wrote first; what it wrote is as good.
func lostRace(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// agree returns what the Secret holds, renewed if it is due. Where it cannot be
// renewed it returns what is still valid, if anything is, and why.
func (s *SelfManaged) agree(ctx context.Context) (*keyring, error) {
	secret := &corev1.Secret{}
	err := s.Client.Get(ctx, s.Secret, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", s.Secret, err)
	}
	stored := s.decode(secret)
	now := s.Clock.Now()
	why := stored.check(s.Names, now)
	if why == "" {
		return stored, nil
	}
	previous := stored
	if previous == nil {
		previous = s.held.Load()
	}
	next, err := renew(previous, why, s.Names, now)
	if err != nil {
		return nil, err
	}
	if err := s.write(ctx, secret, next); err != nil {
		if previous == nil || healthy(previous.serving, now) != nil {
			return nil, err
		}
		return previous, err
	}
	s.Log.Info("Serving certificate renewed", "reason", why, "serial", serial(next.serving.Leaf), "notAfter", next.serving.Leaf.NotAfter)
	return next, nil
}

// decode returns nil for a Secret that is absent, empty or broken.
func (s *SelfManaged) decode(secret *corev1.Secret) *keyring {
	if len(secret.Data) == 0 {
		return nil
	}
	stored, err := decode(secret.Data)
	if err != nil {
		s.Log.Warn("Secret is broken and replaced", "secret", s.Secret.String(), "error", err)
		return nil
	}
	return stored
}

func (s *SelfManaged) write(ctx context.Context, secret *corev1.Secret, ring *keyring) error {
	data, err := ring.encode()
	if err != nil {
		return err
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	maps.Copy(secret.Data, data)
	if secret.ResourceVersion != "" {
		if err := s.Client.Update(ctx, secret); err != nil {
			return fmt.Errorf("updating Secret %s: %w", s.Secret, err)
		}
		return nil
	}
	secret.Namespace, secret.Name = s.Secret.Namespace, s.Secret.Name
	secret.Labels = map[string]string{"app.kubernetes.io/name": "nodegate", "app.kubernetes.io/part-of": "nodegate"}
	secret.Type = corev1.SecretTypeTLS
	if err := s.Client.Create(ctx, secret); err != nil {
		return fmt.Errorf("creating Secret %s: %w", s.Secret, err)
	}
	return nil
}

// inject has API servers trust the keyring's authorities. The object is not
// decoded into a type, which would drop fields of newer API servers.
func (s *SelfManaged) inject(ctx context.Context, ring *keyring) error {
	registration := &unstructured.Unstructured{}
	registration.SetGroupVersionKind(schema.GroupVersionKind{
		Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration",
	})
	if err := s.Client.Get(ctx, client.ObjectKey{Name: s.Registration}, registration); err != nil {
		return fmt.Errorf("reading webhook registration %q: %w", s.Registration, err)
	}
	changed, err := setBundle(registration, base64.StdEncoding.EncodeToString(ring.bundle()))
	if err != nil || !changed {
		return err
	}
	if err := s.Client.Update(ctx, registration); err != nil {
		return fmt.Errorf("updating webhook registration %q: %w", s.Registration, err)
	}
	s.Log.Info("Webhook registration trusts the authority now", "registration", s.Registration, "authority", serial(ring.authority.Leaf))
	return nil
}

// setBundle reports whether that changed anything.
func setBundle(registration *unstructured.Unstructured, bundle string) (changed bool, err error) {
	hooks, _, err := unstructured.NestedSlice(registration.Object, "webhooks")
	if err != nil {
		return false, fmt.Errorf("reading webhooks of %q: %w", registration.GetName(), err)
	}
	for i := range hooks {
		hook, ok := hooks[i].(map[string]any)
		if !ok {
			return false, fmt.Errorf("webhook %d of %q is no object", i, registration.GetName())
		}
		if before, _, _ := unstructured.NestedString(hook, "clientConfig", "caBundle"); before == bundle {
			continue
		}
		changed = true
		if err := unstructured.SetNestedField(hook, bundle, "clientConfig", "caBundle"); err != nil {
			return false, fmt.Errorf("setting caBundle in %q: %w", registration.GetName(), err)
		}
	}
	return changed, unstructured.SetNestedSlice(registration.Object, hooks, "webhooks")
}

func (s *SelfManaged) serve(ring *keyring) {
	before := s.held.Swap(ring)
	if before == nil || !before.serving.Leaf.Equal(ring.serving.Leaf) {
		s.Log.Info("Serving certificate changed", "serial", serial(ring.serving.Leaf), "notAfter", ring.serving.Leaf.NotAfter)
	}
}
