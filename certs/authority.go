package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	// authorityValidity and leafValidity are of what is made here. Both are renewed
	// when a third is left, so that an authority outlives what it has signed.
	authorityValidity = 365 * 24 * time.Hour
	leafValidity      = 90 * 24 * time.Hour
	// backdate allows for a caller whose clock is late.
	backdate = time.Hour

	authorityName = "nodegate-webhook-authority"
)

// newAuthority makes a certificate that signs others, and itself.
func newAuthority(now time.Time) (*tls.Certificate, error) {
	template, key, err := prepare(authorityName, now, authorityValidity)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	return sign(template, template, key, key)
}

// crossSign vouches for another authority: who trusts this one only then accepts
// what the other has signed.
func crossSign(by, other *tls.Certificate) ([]byte, error) {
	template := *other.Leaf
	template.SerialNumber = nil // another one is drawn
	template.NotAfter = earlier(template.NotAfter, by.Leaf.NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, &template, by.Leaf, other.Leaf.PublicKey, by.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("cross-signing authority: %w", err)
	}
	return der, nil
}

// issue makes a serving certificate for DNS names and IP addresses.
func issue(authority *tls.Certificate, now time.Time, names []string) (*tls.Certificate, error) {
	if len(names) == 0 {
		return nil, errors.New("making certificate: no names to make it for")
	}
	template, key, err := prepare(names[0], now, leafValidity)
	if err != nil {
		return nil, err
	}
	template.NotAfter = earlier(template.NotAfter, authority.Leaf.NotAfter)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, name)
	}
	return sign(template, authority.Leaf, key, authority.PrivateKey)
}

func prepare(name string, now time.Time, validity time.Duration) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generating key: %w", err)
	}
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdate),
		NotAfter:  now.Add(validity),
	}, key, nil
}

func sign(template, parent *x509.Certificate, key crypto.Signer, parentKey crypto.PrivateKey) (*tls.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading what was signed: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// due says that a certificate is to be renewed: a third of its time is left, or
// it was made by a clock that is far ahead.
func due(certificate *x509.Certificate, now time.Time) bool {
	lifetime := certificate.NotAfter.Sub(certificate.NotBefore)
	return now.Before(certificate.NotBefore) || !now.Before(certificate.NotBefore.Add(lifetime/3*2))
}

// unexpired are those certificates, in DER, of a chain or of a bundle.
func unexpired(certificates [][]byte, now time.Time) [][]byte {
	var valid [][]byte
	for _, der := range certificates {
		if certificate, err := x509.ParseCertificate(der); err == nil && now.Before(certificate.NotAfter) {
			valid = append(valid, der)
		}
	}
	return valid
}

func encodeCertificates(certificates [][]byte) []byte {
	var text []byte
	for _, der := range certificates {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return text
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// serial names a certificate in a log.
func serial(certificate *x509.Certificate) string { return fmt.Sprintf("%x", certificate.SerialNumber) }
