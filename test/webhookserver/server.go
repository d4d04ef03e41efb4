// Package webhookserver runs the mutation over HTTPS in the process of a test
// and registers it with the test's API server.
package webhookserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/apiclock"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/webhook"
)

const (
	host = "127.0.0.1"
	// patience is how long an API server may take to call a new webhook.
	patience = time.Minute
)

// Server is a running webhook.
type Server struct {
	// Registration is the MutatingWebhookConfiguration as it is stored.
	Registration *admissionregistrationv1.MutatingWebhookConfiguration
	// Metrics count its answers.
	Metrics *webhook.Metrics

	admin  client.Client
	cancel context.CancelFunc
	done   chan error
}

// Start serves the configuration's gates, registers the webhook and returns when
// the API server calls it. configuration is asked for each request; config is an
// administrator's. Heartbeats are judged by the clock, by default one that is
// corrected to the API server's.
func Start(ctx context.Context, configuration func() *gate.Configuration, config *rest.Config, judge clock.PassiveClock) (*Server, error) {
	log.SetLogger(logr.Discard()) // once for the process; else the library complains
	config = rest.CopyConfig(config)
	if judge == nil {
		corrected := apiclock.New()
		config.Wrap(corrected.Wrap)
		judge = corrected
	}
	admin, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("creating client: %w", err)
	}
	s := &Server{admin: admin, Metrics: webhook.NewMetrics(), done: make(chan error, 1)}
	handler := &webhook.Handler{Configuration: configuration, Clock: judge, Metrics: s.Metrics}
	registration, err := s.serve(ctx, handler)
	if err != nil {
		return nil, err
	}
	if err := s.register(ctx, configuration(), registration); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	return s, nil
}

// Stop takes the registration back and ends the server.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	if s.Registration != nil {
		err = client.IgnoreNotFound(s.admin.Delete(ctx, s.Registration))
	}
	return errors.Join(err, s.StopServing())
}

// StopServing ends the server and leaves the registration, as a crash does.
func (s *Server) StopServing() error {
	s.cancel()
	err := <-s.done
	s.done <- nil
	return err
}

func (s *Server) serve(ctx context.Context, handler *webhook.Handler) (*admissionregistrationv1.WebhookClientConfig, error) {
	pair, err := certs.SelfSigned(time.Now(), host)
	if err != nil {
		return nil, err
	}
	source, err := pair.Source()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	server, err := webhook.NewServer(address, source, handler)
	if err != nil {
		return nil, err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() { s.done <- server.Start(ctx) }()
	url := "https://" + address + gate.WebhookPath
	return &admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: pair.CA}, nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

// register stores the registration and waits until it has effect.
func (s *Server) register(ctx context.Context, cfg *gate.Configuration, hook *admissionregistrationv1.WebhookClientConfig) error {
	rendered, err := manifests.Webhook(cfg, hook)
	if err != nil {
		return err
	}
	if err := s.admin.Create(ctx, rendered); err != nil {
		return fmt.Errorf("registering webhook: %w", err)
	}
	s.Registration = &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.admin.Get(ctx, client.ObjectKeyFromObject(rendered), s.Registration); err != nil {
		return fmt.Errorf("reading registration: %w", err)
	}
	if cfg.Mode != gate.ModeEnforce {
		return nil
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return s.arms(ctx, &cfg.Gates[0])
	})
}

// arms reports whether a Node that the gate governs would be born armed. It is a
// dry run: nothing is stored.
func (s *Server) arms(ctx context.Context, g *gate.Gate) (bool, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "webhookserver-probe", Labels: g.NodeSelector.MatchLabels}}
	err := s.admin.Create(ctx, node, client.DryRunAll)
	if apierrors.IsAlreadyExists(err) {
		return false, fmt.Errorf("probing the webhook: %w", err)
	}
	return err == nil && g.Armed(node), nil
}
