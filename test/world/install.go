//go:build unix

package world

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// defaultConfig is what is installed if nothing else is asked for.
const defaultConfig = `apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - socket: {path: /run/example/mesh.sock}
  - conflist: {pluginType: mesh-cni}
`

// install applies what an installation has besides admission. Controllers that would
// make pods of the Deployment do not run: the controller is a process here.
func (w *World) install(ctx context.Context) error {
	if err := os.WriteFile(w.configFile(), []byte(w.options.Config), 0o600); err != nil {
		return fmt.Errorf("writing configuration: %w", err)
	}
	objects, err := manifests.Workloads(manifests.Options{Config: w.options.Config})
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := w.makeNamespace(ctx, object.GetNamespace()); err != nil {
			return err
		}
		switch object.GetKind() {
		case "ConfigMap":
			object.SetAnnotations(map[string]string{gate.InstalledAtAnnotation: time.Now().UTC().Format(gate.TimeLayout)})
		case "DaemonSet":
			if err := mountToken(object); err != nil {
				return err
			}
		}
	}
	return w.cluster.Apply(ctx, objects)
}

// makeNamespace makes the namespace of a gated agent, which was there before
// nodegate was.
func (w *World) makeNamespace(ctx context.Context, name string) error {
	if name == "" || name == gate.Namespace {
		return nil
	}
	_, err := w.Admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making namespace %q: %w", name, err)
	}
	return nil
}

// mountToken adds the volume that the ServiceAccount admission would, which tests
// do without: a kubelet may ask for no token that its pod does not mount.
func mountToken(daemonSet *unstructured.Unstructured) error {
	path := []string{"spec", "template", "spec", "volumes"}
	volumes, _, err := unstructured.NestedSlice(daemonSet.Object, path...)
	if err != nil {
		return err
	}
	volumes = append(volumes, map[string]any{"name": "token", "projected": map[string]any{
		"sources": []any{map[string]any{"serviceAccountToken": map[string]any{"path": "token"}}},
	}})
	return unstructured.SetNestedSlice(daemonSet.Object, volumes, path...)
}

// configFile is the configuration of the controller.
func (w *World) configFile() string { return filepath.Join(w.options.Dir, "config.yaml") }

// installAdmission applies the policies and the registration of the webhook, if
// there is one, and returns when they are in force.
func (w *World) installAdmission(ctx context.Context) error {
	objects, err := manifests.ValidationPolicies(w.cfg)
	if err != nil {
		return err
	}
	mutation, err := w.mutation()
	if err != nil {
		return err
	}
	if err := w.cluster.Apply(ctx, append(mutation, objects...)); err != nil {
		return err
	}
	return w.cluster.AwaitPolicies(ctx, w.cfg)
}

func (w *World) mutation() ([]*unstructured.Unstructured, error) {
	if w.options.Mutation == Policy {
		return manifests.MutationPolicies(w.cfg, manifests.MutationV1)
	}
	url := "https://" + w.controller.webhook + gate.WebhookPath
	registration, err := manifests.Webhook(w.cfg, &admissionregistrationv1.WebhookClientConfig{
		URL: &url, CABundle: w.controller.pair.CA,
	})
	return []*unstructured.Unstructured{registration}, err
}
