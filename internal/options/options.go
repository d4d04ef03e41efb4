// Package options holds the flags that the programs of nodegate share: how they
// log, where they serve, and how they reach the API server.
package options

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Off is the address of an endpoint that is not served.
const Off = "0"

// Formats of the log.
const (
	formatText = "text"
	formatJSON = "json"
)

// Common are the options that a program has besides its own.
type Common struct {
	Kubeconfig     string
	HealthAddress  string
	MetricsAddress string
	LogFormat      string
	LogLevel       string
}

// New returns the defaults, with the addresses that are the program's own.
func New(health, metrics string) Common {
	return Common{HealthAddress: health, MetricsAddress: metrics, LogFormat: formatText, LogLevel: "info"}
}

// AddFlags adds the flags, with the fields as their defaults.
func (c *Common) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig `file` (default: the pod's service account)")
	flags.StringVar(&c.HealthAddress, "health-address", c.HealthAddress, "`address` of /healthz and /readyz; 0 serves neither")
	flags.StringVar(&c.MetricsAddress, "metrics-address", c.MetricsAddress, "`address` of /metrics; 0 does not serve it")
	flags.StringVar(&c.LogFormat, "log-format", c.LogFormat, "`format` of the log: text or json")
	flags.StringVar(&c.LogLevel, "log-level", c.LogLevel, "`level` from which on is logged: debug, info, warn or error")
}

// Validate returns every fault of the flags.
func (c *Common) Validate() error {
	var faults []error
	if c.HealthAddress != Off {
		faults = append(faults, ValidateAddress("--health-address", c.HealthAddress))
	}
	if c.MetricsAddress != Off {
		faults = append(faults, ValidateAddress("--metrics-address", c.MetricsAddress))
	}
	_, err := c.handler(io.Discard)
	return errors.Join(append(faults, err)...)
}

// ValidateAddress returns an error that names the flag unless its value can be
// listened on.
func ValidateAddress(flag, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s is %q, no host:port: %w", flag, address, err)
	}
	return nil
}

// Logger returns the logger that was asked for, to which client-go logs as well.
func (c *Common) Logger(to io.Writer) (*slog.Logger, error) {
	handler, err := c.handler(to)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(logr.FromSlogHandler(handler))
	return slog.New(handler), nil
}

func (c *Common) handler(to io.Writer) (slog.Handler, error) {
	var level slog.Level
	var faults []error
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		faults = append(faults, fmt.Errorf("--log-level is %q: %w", c.LogLevel, err))
	}
	options := &slog.HandlerOptions{Level: level}
	switch c.LogFormat {
	case formatText:
		return slog.NewTextHandler(to, options), errors.Join(faults...)
	case formatJSON:
		return slog.NewJSONHandler(to, options), errors.Join(faults...)
	}
	return nil, errors.Join(append(faults, fmt.Errorf("--log-format is %q, neither %s nor %s", c.LogFormat, formatText, formatJSON))...)
}

// ClientConfig returns how the program, which names itself, reaches the API
// server.
func (c *Common) ClientConfig(program string) (*rest.Config, error) {
	config, err := c.clientConfig()
	if err != nil {
		return nil, err
	}
	return rest.AddUserAgent(config, program), nil
}

func (c *Common) clientConfig() (*rest.Config, error) {
	if c.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the pod's service account (outside a pod, give --kubeconfig): %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading --kubeconfig: %w", err)
	}
	return config, nil
}
