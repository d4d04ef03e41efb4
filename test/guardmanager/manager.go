// Package guardmanager sets up the guard in the process of a test, with leader
// election.
package guardmanager

import (
	"log/slog"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/internal/apiclock"
)

// New returns a manager that runs a guard once it is started, and what that counts.
// admin is an administrator's. configuration is asked for at every look, and changed
// tells that it is another. The guard takes itself for installed at installedAt.
func New(admin *rest.Config, configuration func() *gate.Configuration, changed <-chan struct{}, installedAt time.Time) (ctrl.Manager, *guard.Metrics, error) {
	clock := apiclock.New()
	reach := rest.CopyConfig(admin)
	reach.Wrap(clock.Wrap)
	lease, err := guard.NewLease(reach, gate.Namespace, gate.ControllerLease, clock)
	if err != nil {
		return nil, nil, err
	}
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Cache:                               guard.CacheOptions(configuration()),
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		Controller:                          config.Controller{SkipNameValidation: new(true)},
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lease,
		LeaderElectionReleaseOnCancel:       true,
		// A busy machine must not end the term.
		LeaseDuration: new(time.Minute), RenewDeadline: new(50 * time.Second), RetryPeriod: new(guard.RetryPeriod),
	})
	if err != nil {
		return nil, nil, err
	}
	metrics := guard.NewMetrics()
	g := &guard.Guard{
		Client: mgr.GetClient(), Log: slog.New(slog.DiscardHandler), Configuration: configuration, Changed: changed,
		Clock: clock, InstalledAt: installedAt, Metrics: metrics, Lease: lease,
	}
	if err := g.SetupWithManager(mgr); err != nil {
		return nil, nil, err
	}
	return mgr, metrics, nil
}
