package conformance

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/webhookserver"
)

// webhookForm is the mutation over HTTPS. Its clock shows what a row says, so that
// rows about a second are exact.
type webhookForm struct {
	clock         clocktesting.FakePassiveClock
	configuration atomic.Pointer[gate.Configuration]
	server        *webhookserver.Server
}

// serve makes the webhook follow the configuration from now on, and starts it if
// it is not there yet.
func (w *webhookForm) serve(ctx context.Context, admin *rest.Config, cfg *gate.Configuration) error {
	w.configuration.Store(cfg)
	if w.server != nil {
		return nil
	}
	w.clock.SetTime(time.Now())
	var err error
	w.server, err = webhookserver.Start(context.WithoutCancel(ctx), w.configuration.Load, admin, &w.clock)
	return err
}

// stop takes the registration back.
func (w *webhookForm) stop(ctx context.Context) error {
	if w.server == nil {
		return nil
	}
	defer func() { w.server = nil }()
	return w.server.Stop(ctx)
}
