package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// Keys of the Secret. The serving pair is where every tool looks for it.
const (
	authoritiesKey  = "ca.crt"
	authorityKeyKey = "ca.key"
)

// maxOlder is how many authorities before the present one are trusted, and led to.
// A caller that lags behind more renewals than that does not exist; where a Secret is
// emptied again and again, callers would refuse a chain that grows with it.
const maxOlder = 8

// keyring is what replicas share.
type keyring struct {
	// authority signs. Behind its own certificate come older ones which callers
	// are still to trust.
	authority *tls.Certificate
	// serving is shown to callers. Behind its own certificate comes what leads to
	// the older authorities, for callers that do not know the present one yet.
	serving *tls.Certificate
}

// reason says why a keyring is renewed; empty: it is not.
type reason string

const (
	reasonAbsent       reason = "Absent"
	reasonAuthorityDue reason = "AuthorityDue"
	reasonDue          reason = "CertificateDue"
	reasonOtherNames   reason = "OtherNames"
)

// check says what is to be renewed; of an absent keyring, everything.
func (k *keyring) check(names []string, now time.Time) reason {
	switch {
	case k == nil:
		return reasonAbsent
	case due(k.authority.Leaf, now):
		return reasonAuthorityDue
	case due(k.serving.Leaf, now):
		return reasonDue
	case !k.serves(names):
		return reasonOtherNames
	}
	return ""
}

func (k *keyring) serves(names []string) bool {
	for _, name := range names {
		if k.serving.Leaf.VerifyHostname(name) != nil {
			return false
		}
	}
	return true
}

// renew makes the keyring that follows one, which may be nil. A new authority is
// vouched for by the one before, and both are to be trusted, so that neither a
// caller that trusts the old one only nor a replica that shows the old
// certificate is let down, whichever learns of it first. What has not expired is
// kept.
func renew(previous *keyring, why reason, names []string, now time.Time) (*keyring, error) {
	next := &keyring{}
	var chain [][]byte
	if previous != nil {
		next.authority = previous.authority
		chain = unexpired(previous.serving.Certificate[1:], now)
	}
	if why == reasonAbsent || why == reasonAuthorityDue {
		cross, err := next.replaceAuthority(now)
		if err != nil {
			return nil, err
		}
		chain = newest(append(cross, chain...))
	}
	var err error
	if next.serving, err = issue(next.authority, now, names); err != nil {
		return nil, err
	}
	next.serving.Certificate = append(next.serving.Certificate, chain...)
	return next, nil
}

// replaceAuthority makes a new one and returns what leads from the old one to it,
// if there is an old one still.
func (k *keyring) replaceAuthority(now time.Time) (cross [][]byte, err error) {
	before := k.authority
	if k.authority, err = newAuthority(now); err != nil || before == nil {
		return nil, err
	}
	trusted := newest(unexpired(before.Certificate, now))
	k.authority.Certificate = append(k.authority.Certificate, trusted...)
	if !now.Before(before.Leaf.NotAfter) {
		return nil, nil
	}
	der, err := crossSign(before, k.authority)
	if err != nil {
		return nil, err
	}
	return [][]byte{der}, nil
}

func newest(older [][]byte) [][]byte { return older[:min(len(older), maxOlder)] }

// bundle is what API servers are to trust.
func (k *keyring) bundle() []byte { return encodeCertificates(k.authority.Certificate) }

// decode reads a Secret's data.
func decode(data map[string][]byte) (*keyring, error) {
	authority, err := tls.X509KeyPair(data[authoritiesKey], data[authorityKeyKey])
	if err != nil {
		return nil, fmt.Errorf("reading %s and %s: %w", authoritiesKey, authorityKeyKey, err)
	}
	serving, err := tls.X509KeyPair(data[CertFile], data[KeyFile])
	if err != nil {
		return nil, fmt.Errorf("reading %s and %s: %w", CertFile, KeyFile, err)
	}
	if err := serving.Leaf.CheckSignatureFrom(authority.Leaf); err != nil {
		return nil, fmt.Errorf("%s is not signed by %s: %w", CertFile, authoritiesKey, err)
	}
	return &keyring{authority: &authority, serving: &serving}, nil
}

// encode is the inverse of decode.
func (k *keyring) encode() (map[string][]byte, error) {
	authorityKey, err1 := encodeKey(k.authority.PrivateKey)
	servingKey, err2 := encodeKey(k.serving.PrivateKey)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return map[string][]byte{
		authoritiesKey:  k.bundle(),
		authorityKeyKey: authorityKey,
		CertFile:        encodeCertificates(k.serving.Certificate),
		KeyFile:         servingKey,
	}, nil
}
