package manifests

import (
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

const (
	nodeCritical    = "system-node-critical"
	clusterCritical = "system-cluster-critical"

	// enforceLevel is the Pod Security level that a namespace enforces.
	enforceLevel = "pod-security.kubernetes.io/enforce"
)

func namespaceObjects() []noted {
	meta := namedMeta("", gate.Namespace)
	meta.Labels[enforceLevel] = "privileged"
	return []noted{{&corev1.Namespace{TypeMeta: coreType("Namespace"), ObjectMeta: meta}, []note{
		{"metadata.labels", "The agent needs the host's network and directories, and a level is for a whole\n" +
			"namespace. The controller's pods meet restricted by themselves."},
	}}}
}

func configMap(config string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   coreType("ConfigMap"),
		ObjectMeta: namedMeta(gate.Namespace, gate.ConfigMapName),
		Data:       map[string]string{gate.ConfigMapKey: config},
	}
}

func serviceAccount(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     coreType("ServiceAccount"),
		ObjectMeta:                   namedMeta(gate.Namespace, name),
		AutomountServiceAccountToken: new(false),
	}
}

// flowSchema keeps heartbeats and the guard's Lease from waiting behind whatever
// else runs as a service account, with which they would share a priority level.
func flowSchema() noted {
	subject := func(account string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{
			Kind:           flowcontrolv1.SubjectKindServiceAccount,
			ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: gate.Namespace, Name: account},
		}
	}
	return noted{&flowcontrolv1.FlowSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: flowcontrolv1.SchemeGroupVersion.String(), Kind: "FlowSchema"},
		ObjectMeta: namedMeta("", "nodegate"),
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-high"},
			MatchingPrecedence:         1000,
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{subject(gate.ControllerAccount), subject(gate.AgentAccount)},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					APIGroups: []string{"", "coordination.k8s.io"}, Resources: []string{"nodes", "leases"},
					ClusterScope: true, Namespaces: []string{gate.Namespace},
					Verbs: []string{"create", "get", "list", "patch", "update", "watch"},
				}},
			}},
		},
	}, []note{
		{"spec.distinguisherMethod", "Many agents do not hold up the controller."},
		{"spec.matchingPrecedence", "Before service-accounts (9000), whose level all other workloads share."},
		{"spec.priorityLevelConfiguration", "That of the control plane's own service accounts, which every cluster has."},
	}}
}

func coreType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: kind}
}

// namedMeta is that of an object of the installation. Its name is its component's.
func namedMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace,
		Name:      name,
		Labels:    map[string]string{"app.kubernetes.io/name": "nodegate", "app.kubernetes.io/part-of": "nodegate"},
	}
}
