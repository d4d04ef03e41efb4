package certs_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
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
