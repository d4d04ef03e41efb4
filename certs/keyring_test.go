package certs

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"strings"
	"testing"
	"time"
)

const service = "nodegate-controller.nodegate-system.svc"

var (
	names = []string{service}
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

const day = 24 * time.Hour

// following is the keyring after one, which may be nil.
func following(t *testing.T, previous *keyring, why reason, now time.Time) *keyring {
	t.Helper()
	next, err := renew(previous, why, names, now)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// accepted is what an API server that trusts a bundle makes of a certificate.
func accepted(serving *tls.Certificate, bundle []byte, now time.Time) error {
	roots, chain := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	chain.AppendCertsFromPEM(encodeCertificates(serving.Certificate[1:]))
	_, err := serving.Leaf.Verify(x509.VerifyOptions{DNSName: service, Roots: roots, Intermediates: chain, CurrentTime: now})
	return err
}

func TestKeyring_Check(t *testing.T) {
	ring := following(t, nil, reasonAbsent, start)
	renewed := following(t, ring, reasonDue, start.Add(200*day))
	for name, tc := range map[string]struct {
		ring  *keyring
		after time.Duration
		names []string
		want  reason
	}{
		"there is none":                      {nil, 0, names, reasonAbsent},
		"new":                                {ring, 0, names, ""},
		"two thirds are not over":            {ring, 59 * day, names, ""},
		"two thirds are over":                {ring, 60 * day, names, reasonDue},
		"expired":                            {ring, 91 * day, names, reasonDue},
		"of the authority, they are not":     {renewed, 243 * day, names, ""},
		"of the authority, they are":         {renewed, 244 * day, names, reasonAuthorityDue},
		"made by a clock that was far ahead": {ring, -2 * backdate, names, reasonAuthorityDue},
		"the Service has another name":       {ring, 0, []string{service, "other"}, reasonOtherNames},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.ring.check(tc.names, start.Add(tc.after)); got != tc.want {
				t.Errorf("due because %q, want %q", got, tc.want)
			}
		})
	}
}

// TestRenew_LetsNobodyDown: whoever knows only what was before or only what is
// now accepts either certificate, for as long as it is valid.
func TestRenew_LetsNobodyDown(t *testing.T) {
	for _, why := range []reason{reasonDue, reasonOtherNames, reasonAuthorityDue, reasonAbsent} {
		t.Run(string(why), func(t *testing.T) {
			now := start.Add(70 * day)
			before := following(t, nil, reasonAbsent, start)
			after := following(t, before, why, now)
			for certificate, serving := range map[string]*tls.Certificate{"old": before.serving, "new": after.serving} {
				for trust, bundle := range map[string][]byte{"old": before.bundle(), "new": after.bundle()} {
					if err := accepted(serving, bundle, now); err != nil {
						t.Errorf("%s certificate, %s bundle: %v", certificate, trust, err)
					}
				}
			}
			replaced := !before.authority.Leaf.Equal(after.authority.Leaf)
			if want := why == reasonAuthorityDue || why == reasonAbsent; replaced != want {
				t.Errorf("authority replaced: %t, want %t", replaced, want)
			}
		})
	}
}

// TestRenew_OverTenYears looks once a day, as replicas do more often.
func TestRenew_OverTenYears(t *testing.T) {
	ring := following(t, nil, reasonAbsent, start)
	leaves, authorities := 1, 1
	for now := start; now.Before(start.Add(3650 * day)); now = now.Add(day) {
		if err := accepted(ring.serving, ring.bundle(), now); err != nil {
			t.Fatalf("on %s: %v", now, err)
		}
		why := ring.check(names, now)
		if why == "" {
			continue
		}
		next := following(t, ring, why, now)
		leaves++
		if why == reasonAuthorityDue {
			authorities++
		}
		for _, err := range []error{accepted(next.serving, ring.bundle(), now), accepted(ring.serving, next.bundle(), now)} {
			if err != nil {
				t.Fatalf("on %s, renewed because %s: %v", now, why, err)
			}
		}
		ring = next
		if trusted, shown := len(ring.authority.Certificate), len(ring.serving.Certificate); trusted > 2 || shown > 2 {
			t.Fatalf("on %s %d authorities are trusted and %d certificates shown", now, trusted, shown)
		}
	}
	if leaves < 55 || authorities < 14 {
		t.Errorf("%d certificates and %d authorities in ten years", leaves, authorities)
	}
}

func TestRenew_ManyTimesByHand(t *testing.T) {
	var rings []*keyring
	var last *keyring
	for range 5 {
		last = following(t, last, reasonAbsent, start)
		rings = append(rings, last)
	}
	for i, ring := range rings {
		if err := accepted(ring.serving, last.bundle(), start); err != nil {
			t.Errorf("certificate %d, last bundle: %v", i, err)
		}
		if err := accepted(last.serving, ring.bundle(), start); err != nil {
			t.Errorf("last certificate, bundle %d: %v", i, err)
		}
	}
}

// TestRenew_WhereTheSecretIsResetAgainAndAgain, as a tool does that wants it empty:
// what is shown and trusted stays of a size that callers accept.
func TestRenew_WhereTheSecretIsResetAgainAndAgain(t *testing.T) {
	var before, last *keyring
	for range 150 {
		before, last = last, following(t, last, reasonAbsent, start)
	}
	for trust, bundle := range map[string][]byte{"last": last.bundle(), "the one before": before.bundle()} {
		if err := accepted(last.serving, bundle, start); err != nil {
			t.Errorf("last certificate, bundle %s: %v", trust, err)
		}
	}
	if err := accepted(before.serving, last.bundle(), start); err != nil {
		t.Errorf("certificate before, last bundle: %v", err)
	}
	if trusted, shown := len(last.authority.Certificate), len(last.serving.Certificate); trusted > 1+maxOlder || shown > 1+maxOlder {
		t.Errorf("%d authorities are trusted and %d certificates shown", trusted, shown)
	}
}

func TestRenew_ForgetsWhatHasExpired(t *testing.T) {
	before := following(t, nil, reasonAbsent, start)
	now := start.Add(authorityValidity + day)
	after := following(t, before, reasonAuthorityDue, now)
	if err := accepted(after.serving, after.bundle(), now); err != nil {
		t.Error(err)
	}
	if trusted, shown := len(after.authority.Certificate), len(after.serving.Certificate); trusted != 1 || shown != 1 {
		t.Errorf("%d authorities are trusted and %d certificates shown, want one each", trusted, shown)
	}
}

// TestAuthority_RenewedWithItsKey is what cert-manager does with an authority whose
// key is never rotated: either certificate of it accepts what the other has signed.
func TestAuthority_RenewedWithItsKey(t *testing.T) {
	now := start.Add(40 * day)
	before, err := newAuthority(start)
	if err != nil {
		t.Fatal(err)
	}
	template, _, err := prepare(authorityName, now, authorityValidity)
	if err != nil {
		t.Fatal(err)
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	after, err := sign(template, template, before.PrivateKey.(crypto.Signer), before.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for signer, authority := range map[string]*tls.Certificate{"before": before, "after": after} {
		serving, err := issue(authority, now, names)
		if err != nil {
			t.Fatal(err)
		}
		for trust, trusted := range map[string]*tls.Certificate{"before": before, "after": after} {
			if err := accepted(serving, encodeCertificates(trusted.Certificate), now); err != nil {
				t.Errorf("signed %s, trusted %s: %v", signer, trust, err)
			}
		}
	}
}

func TestDecode(t *testing.T) {
	ring := following(t, following(t, nil, reasonAbsent, start), reasonAuthorityDue, start)
	other := following(t, nil, reasonAbsent, start)
	data := func(k *keyring) map[string][]byte {
		t.Helper()
		data, err := k.encode()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, tc := range map[string]struct {
		replace map[string][]byte
		want    string
	}{
		"as encoded":                   {nil, ""},
		"without the authority's key":  {map[string][]byte{authorityKeyKey: nil}, "ca.key"},
		"with another authority's key": {map[string][]byte{authorityKeyKey: data(other)[authorityKeyKey]}, "ca.key"},
		"half a certificate":           {map[string][]byte{CertFile: data(ring)[CertFile][:100]}, "tls.crt"},
		"with another one's key":       {map[string][]byte{KeyFile: data(other)[KeyFile]}, "tls.key"},
		"signed by another authority": {map[string][]byte{
			CertFile: data(other)[CertFile], KeyFile: data(other)[KeyFile],
		}, "is not signed by"},
	} {
		t.Run(name, func(t *testing.T) {
			stored := data(ring)
			maps.Copy(stored, tc.replace)
			decoded, err := decode(stored)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want one about %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for key, value := range data(decoded) {
				if string(value) != string(stored[key]) {
					t.Errorf("%s is not the same any more", key)
				}
			}
		})
	}
}
