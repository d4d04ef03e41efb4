package main

//go:generate go test -run TestHelp . -update

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/options"
)

// Options are what the command can be told. What the gates are stands in the
// configuration; flags are wiring.
type Options struct {
	options.Common

	Config            string
	Namespace         string
	LeaderElect       bool
	Webhook           bool
	WebhookAddress    string
	WebhookCertSource string
	WebhookCertDir    string
}

// Sources of the webhook's certificate.
const (
	sourceSelfManaged = "self-managed"
	sourceFiles       = "files"
)

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Common:            options.New(":8081", ":8080"),
		Config:            "/etc/nodegate/" + gate.ConfigMapKey,
		Namespace:         gate.Namespace,
		LeaderElect:       true,
		WebhookAddress:    ":9443",
		WebhookCertSource: sourceSelfManaged,
	}
}

// AddFlags adds the flags, with the fields as their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&o.Config, "config", o.Config, "configuration `file`; if empty, the default gate is enforced")
	flags.StringVar(&o.Namespace, "namespace", o.Namespace, "`namespace` of the controller's Lease and of the configuration's ConfigMap")
	flags.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "guard only while holding the Lease; needed if there are several replicas")
	flags.BoolVar(&o.Webhook, "webhook", o.Webhook, "serve the mutation over HTTPS")
	flags.StringVar(&o.WebhookAddress, "webhook-address", o.WebhookAddress, "`address` of the webhook")
	flags.StringVar(&o.WebhookCertSource, "webhook-cert-source", o.WebhookCertSource,
		"`source` of the webhook's certificate: self-managed (made, renewed and registered here) or files (renewed by others, such as cert-manager)")
	flags.StringVar(&o.WebhookCertDir, "webhook-cert-dir", o.WebhookCertDir, "`directory` with tls.crt and tls.key for the source files, read again when they change")
	o.Common.AddFlags(flags)
}

// Validate returns every fault of the flags.
func (o *Options) Validate() error {
	var faults []error
	for _, message := range validation.IsDNS1123Label(o.Namespace) {
		faults = append(faults, fmt.Errorf("--namespace is %q: %s", o.Namespace, message))
	}
	faults = append(faults, options.ValidateAddress("--webhook-address", o.WebhookAddress), o.validateCertificate())
	return errors.Join(append(faults, o.Common.Validate())...)
}

func (o *Options) validateCertificate() error {
	switch o.WebhookCertSource {
	case sourceSelfManaged:
		if o.WebhookCertDir != "" {
			return fmt.Errorf("--webhook-cert-dir is %q, but --webhook-cert-source is %s, which reads no files; did you mean %s?",
				o.WebhookCertDir, sourceSelfManaged, sourceFiles)
		}
	case sourceFiles:
		if o.WebhookCertDir == "" {
			return fmt.Errorf("--webhook-cert-dir is empty: --webhook-cert-source=%s needs it", sourceFiles)
		}
	default:
		return fmt.Errorf("--webhook-cert-source is %q, neither %s nor %s", o.WebhookCertSource, sourceSelfManaged, sourceFiles)
	}
	return nil
}
