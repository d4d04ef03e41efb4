package main

//go:generate go test -run TestHelp . -update

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodegate/nodegate/gate"
)

// Options are what the command can be told. What the gates are stands in the
// configuration; flags are wiring.
type Options struct {
	Config            string
	Kubeconfig        string
	Namespace         string
	LeaderElect       bool
	Webhook           bool
	WebhookAddress    string
	WebhookCertSource string
	WebhookCertDir    string
	HealthAddress     string
	MetricsAddress    string
	LogFormat         string
	LogLevel          string
}

// Formats of the log.
const (
	formatText = "text"
	formatJSON = "json"
)

// Sources of the webhook's certificate.
const (
	sourceSelfManaged = "self-managed"
	sourceFiles       = "files"
)

// off is the address of an endpoint that is not served.
const off = "0"

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Config:            "/etc/nodegate/" + gate.ConfigMapKey,
		Namespace:         gate.Namespace,
		LeaderElect:       true,
		WebhookAddress:    ":9443",
		WebhookCertSource: sourceSelfManaged,
		HealthAddress:     ":8081",
		MetricsAddress:    ":8080",
		LogFormat:         formatText,
		LogLevel:          "info",
	}
}

// AddFlags adds the flags, with the fields as their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&o.Config, "config", o.Config, "configuration `file`; if empty, the default gate is enforced")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig `file` (default: the pod's service account)")
	flags.StringVar(&o.Namespace, "namespace", o.Namespace, "`namespace` of the controller's Lease and of the configuration's ConfigMap")
	flags.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "guard only while holding the Lease; needed if there are several replicas")
	flags.BoolVar(&o.Webhook, "webhook", o.Webhook, "serve the mutation over HTTPS")
	flags.StringVar(&o.WebhookAddress, "webhook-address", o.WebhookAddress, "`address` of the webhook")
	flags.StringVar(&o.WebhookCertSource, "webhook-cert-source", o.WebhookCertSource,
		"`source` of the webhook's certificate: self-managed (made, renewed and registered here) or files (renewed by others, such as cert-manager)")
	flags.StringVar(&o.WebhookCertDir, "webhook-cert-dir", o.WebhookCertDir, "`directory` with tls.crt and tls.key for the source files, read again when they change")
	flags.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, "`address` of /healthz and /readyz; 0 serves neither")
	flags.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "`address` of /metrics; 0 does not serve it")
	flags.StringVar(&o.LogFormat, "log-format", o.LogFormat, "`format` of the log: text or json")
	flags.StringVar(&o.LogLevel, "log-level", o.LogLevel, "`level` from which on is logged: debug, info, warn or error")
}

// Validate returns every fault of the flags.
func (o *Options) Validate() error {
	var faults []error
	for _, message := range validation.IsDNS1123Label(o.Namespace) {
		faults = append(faults, fmt.Errorf("--namespace is %q: %s", o.Namespace, message))
	}
	if o.Webhook {
		faults = append(faults, validateAddress("--webhook-address", o.WebhookAddress), o.validateCertificate())
	}
	for flag, address := range map[string]string{"--health-address": o.HealthAddress, "--metrics-address": o.MetricsAddress} {
		if address != off {
			faults = append(faults, validateAddress(flag, address))
		}
	}
	if o.LogFormat != formatText && o.LogFormat != formatJSON {
		faults = append(faults, fmt.Errorf("--log-format is %q, neither %s nor %s", o.LogFormat, formatText, formatJSON))
	}
	if _, err := o.level(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
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

func validateAddress(flag, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s is %q, no host:port: %w", flag, address, err)
	}
	return nil
}

func (o *Options) level() (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return level, fmt.Errorf("--log-level is %q: %w", o.LogLevel, err)
	}
	return level, nil
}

func (o *Options) logger(to io.Writer) (*slog.Logger, error) {
	level, err := o.level()
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: level}
	if o.LogFormat == formatJSON {
		return slog.New(slog.NewJSONHandler(to, options)), nil
	}
	return slog.New(slog.NewTextHandler(to, options)), nil
}
