//go:build linux

package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/e2e/machine"
)

// network is what every cluster of the lab has: the network and the mesh.
//
//go:embed network.yaml
var network string

// Lab is a running cluster. It ends with its sandbox.
type Lab struct {
	Kit *Kit
	// Config and Client are of a member of system:masters.
	Config *rest.Config
	Client kubernetes.Interface
	// Machines are switched off until somebody switches them on.
	Machines []*machine.Machine
	// Seen is what the API server's watches have shown.
	Seen *Seen

	control *controlPlane
	wires   machine.Network
}

// Start starts a control plane, and makes machines for it.
func Start(ctx context.Context, kit *Kit, names ...string) (*Lab, error) {
	l := &Lab{Kit: kit, control: &controlPlane{
		dir: filepath.Join(kit.Dir, "control-plane"), programs: kit.ControlPlane, logs: filepath.Join(kit.Logs, "control-plane"),
	}}
	l.wires = machine.Network{Bridge: "machines", Router: routerAddress, Prefix: machinePrefix, Service: serviceAddress}
	if err := l.wires.Up(ctx); err != nil {
		return nil, err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return nil, err
	}
	if err := l.control.start(ctx, names); err != nil {
		return nil, fmt.Errorf("starting the control plane: %w", err)
	}
	l.Config = l.control.identity("admin")
	var err error
	if l.Client, err = kubernetes.NewForConfig(l.Config); err != nil {
		return nil, err
	}
	if l.Seen, err = watch(ctx, l.Client); err != nil {
		return nil, err
	}
	for i, name := range names {
		m, err := l.newMachine(name, i+1)
		if err != nil {
			return nil, err
		}
		l.Machines = append(l.Machines, m)
	}
	return l, l.ApplyYAML(ctx, network)
}

func (l *Lab) newMachine(name string, number int) (*machine.Machine, error) {
	dir := filepath.Join(l.Kit.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cluster.WriteKubeconfig(l.control.identity("system:node:"+name), kubeconfig); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	images, err := filepath.Glob(filepath.Join(l.Kit.Images, "*.tar"))
	if err != nil {
		return nil, err
	}
	return machine.New(machine.Options{
		Name: name, Number: number, Dir: dir, Program: l.Kit.Program, Debian: l.Kit.Debian,
		Kubelet: filepath.Join(l.Kit.ControlPlane, "kubelet"),
		Images:  images, SandboxImage: "docker.io/library/standin:" + l.Kit.Revision,
		Kubeconfig: string(content), Network: l.wires, Cgroup: l.Kit.Cgroup,
	})
}

// Stop ends everything, and keeps logs if that is asked for.
func (l *Lab) Stop(ctx context.Context, keepLogs bool) error {
	var faults []error
	for _, m := range l.Machines {
		faults = append(faults, m.PowerOff())
		if target := filepath.Join(l.Kit.Logs, m.Name); keepLogs {
			faults = append(faults, os.RemoveAll(target), os.CopyFS(target, os.DirFS(m.Disk("/var/log"))))
		}
		faults = append(faults, os.RemoveAll(m.Dir))
	}
	return errors.Join(append(faults, l.control.stop(), l.wires.Down(ctx))...)
}

// StopAPIServer ends the API server, and StartAPIServer starts it again and returns
// when it is ready.
func (l *Lab) StopAPIServer() error { return l.control.apiServer.stop() }

// StartAPIServer undoes [Lab.StopAPIServer].
func (l *Lab) StartAPIServer(ctx context.Context) error {
	if err := l.control.apiServer.start(); err != nil {
		return err
	}
	return l.control.awaitAPIServer(ctx)
}

// ApplyYAML applies documents as a person with kubectl would.
func (l *Lab) ApplyYAML(ctx context.Context, documents string) error {
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(documents, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), object); err != nil {
			return fmt.Errorf("reading YAML: %w", err)
		}
		objects = append(objects, object)
	}
	return l.Apply(ctx, objects)
}

// Apply applies objects.
func (l *Lab) Apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	api, err := client.New(l.Config, client.Options{})
	if err != nil {
		return err
	}
	for _, object := range objects {
		err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
			err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner("e2e"), client.ForceOwnership)
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("applying %s %q: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Await waits until a condition holds, as [cluster.Await] does, and names it.
func (l *Lab) Await(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	if err := cluster.Await(ctx, condition); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}
