package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/internal/apiclock"
	"github.com/nodegate/nodegate/internal/configfile"
	"github.com/nodegate/nodegate/webhook"
)

// errAgentsMoved ends the process: what is watched is fixed when it starts.
var errAgentsMoved = errors.New("the configuration names other agent pods: restart to watch them")

// program is what the parts of the controller share.
type program struct {
	*Options
	log     *slog.Logger
	clock   *apiclock.Clock
	file    *configfile.File
	changed chan struct{}
	lease   *guard.Lease // nil without leader election
	mgr     ctrl.Manager
}

// Run runs guard, webhook and endpoints until the context ends, and returns when
// all that was begun is answered and the Lease is given back.
func (o *Options) Run(ctx context.Context, logs io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := o.newProgram(logs, cancel)
	if err != nil {
		return err
	}
	for _, add := range []func(context.Context) error{p.addConfiguration, p.addGuard, p.addWebhook, p.addHealth} {
		if err := add(ctx); err != nil {
			return err
		}
	}
	if err := p.mgr.Start(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errAgentsMoved) {
		return cause
	}
	return nil
}

func (o *Options) newProgram(logs io.Writer, cancel context.CancelCauseFunc) (*program, error) {
	log, err := o.Logger(logs)
	if err != nil {
		return nil, err
	}
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	p := &program{Options: o, log: log, clock: apiclock.New(), changed: make(chan struct{}, 1)}
	if p.file, err = configfile.Open(o.Config, log, p.takeOver(cancel)); err != nil {
		return nil, err
	}
	config, err := o.ClientConfig("nodegate-controller")
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // the API server's priority and fairness paces writes
	config.Wrap(p.clock.Wrap)
	if p.LeaderElect {
		if p.lease, err = guard.NewLease(config, p.Namespace, gate.ControllerLease, p.clock); err != nil {
			return nil, err
		}
	}
	if p.mgr, err = ctrl.NewManager(config, p.managerOptions()); err != nil {
		return nil, fmt.Errorf("creating manager: %w", err)
	}
	return p, nil
}

func (p *program) managerOptions() ctrl.Options {
	return ctrl.Options{
		Cache:                               guard.CacheOptions(p.file.Current()),
		LeaderElection:                      p.LeaderElect,
		LeaderElectionResourceLockInterface: p.lease,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       new(guard.LeaseDuration),
		RenewDeadline:                       new(guard.RenewDeadline),
		RetryPeriod:                         new(guard.RetryPeriod),
		HealthProbeBindAddress:              p.HealthAddress,
		Metrics:                             metricsserver.Options{BindAddress: p.MetricsAddress},
	}
}

// takeOver is called when another configuration is in force.
func (p *program) takeOver(cancel context.CancelCauseFunc) func(before, after *gate.Configuration) {
	return func(before, after *gate.Configuration) {
		if !reflect.DeepEqual(agents(before), agents(after)) {
			cancel(errAgentsMoved)
		}
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
}

// agents are where agent pods are looked for.
func agents(cfg *gate.Configuration) map[string][]map[string]string {
	where := map[string][]map[string]string{}
	for i := range cfg.Gates {
		agent := cfg.Gates[i].Agent
		where[agent.Namespace] = append(where[agent.Namespace], agent.PodLabels)
	}
	return where
}

func (p *program) addConfiguration(context.Context) error { return p.mgr.Add(p.file) }

func (p *program) addGuard(ctx context.Context) error {
	installedAt, added, err := p.installedAt(ctx)
	if err != nil {
		return err
	}
	metrics := guard.NewMetrics()
	if err := metrics.Register(ctrlmetrics.Registry); err != nil {
		return fmt.Errorf("registering the guard's metrics: %w", err)
	}
	g := &guard.Guard{
		Client:        p.mgr.GetClient(),
		Log:           p.log,
		Configuration: p.file.Current,
		Changed:       p.changed,
		Clock:         p.clock,
		InstalledAt:   installedAt,
		Added:         added,
		Metrics:       metrics,
		Lease:         p.lease,
	}
	return g.SetupWithManager(p.mgr)
}

func (p *program) addWebhook(context.Context) error {
	if !p.Webhook {
		return nil
	}
	source, err := p.certificates()
	if err != nil {
		return err
	}
	metrics := webhook.NewMetrics()
	if err := metrics.Register(ctrlmetrics.Registry); err != nil {
		return fmt.Errorf("registering the webhook's metrics: %w", err)
	}
	server, err := webhook.NewServer(p.WebhookAddress, source,
		&webhook.Handler{Configuration: p.file.Current, Clock: p.clock, Metrics: metrics})
	if err != nil {
		return err
	}
	return errors.Join(
		p.mgr.Add(server),
		p.mgr.AddReadyzCheck("webhook", server.StartedChecker()),
		p.mgr.AddReadyzCheck("certificate", func(*http.Request) error { return source.Healthy(p.clock.Now()) }),
	)
}

// certificates is the source that was asked for. The self-managed one reads past
// the manager's cache, which would have to see every Secret.
func (p *program) certificates() (certs.Source, error) {
	if p.WebhookCertSource == sourceFiles {
		return certs.NewFiles(p.WebhookCertDir, p.log), nil
	}
	direct, err := client.New(p.mgr.GetConfig(), client.Options{
		HTTPClient: p.mgr.GetHTTPClient(), Scheme: p.mgr.GetScheme(), Mapper: p.mgr.GetRESTMapper(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating client for the serving certificate: %w", err)
	}
	return &certs.SelfManaged{
		Client:       direct,
		Secret:       client.ObjectKey{Namespace: p.Namespace, Name: gate.WebhookSecret},
		Registration: gate.WebhookRegistration,
		Names:        []string{gate.ControllerService + "." + p.Namespace + ".svc"},
		Clock:        p.clock,
		Log:          p.log,
	}, nil
}

func (p *program) addHealth(context.Context) error {
	return errors.Join(
		p.mgr.AddHealthzCheck("ping", healthz.Ping),
		p.mgr.AddReadyzCheck("cache", p.cacheFilled),
	)
}

// cacheFilled: a replica that may not read what it guards is never ready, which
// halts a rollout. The cache as a whole says that it is filled before the guard has
// asked it for anything.
func (p *program) cacheFilled(request *http.Request) error {
	for _, object := range []client.Object{&corev1.Node{}, &corev1.Pod{}, &appsv1.DaemonSet{}} {
		informer, err := p.mgr.GetCache().GetInformer(request.Context(), object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("asking the cache for %T: %w", object, err)
		}
		if !informer.HasSynced() {
			return fmt.Errorf("the cache of %T is not filled yet", object)
		}
	}
	return nil
}
