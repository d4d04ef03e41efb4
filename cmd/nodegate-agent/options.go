package main

//go:generate go test -run TestHelp . -update

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/agent"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/configfile"
	"github.com/nodegate/nodegate/internal/options"
)

// Options are what the command can be told. What the agent does stands in the
// configuration; flags are wiring.
type Options struct {
	options.Common

	Config     string
	NodeName   string
	PodUID     string
	BootIDPath string
	BootID     string
}

// defaultConfig is where the ConfigMap is mounted.
const defaultConfig = "/etc/nodegate/" + gate.ConfigMapKey

// NewOptions returns the defaults. The environment is asked only for what the
// downward API gives.
func NewOptions(getenv func(string) string) *Options {
	return &Options{
		Common:     options.New("127.0.0.1:9808", ":9809"),
		Config:     defaultConfig,
		NodeName:   getenv("NODE_NAME"),
		PodUID:     getenv("POD_UID"),
		BootIDPath: agent.DefaultBootIDPath,
	}
}

// AddFlags adds the flags, with the fields as their defaults. Those that come from
// the environment are not shown in the help.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&o.Config, "config", o.Config, "configuration `file`")
	flags.StringVar(&o.NodeName, "node-name", o.NodeName, "`name` of this node (default: the environment's NODE_NAME)")
	flags.StringVar(&o.PodUID, "pod-uid", o.PodUID, "`UID` of this pod, shown in heartbeats (default: the environment's POD_UID)")
	flags.StringVar(&o.BootIDPath, "boot-id-path", o.BootIDPath, "`file` with the id of the running boot, as the kubelet reads it")
	flags.StringVar(&o.BootID, "boot-id", o.BootID, "`id` of the running boot instead of a file's, for a Node that shows another than the kernel's; it must differ after every reboot")
	o.Common.AddFlags(flags)
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
	return errors.Join(append(faults, o.Common.Validate())...)
}

// Run runs the agent and its endpoints until the context ends.
func (o *Options) Run(ctx context.Context, logs io.Writer) error {
	log, err := o.Logger(logs)
	if err != nil {
		return err
	}
	file, err := configfile.Open(o.Config, log, nil)
	if err != nil {
		return err
	}
	gates, err := o.gates(file.Current())
	if err != nil {
		return err
	}
	agent.FollowSwitches(gates, file.Current)
	config, err := o.ClientConfig("nodegate-agent")
	if err != nil {
		return err
	}
	answering := agent.Options{
		Config:     config,
		NodeName:   o.NodeName,
		PodUID:     types.UID(o.PodUID),
		BootIDPath: o.BootIDPath,
		BootID:     o.BootID,
		Gates:      gates,
		Mode:       func() gate.Mode { return file.Current().Mode },
		Log:        log,
	}
	if cni := file.Current().CNI; cni != nil {
		answering.PodSocket = cni.Socket
	}
	a, err := agent.New(answering)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := a.RegisterMetrics(registry); err != nil {
		return err
	}
	return serve(ctx, log, with(file, a),
		server{name: "health", address: o.HealthAddress, handler: healthHandler(a)},
		server{name: "metrics", address: o.MetricsAddress, handler: metricsHandler(registry), limit: maxScrapers})
}

// gates are those of the configuration that this agent runs.
func (o *Options) gates(cfg *gate.Configuration) ([]agent.Gate, error) {
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

// with runs the agent, which obeys switches in the file for as long as it runs.
func with(file *configfile.File, a *agent.Agent) func(context.Context) error {
	return func(ctx context.Context) error {
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() { _ = file.Start(ctx) }) // ends with the context and without an error
		return a.Start(ctx)
	}
}
