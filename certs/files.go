package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nodegate/nodegate/internal/follow"
)

// Names of the files, as Secrets of type kubernetes.io/tls have them.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// Files serves the pair in a directory. Whatever cannot be read or does not fit
// together is reported once and changes nothing: the last good pair is served.
type Files struct {
	dir      string
	log      *slog.Logger
	interval time.Duration

	pair atomic.Pointer[tls.Certificate]
	// read is what the pair was made of, fault what was last reported.
	read  [2][]byte
	fault string
}

var _ Source = (*Files)(nil)

// NewFiles reads the pair, if it is there already.
func NewFiles(dir string, log *slog.Logger) *Files {
	f := &Files{dir: dir, log: log, interval: follow.Interval}
	f.look()
	return f
}

// Start follows the files until the context ends.
func (f *Files) Start(ctx context.Context) error {
	follow.Directory(ctx, f.log, f.dir, f.interval, f.look)
	return nil
}

// GetCertificate returns the last good pair.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := f.pair.Load(); pair != nil {
		return pair, nil
	}
	return nil, errNone
}

// Healthy implements [Source].
func (f *Files) Healthy(now time.Time) error { return healthy(f.pair.Load(), now) }

func (f *Files) look() {
	read, err := f.readFiles()
	if err != nil {
		f.report(err)
		return
	}
	if bytes.Equal(read[0], f.read[0]) && bytes.Equal(read[1], f.read[1]) {
		f.fault = ""
		return
	}
	pair, err := tls.X509KeyPair(read[0], read[1])
	if err != nil {
		f.report(err)
		return
	}
	f.read, f.fault = read, ""
	f.pair.Store(&pair)
	f.log.Info("Serving certificate changed", "directory", f.dir, "serial", serial(pair.Leaf), "notAfter", pair.Leaf.NotAfter)
}

func (f *Files) readFiles() (read [2][]byte, err error) {
	for i, name := range []string{CertFile, KeyFile} {
		if read[i], err = os.ReadFile(filepath.Join(f.dir, name)); err != nil {
			return read, fmt.Errorf("reading serving certificate: %w", err)
		}
	}
	return read, nil
}

// report says what is wrong, once.
func (f *Files) report(err error) {
	if fault := err.Error(); fault != f.fault {
		f.fault = fault
		f.log.Error("Serving certificate is not used, the last good one stays", "directory", f.dir, "error", err)
	}
}
