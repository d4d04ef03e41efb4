package certs_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nodegate/nodegate/certs"
)

// TestSelfManaged_OutlastsAnOutage: an API server that is away for a day is asked
// again and again, at a bounded rate.
func TestSelfManaged_OutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks int
		away := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				looks++
				return errors.New("away")
			},
		})
		source := &certs.SelfManaged{Client: away, Names: []string{"a"}, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithTimeout(t.Context(), day)
		defer cancel()
		if err := source.Start(ctx); err != nil {
			t.Error(err)
		}
		const interval = 15 * time.Second
		if least, most := int(day/(interval*6/5)), int(day/interval)+10; looks < least || looks > most {
			t.Errorf("%d looks in a day, want %d to %d", looks, least, most)
		}
	})
}

// TestSelfManaged_ServesWhatItCannotRenew: a certificate that is due and valid is
// served and trusted, if the Secret cannot be written for weeks.
func TestSelfManaged_ServesWhatItCannotRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientBuilder().WithObjects(&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "registration"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "a"}},
		}).Build()
		run := func(c client.Client, age time.Duration) *certs.SelfManaged {
			source := &certs.SelfManaged{
				Client: c, Secret: client.ObjectKey{Namespace: "a", Name: "a"}, Registration: "registration", Names: []string{"a"},
				Clock: clocktesting.NewFakePassiveClock(time.Now().Add(age)), Log: slog.New(slog.DiscardHandler),
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := source.Start(ctx); err != nil {
				t.Error(err)
			}
			return source
		}
		trusted := func() (*admissionregistrationv1.MutatingWebhookConfiguration, string) {
			registration := &admissionregistrationv1.MutatingWebhookConfiguration{}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "registration"}, registration); err != nil {
				t.Fatal(err)
			}
			return registration, string(registration.Webhooks[0].ClientConfig.CABundle)
		}
		before := run(api, 0)
		registration, bundle := trusted()
		registration.Webhooks[0].ClientConfig.CABundle = nil
		if err := api.Update(t.Context(), registration); err != nil {
			t.Fatal(err)
		}
		sealed := interceptor.NewClient(api, interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
				if _, ok := object.(*corev1.Secret); ok {
					return errors.New("not now")
				}
				return c.Update(ctx, object, o...)
			},
		})
		const age = 70 * day
		after := run(sealed, age)
		if want, got := serial(before), serial(after); want == "" || got != want {
			t.Errorf("serves %q, want %q", got, want)
		}
		if err := after.Healthy(time.Now().Add(age)); err != nil {
			t.Error(err)
		}
		if _, got := trusted(); got != bundle || bundle == "" {
			t.Errorf("trusts %q, want %q", got, bundle)
		}
		if got := serial(run(sealed, 100*day)); got != "" {
			t.Errorf("serves %s, which has expired", got)
		}
	})
}
