package certs

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"testing"
	"time"
)

func newPair(t *testing.T, now time.Time, names ...string) Pair {
	t.Helper()
	pair, err := SelfSigned(now, names...)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestSelfSigned_IsAcceptedForItsNames(t *testing.T) {
	now := time.Now()
	pair := newPair(t, now, service, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pair.CA) {
		t.Fatal("the authority is no certificate")
	}
	for name, want := range map[string]bool{service: true, "127.0.0.1": true, "example.com": false, "127.0.0.2": false} {
		_, err := certificate.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now})
		if accepted := err == nil; accepted != want {
			t.Errorf("accepted for %s: %t (%v), want %t", name, accepted, err, want)
		}
	}
}

func TestSelfSigned_NeedsAName(t *testing.T) {
	if _, err := SelfSigned(time.Now()); err == nil {
		t.Error("made a certificate for nobody")
	}
}

// TestSource_Healthy: every source is judged by the same dates.
func TestSource_Healthy(t *testing.T) {
	now := time.Now()
	pair := newPair(t, now, "a")
	dir := t.TempDir()
	write(t, pair, dir)
	fixed, err := pair.Source()
	if err != nil {
		t.Fatal(err)
	}
	managed := &SelfManaged{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if err := managed.Healthy(now); err == nil {
		t.Error("healthy without a certificate")
	}
	if _, err := managed.GetCertificate(nil); err == nil {
		t.Error("serves without a certificate")
	}
	managed.serve(following(t, nil, reasonAbsent, now))
	for name, source := range map[string]Source{
		"files": NewFiles(dir, slog.New(slog.NewTextHandler(io.Discard, nil))), "fixed": fixed, "self-managed": managed,
	} {
		for after, want := range map[time.Duration]bool{
			0: true, -backdate + 2*time.Second: true, -2 * backdate: false,
			leafValidity - 2*time.Second: true, leafValidity + 2*time.Second: false,
		} {
			if err := source.Healthy(now.Add(after)); (err == nil) != want {
				t.Errorf("%s healthy after %s: %v, want %t", name, after, err, want)
			}
		}
	}
}
