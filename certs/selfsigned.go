package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// validity of what [SelfSigned] makes.
	validity = 365 * 24 * time.Hour
	// backdate allows for a caller whose clock is late.
	backdate = time.Hour
)

// Pair is a serving certificate with its key and the authority that signed it,
// all in PEM.
type Pair struct {
	CA, Certificate, Key []byte
}

// SelfSigned makes an authority, whose key is forgotten, and a serving
// certificate of it for DNS names and IP addresses.
func SelfSigned(now time.Time, names ...string) (Pair, error) {
	if len(names) == 0 {
		return Pair{}, errors.New("making certificate: no names to make it for")
	}
	authority, err := newTemplate("nodegate", now)
	if err != nil {
		return Pair{}, err
	}
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage = x509.KeyUsageCertSign
	leaf, err := newTemplate(names[0], now)
	if err != nil {
		return Pair{}, err
	}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
			continue
		}
		leaf.DNSNames = append(leaf.DNSNames, name)
	}
	return sign(authority, leaf)
}

func newTemplate(name string, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("drawing serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(validity),
	}, nil
}

func sign(authority, leaf *x509.Certificate) (Pair, error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generating authority's key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generating key: %w", err)
	}
	ca, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return Pair{}, fmt.Errorf("signing authority: %w", err)
	}
	certificate, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey)
	if err != nil {
		return Pair{}, fmt.Errorf("signing certificate: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding key: %w", err)
	}
	return Pair{
		CA:          pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca}),
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
	}, nil
}

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
