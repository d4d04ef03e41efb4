package webhook

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/nodegate/nodegate/gate"
)

// GetCertificate returns the serving certificate of the moment.
type GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// NewServer serves the handler over HTTPS at an address, as host:port. It is a
// manager's runnable that needs no leader election; when it is stopped it
// answers what it was asked before.
func NewServer(address string, certificate GetCertificate, handler *Handler) (ctrlwebhook.Server, error) {
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
			config.GetCertificate = certificate
		}},
	})
	server.Register(gate.WebhookPath, &ctrlwebhook.Admission{Handler: handler})
	return server, nil
}
