package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Names of the files, as Secrets of type kubernetes.io/tls have them.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// Files serves the pair in a directory. It is a manager's runnable that needs no
// leader election.
type Files struct {
	watcher *certwatcher.CertWatcher
}

// NewFiles reads the pair, which must be there and fit together.
func NewFiles(dir string) (*Files, error) {
	watcher, err := certwatcher.New(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
	if err != nil {
		return nil, fmt.Errorf("reading serving certificate in %q: %w", dir, err)
	}
	return &Files{watcher: watcher}, nil
}

// Start follows the files until the context ends.
func (f *Files) Start(ctx context.Context) error { return f.watcher.Start(ctx) }

// NeedLeaderElection implements the manager's LeaderElectionRunnable.
func (f *Files) NeedLeaderElection() bool { return false }

// GetCertificate returns the last good pair.
func (f *Files) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.watcher.GetCertificate(hello)
}

// Healthy says what is wrong with the pair that is served: no caller would
// accept one that is not valid now.
func (f *Files) Healthy(now time.Time) error {
	pair, err := f.watcher.GetCertificate(nil)
	if err != nil {
		return err
	}
	if pair == nil || len(pair.Certificate) == 0 {
		return errors.New("there is no serving certificate")
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return fmt.Errorf("reading serving certificate: %w", err)
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("serving certificate is valid from %s to %s only", leaf.NotBefore, leaf.NotAfter)
	}
	return nil
}
