package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
)

// Server serves the mutation over HTTPS. It is a manager's runnable that needs no
// leader election, starts before caches are filled, and when it is stopped answers
// what it was asked before.
type Server struct {
	ctrlwebhook.Server
	source certs.Source
}

var _ ctrlwebhook.Server = (*Server)(nil)

// NewServer serves the handler at an address, as host:port, with the source's
// certificate.
func NewServer(address string, source certs.Source, handler *Handler) (*Server, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("reading webhook address: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("reading webhook address %q: %w", address, err)
	}
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host: host,
		Port: int(number),
		TLSOpts: []func(*tls.Config){func(config *tls.Config) {
			config.GetCertificate = source.GetCertificate
			// API servers speak 1.3; what stands between may not.
			config.MinVersion = tls.VersionTLS12
		}},
	})
	server.Register(gate.WebhookPath, failOpen(&ctrlwebhook.Admission{Handler: handler}))
	return &Server{Server: server, source: source}, nil
}

// Start runs the source and serves until the context ends or either fails.
func (s *Server) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.source.Start(ctx) })
	group.Go(func() error { return s.Server.Start(ctx) })
	return group.Wait()
}
