package agent_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/agent"
	"github.com/nodegate/nodegate/gate"
)

// identity is a check of one's own: whether this agent has its certificate.
type identity struct{ issued func() bool }

func (i identity) Check(context.Context, *corev1.Node) error {
	if !i.issued() {
		return fmt.Errorf("no certificate was issued yet")
	}
	return nil
}

// Another project's agent opens its own gate: it serves while its socket accepts
// and it has an identity.
func Example() {
	mesh, err := agent.FromConfiguration(&gate.Gate{
		Name:   "mesh",
		Taint:  gate.Taint{Key: "mesh.example.com/agent-not-ready"},
		Agent:  gate.Agent{Namespace: "mesh-system", ServiceAccount: "mesh-agent"},
		Checks: []gate.Check{{Socket: &gate.SocketCheck{Path: "/run/mesh/cni.sock"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mesh.Probes = append(mesh.Probes, agent.Probe{
		Name:    "identity",
		Check:   identity{issued: func() bool { return true }},
		Dwell:   2 * time.Minute, // a certificate is renewed while the old one is valid
		Timeout: time.Second,
	})

	config := &rest.Config{Host: "https://localhost:6443"} // ctrl.GetConfigOrDie() in a pod
	a, err := agent.New(agent.Options{
		Config:   config,
		NodeName: "node-a", // the environment's NODE_NAME, by the downward API
		Gates:    []agent.Gate{mesh},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := a.SetupWithManager(mgr); err != nil {
		fmt.Println(err)
		return
	}
	// mgr.Start(ctrl.SetupSignalHandler()) runs it.
	ready, reasons := a.Ready()
	fmt.Print(ready, " ", reasons)
	// Output: false starting
}
