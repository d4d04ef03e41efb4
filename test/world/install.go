//go:build unix

package world

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// install creates all that the gate needs but admission.
func (w *World) install(ctx context.Context) error {
	config := "apiVersion: " + gate.APIVersion + "\nkind: " + gate.Kind + "\n"
	if err := os.WriteFile(w.configFile(), []byte(config), 0o600); err != nil {
		return fmt.Errorf("writing configuration: %w", err)
	}
	api, err := client.New(w.cluster.Admin, client.Options{})
	if err != nil {
		return fmt.Errorf("creating client: %w", err)
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}},
		&corev1.ServiceAccount{ObjectMeta: namespaced(gate.ControllerAccount)},
		&corev1.ServiceAccount{ObjectMeta: namespaced(gate.AgentAccount)},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: gate.ConfigMapName, Namespace: gate.Namespace,
				Annotations: map[string]string{gate.InstalledAtAnnotation: time.Now().UTC().Format(gate.TimeLayout)},
			},
			Data: map[string]string{gate.ConfigMapKey: config},
		},
		agentDaemonSet(),
	}
	for _, object := range append(objects, rights()...) {
		if err := api.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %q: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// configFile is the configuration of the controller. It names no checks: these
// are the agents', and where they look depends on the node.
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

func namespaced(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: gate.Namespace}
}

// rights are what controller and agent may do, and nothing else.
func rights() []client.Object {
	rule := func(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
	}
	nodes := []rbacv1.PolicyRule{rule("", "nodes", nil, "get", "list", "watch", "patch")}
	var objects []client.Object
	for _, account := range []string{gate.ControllerAccount, gate.AgentAccount} {
		meta := metav1.ObjectMeta{Name: account}
		objects = append(objects,
			&rbacv1.ClusterRole{ObjectMeta: meta, Rules: nodes},
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subject(account),
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account}})
	}
	const leases = "coordination.k8s.io"
	return append(objects,
		&rbacv1.Role{ObjectMeta: namespaced(gate.ControllerAccount), Rules: []rbacv1.PolicyRule{
			rule("", "pods", nil, "list", "watch"),
			rule("apps", "daemonsets", nil, "list", "watch"),
			rule("", "configmaps", []string{gate.ConfigMapName}, "get"),
			rule(leases, "leases", nil, "create"),
			rule(leases, "leases", []string{controllerLease}, "get", "update"),
			rule("", "events", nil, "create", "patch"),
			rule("events.k8s.io", "events", nil, "create", "patch"),
		}},
		&rbacv1.RoleBinding{ObjectMeta: namespaced(gate.ControllerAccount), Subjects: subject(gate.ControllerAccount),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: gate.ControllerAccount}})
}

func subject(account string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: gate.Namespace, Name: account}}
}

// agentDaemonSet runs an agent on every node that is not exempt. The token's
// volume is what the ServiceAccount admission would add, which tests do without:
// a kubelet may ask for no token that its pod does not mount.
func agentDaemonSet() *appsv1.DaemonSet {
	labels := map[string]string{gate.AgentLabel: gate.AgentLabelValue}
	return &appsv1.DaemonSet{
		ObjectMeta: namespaced(gate.AgentAccount),
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					ServiceAccountName: gate.AgentAccount,
					HostNetwork:        true,
					Tolerations:        []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Affinity:           &corev1.Affinity{NodeAffinity: notExempt()},
					Containers: []corev1.Container{{
						Name: "agent", Image: "nodegate-agent",
						VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
					}},
					Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{
						Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
							ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"},
						}}},
					}}},
				},
			},
		},
	}
}

func notExempt() *corev1.NodeAffinity {
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: gate.ExemptLabel, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"true"}},
		}}},
	}}
}
