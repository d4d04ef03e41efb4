package manifests

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Layer is a part of an installation that is applied, or left out, as a whole.
type Layer string

// The layers. Each can do without those behind it.
const (
	LayerNamespace Layer = "namespace"
	// LayerRBAC is the service accounts, what they may do, and how the API server
	// queues their requests.
	LayerRBAC   Layer = "rbac"
	LayerConfig Layer = "config"
	// LayerController is the Deployment, and how it is reached.
	LayerController Layer = "controller"
	LayerAgent      Layer = "agent"
	// LayerAdmission is the policies, or the webhook's registration, which changes
	// Nodes: it comes when all that can open them is there.
	LayerAdmission Layer = "admission"
)

// Layers lists them in the order in which they are applied.
func Layers() []Layer {
	return []Layer{LayerNamespace, LayerRBAC, LayerConfig, LayerController, LayerAgent, LayerAdmission}
}

// LayerOf is that of an object that is rendered here.
func LayerOf(object *unstructured.Unstructured) Layer {
	kinds := map[Layer][]string{
		LayerNamespace:  {"Namespace"},
		LayerRBAC:       {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "FlowSchema"},
		LayerConfig:     {"ConfigMap"},
		LayerController: {"Deployment", "PodDisruptionBudget", "Service", "Issuer", "Certificate"},
		LayerAgent:      {"DaemonSet"},
	}
	if object.GroupVersionKind().Group == admissionregistrationv1.GroupName {
		return LayerAdmission
	}
	for layer, of := range kinds {
		if slices.Contains(of, object.GetKind()) {
			return layer
		}
	}
	return ""
}
