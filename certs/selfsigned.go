package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Pair is a serving certificate with its key and the authority that signed it,
// all in PEM.
type Pair struct {
	CA, Certificate, Key []byte
}

// SelfSigned makes an authority, whose key is forgotten, and a serving
// certificate of it for DNS names and IP addresses.
func SelfSigned(now time.Time, names ...string) (Pair, error) {
	authority, err := newAuthority(now)
	if err != nil {
		return Pair{}, err
	}
	serving, err := issue(authority, now, names)
	if err != nil {
		return Pair{}, err
	}
	key, err := encodeKey(serving.PrivateKey)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		CA:          encodeCertificates(authority.Certificate),
		Certificate: encodeCertificates(serving.Certificate),
		Key:         key,
	}, nil
}

// Source serves the pair as it is, and never renews it.
func (p Pair) Source() (Source, error) {
	pair, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		return nil, fmt.Errorf("reading pair: %w", err)
	}
	return &fixed{pair: &pair}, nil
}

type fixed struct{ pair *tls.Certificate }

// Start has nothing to do.
func (f *fixed) Start(context.Context) error { return nil }

func (f *fixed) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.pair, nil }

func (f *fixed) Healthy(now time.Time) error { return healthy(f.pair, now) }

// Write stores certificate and key in a directory, as [Files] reads them. The
// key comes last: until then the new certificate does not fit, and the old pair
// is served.
func (p Pair) Write(dir string) error {
	for _, file := range []struct {
		name string
		data []byte
	}{{CertFile, p.Certificate}, {KeyFile, p.Key}} {
		temporary := filepath.Join(dir, "."+file.name)
		if err := os.WriteFile(temporary, file.data, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", file.name, err)
		}
		if err := os.Rename(temporary, filepath.Join(dir, file.name)); err != nil {
			return fmt.Errorf("writing %s: %w", file.name, err)
		}
	}
	return nil
}
