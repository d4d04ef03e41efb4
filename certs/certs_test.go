package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
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
	pair := newPair(t, now, "nodegate-controller.nodegate-system.svc", "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pair.CA) {
		t.Fatal("the authority is no certificate")
	}
	for name, want := range map[string]bool{
		"nodegate-controller.nodegate-system.svc": true, "127.0.0.1": true, "example.com": false, "127.0.0.2": false,
	} {
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

func TestNewFiles_NeedsAPairThatFits(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewFiles(dir); err == nil {
		t.Error("served an empty directory")
	}
	if err := newPair(t, time.Now(), "a").Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, KeyFile), newPair(t, time.Now(), "b").Key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewFiles(dir); err == nil {
		t.Error("served a certificate with another one's key")
	}
}

func TestFiles_FollowsARenewalAndKeepsTheLastGoodPair(t *testing.T) {
	dir := t.TempDir()
	first, second := newPair(t, time.Now(), "first"), newPair(t, time.Now(), "second")
	if err := first.Write(dir); err != nil {
		t.Fatal(err)
	}
	files, err := NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	files.watcher.WithWatchInterval(10 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- files.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("following files: %v", err)
		}
	})

	if err := os.WriteFile(filepath.Join(dir, CertFile), []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := files.watcher.ReadCertificate(); err == nil {
		t.Error("read half a certificate")
	}
	expectName(t, files, "first")
	if err := second.Write(dir); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return name(t, files) == "second", nil
	})
	if err != nil {
		t.Fatalf("waiting for the renewed pair: %v", err)
	}
}

func TestFiles_Healthy(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	if err := newPair(t, now, "a").Write(dir); err != nil {
		t.Fatal(err)
	}
	files, err := NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Duration]bool{
		0: true, -backdate + 2*time.Second: true, -2 * backdate: false, validity - time.Second: true, validity + 2*time.Second: false,
	} {
		if err := files.Healthy(now.Add(at)); (err == nil) != want {
			t.Errorf("healthy after %s: %v, want %t", at, err, want)
		}
	}
}

func expectName(t *testing.T, files *Files, want string) {
	t.Helper()
	if got := name(t, files); got != want {
		t.Errorf("serves the certificate of %q, want %q", got, want)
	}
}

func name(t *testing.T, files *Files) string {
	t.Helper()
	pair, err := files.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.Subject.CommonName
}
