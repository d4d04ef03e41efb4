package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// Source provides the certificate that a server shows to its callers.
type Source interface {
	// Start obtains and renews the certificate until the context ends. It returns
	// an error only if it never can.
	Start(ctx context.Context) error
	// GetCertificate returns the certificate of the moment, or an error before the
	// first one.
	GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
	// Healthy says why no caller would accept the certificate now. A replica is
	// ready only if it is healthy; it need not be restarted if it is not.
	Healthy(now time.Time) error
}

// errNone is before the first certificate.
var errNone = errors.New("there is no serving certificate yet")

// healthy judges a certificate by what every caller judges it by first.
func healthy(pair *tls.Certificate, now time.Time) error {
	if pair == nil {
		return errNone
	}
	if leaf := pair.Leaf; now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("serving certificate is valid from %s to %s only", leaf.NotBefore, leaf.NotAfter)
	}
	return nil
}
