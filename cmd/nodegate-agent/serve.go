package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/nodegate/nodegate/agent"
	"github.com/nodegate/nodegate/internal/options"
)

const (
	// askTimeout and answerTimeout bound how long a client may take to ask, and to take
	// an answer; idleTimeout how long it may stay in between.
	askTimeout    = 5 * time.Second
	answerTimeout = 10 * time.Second
	idleTimeout   = time.Minute
	// maxScrapers bounds what clients cost. Metrics are served to whoever reaches the
	// node, pods among them, and a thousand connections are more than the agent's
	// memory holds.
	maxScrapers = 16
	// drainTimeout is how long requests that are under way may take at the end.
	drainTimeout = 5 * time.Second
)

// server is what is served at an address.
type server struct {
	name    string
	address string
	handler http.Handler
	// limit is how many connections there may be at a time; zero: any number.
	limit int
}

func healthHandler(a *agent.Agent) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.ServeHealth)
	mux.HandleFunc("GET /readyz", a.ServeReady)
	return mux
}

func metricsHandler(registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}

// serve listens first, so that an address that is taken ends the start, and runs
// until the context ends or a part fails, which ends the others.
func serve(ctx context.Context, log *slog.Logger, run func(context.Context) error, servers ...server) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := []func(context.Context) error{run}
	for _, s := range servers {
		if s.address == options.Off {
			continue
		}
		listener, err := net.Listen("tcp", s.address)
		if err != nil {
			return fmt.Errorf("listening for %s: %w", s.name, err)
		}
		defer func() { _ = listener.Close() }() // its server may have done so
		log.Info("Listening", "for", s.name, "address", listener.Addr().String())
		parts = append(parts, func(ctx context.Context) error { return s.run(ctx, listener) })
	}
	faults := make([]error, len(parts))
	var group sync.WaitGroup
	for i, part := range parts {
		group.Go(func() {
			faults[i] = part(ctx)
			cancel()
		})
	}
	group.Wait()
	return errors.Join(faults...)
}

// run serves until the context ends, and lets requests that are under way finish.
func (s server) run(ctx context.Context, listener net.Listener) error {
	if s.limit > 0 {
		listener = netutil.LimitListener(listener, s.limit)
	}
	web := &http.Server{Handler: s.handler, ReadTimeout: askTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout}
	done := make(chan error, 1)
	go func() { done <- web.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serving %s: %w", s.name, err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := web.Shutdown(drain); err != nil {
		return fmt.Errorf("shutting down %s: %w", s.name, err)
	}
	return nil
}
