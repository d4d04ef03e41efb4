package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nodegate/nodegate/agent"
	"github.com/nodegate/nodegate/gate"
)

// Options are what the command can be told. What the agent does stands in the
// configuration; flags are wiring.
type Options struct {
	Config         string
	NodeName       string
	PodUID         string
	Kubeconfig     string
	BootIDPath     string
	HealthAddress  string
	MetricsAddress string
	LogFormat      string
	LogLevel       string
}

// Formats of the log.
const (
	formatText = "text"
	formatJSON = "json"
)

// NewOptions returns the defaults. The environment is asked only for what the
// downward API gives.
func NewOptions(getenv func(string) string) *Options {
	return &Options{
		Config:         "/etc/nodegate/" + gate.ConfigMapKey,
		NodeName:       getenv("NODE_NAME"),
		PodUID:         getenv("POD_UID"),
		BootIDPath:     agent.DefaultBootIDPath,
		HealthAddress:  "127.0.0.1:9808",
		MetricsAddress: ":9809",
		LogFormat:      formatText,
		LogLevel:       "info",
	}
}

// AddFlags adds the flags, with the fields as their defaults. Those that come from
// the environment are not shown in the help.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&o.Config, "config", o.Config, "configuration `file`")
	flags.StringVar(&o.NodeName, "node-name", o.NodeName, "`name` of this node (default: the environment's NODE_NAME)")
	flags.StringVar(&o.PodUID, "pod-uid", o.PodUID, "`UID` of this pod, shown in heartbeats (default: the environment's POD_UID)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig `file` (default: the pod's service account)")
	flags.StringVar(&o.BootIDPath, "boot-id-path", o.BootIDPath, "`file` with the id of the running boot, as the kubelet reads it")
	flags.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, "`address` of /healthz and /readyz; 0 serves neither")
	flags.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "`address` of /metrics; 0 does not serve it")
	flags.StringVar(&o.LogFormat, "log-format", o.LogFormat, "`format` of the log: text or json")
	flags.StringVar(&o.LogLevel, "log-level", o.LogLevel, "`level` from which on is logged: debug, info, warn or error")
	for _, name := range []string{"node-name", "pod-uid"} {
		flags.Lookup(name).DefValue = ""
	}
}

// Validate returns every fault of the flags.
func (o *Options) Validate() error {
	var faults []error
	if o.NodeName == "" {
		faults = append(faults, errors.New("--node-name is empty, and so is NODE_NAME in the environment"))
	}
	if o.BootIDPath == "" {
		faults = append(faults, errors.New("--boot-id-path is empty"))
	}
	faults = append(faults, validateAddress("--health-address", o.HealthAddress),
		validateAddress("--metrics-address", o.MetricsAddress))
	if o.LogFormat != formatText && o.LogFormat != formatJSON {
		faults = append(faults, fmt.Errorf("--log-format is %q, neither %s nor %s", o.LogFormat, formatText, formatJSON))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		faults = append(faults, fmt.Errorf("--log-level is %q: %w", o.LogLevel, err))
	}
	return errors.Join(faults...)
}

// off is the address of an endpoint that is not served.
const off = "0"

func validateAddress(flag, address string) error {
	if address == off {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s is %q, no host:port: %w", flag, address, err)
	}
	return nil
}

// Run runs the agent and its endpoints until the context ends.
func (o *Options) Run(ctx context.Context, logs io.Writer) error {
	log, err := o.logger(logs)
	if err != nil {
		return err
	}
	klog.SetLogger(logr.FromSlogHandler(log.Handler()))
	gates, err := o.gates()
	if err != nil {
		return err
	}
	config, err := o.clientConfig()
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Options{
		Config:     config,
		NodeName:   o.NodeName,
		PodUID:     types.UID(o.PodUID),
		BootIDPath: o.BootIDPath,
		Gates:      gates,
		Log:        log,
	})
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := a.RegisterMetrics(registry); err != nil {
		return err
	}
	return serve(ctx, log, a.Start,
		server{"health", o.HealthAddress, healthHandler(a)},
		server{"metrics", o.MetricsAddress, metricsHandler(registry)})
}

func (o *Options) logger(to io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return nil, fmt.Errorf("reading --log-level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if o.LogFormat == formatJSON {
		return slog.New(slog.NewJSONHandler(to, options)), nil
	}
	return slog.New(slog.NewTextHandler(to, options)), nil
}

// gates are those of the configuration that this agent runs.
func (o *Options) gates() ([]agent.Gate, error) {
	cfg, err := gate.LoadConfiguration(o.Config)
	if err != nil {
		return nil, err
	}
	var gates []agent.Gate
	var others []string
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		if len(g.Checks) == 0 || !g.Agent.Own() {
			others = append(others, g.Name)
			continue
		}
		checked, err := agent.FromConfiguration(g)
		if err != nil {
			return nil, fmt.Errorf("configuration %s: %w", o.Config, err)
		}
		gates = append(gates, checked)
	}
	if len(gates) == 0 {
		return nil, fmt.Errorf("configuration %s: there is nothing to do: none of the gates (%s) has checks and the agent %s/%s",
			o.Config, strings.Join(others, ", "), gate.Namespace, gate.AgentAccount)
	}
	return gates, nil
}

func (o *Options) clientConfig() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the pod's service account (outside a pod, give --kubeconfig): %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading --kubeconfig: %w", err)
	}
	return config, nil
}
