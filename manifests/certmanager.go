package manifests

import (
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

const (
	// WebhookCertManagerSecret is where cert-manager puts the webhook's certificate,
	// to be mounted by the controller.
	WebhookCertManagerSecret = "nodegate-webhook-serving"

	selfSignedName = "nodegate-webhook-self-signed"
	authorityName  = "nodegate-webhook-authority"

	authorityDuration = 5 * 365 * 24 * time.Hour
	servingDuration   = 90 * 24 * time.Hour
)

// WebhookWithCertManager renders the registration of the webhook, and what has
// cert-manager make and renew its certificate and have API servers trust it.
func WebhookWithCertManager(cfg *gate.Configuration) ([]*unstructured.Unstructured, error) {
	registration, err := Webhook(cfg, nil)
	if err != nil {
		return nil, err
	}
	registration.SetAnnotations(map[string]string{
		certmanagerv1.WantInjectAnnotation: gate.Namespace + "/" + WebhookCertManagerSecret,
	})
	objects, err := Certificates()
	if err != nil {
		return nil, err
	}
	return append(objects, registration), nil
}

// Certificates renders the webhook's certificate and what cert-manager issues it
// by. All of that is for this one name in this one namespace.
func Certificates() ([]*unstructured.Unstructured, error) {
	return toUnstructured([]runtime.Object{
		issuer(selfSignedName, certmanagerv1.IssuerConfig{SelfSigned: &certmanagerv1.SelfSignedIssuer{}}),
		authorityCertificate(),
		issuer(authorityName, certmanagerv1.IssuerConfig{CA: &certmanagerv1.CAIssuer{SecretName: authorityName}}),
		servingCertificate(),
	})
}

func issuer(name string, config certmanagerv1.IssuerConfig) *certmanagerv1.Issuer {
	return &certmanagerv1.Issuer{
		TypeMeta:   certManagerType(certmanagerv1.IssuerKind),
		ObjectMeta: certManagerMeta(name),
		Spec:       certmanagerv1.IssuerSpec{IssuerConfig: config},
	}
}

// authorityCertificate keeps its key when it is renewed: what was signed before is
// then accepted by who trusts the new one, and the other way round, whichever of
// the controller's mount and the registration is brought up to date first.
func authorityCertificate() *certmanagerv1.Certificate {
	return certificate(authorityName, certmanagerv1.CertificateSpec{
		CommonName: authorityName,
		IsCA:       true,
		Duration:   &metav1.Duration{Duration: authorityDuration},
		Usages:     []certmanagerv1.KeyUsage{certmanagerv1.UsageCertSign},
		IssuerRef:  issuerRef(selfSignedName),
		PrivateKey: privateKey(certmanagerv1.RotationPolicyNever),
	})
}

func servingCertificate() *certmanagerv1.Certificate {
	return certificate(WebhookCertManagerSecret, certmanagerv1.CertificateSpec{
		DNSNames:   []string{gate.ControllerService + "." + gate.Namespace + ".svc"},
		Duration:   &metav1.Duration{Duration: servingDuration},
		Usages:     []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth},
		IssuerRef:  issuerRef(authorityName),
		PrivateKey: privateKey(certmanagerv1.RotationPolicyAlways),
	})
}

// certificate is kept in a Secret of its own name.
func certificate(name string, spec certmanagerv1.CertificateSpec) *certmanagerv1.Certificate {
	spec.SecretName = name
	return &certmanagerv1.Certificate{
		TypeMeta:   certManagerType(certmanagerv1.CertificateKind),
		ObjectMeta: certManagerMeta(name),
		Spec:       spec,
	}
}

func issuerRef(name string) cmmeta.IssuerReference {
	return cmmeta.IssuerReference{
		Name: name, Kind: certmanagerv1.IssuerKind, Group: certmanagerv1.SchemeGroupVersion.Group,
	}
}

func privateKey(policy certmanagerv1.PrivateKeyRotationPolicy) *certmanagerv1.CertificatePrivateKey {
	return &certmanagerv1.CertificatePrivateKey{Algorithm: certmanagerv1.ECDSAKeyAlgorithm, Size: 256, RotationPolicy: policy}
}

func certManagerType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: certmanagerv1.SchemeGroupVersion.String(), Kind: kind}
}

func certManagerMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:      name,
		Namespace: gate.Namespace,
		Labels: map[string]string{
			"app.kubernetes.io/name":    "nodegate",
			"app.kubernetes.io/part-of": "nodegate",
		},
	}
}
