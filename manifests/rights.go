package manifests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// Right is one thing that a service account may do, or a person who uses a command,
// and why it must.
type Right struct {
	// Role is the name of the Role or ClusterRole, and of its binding; or the command.
	Role string
	// Account is the service account, in [gate.Namespace]; empty for a person.
	Account string
	// Namespace is where the right holds; empty for what belongs to none.
	Namespace string
	Verb      string
	Group     string
	Resource  string
	// Name is that of the one object; empty for all.
	Name string
	Why  string
	// Sees: without it, a command says what it could not see.
	Sees bool
}

const (
	// webhookRole holds what the controller needs for a certificate of its own.
	webhookRole = "nodegate-webhook"
	// cniRole holds what the agent needs to answer the CNI plugin.
	cniRole = "nodegate-cni"
)

// Rights are all that controller and agent are granted where the mutation has this
// form. None is a wildcard, and none reads a Secret but by its name.
func Rights(cfg *gate.Configuration, mutation Mutation) []Right {
	rights := controllerRights(cfg)
	if mutation == ByWebhook {
		rights = append(rights, webhookRights()...)
	}
	rights = append(rights, agentRights(cfg)...)
	if cfg.CNI != nil && runsAgent(cfg) {
		rights = append(rights, cniRights()...)
	}
	return rights
}

// cniRights are of every pod, for RBAC knows none "of this node".
func cniRights() []Right {
	return of(cniRole, gate.AgentAccount, []Right{
		{Verb: "get", Resource: "pods", Why: "sees whether a pod that waits on its node tolerates the gate"},
	})
}

func controllerRights(cfg *gate.Configuration) []Right {
	const leases = coordinationv1.GroupName
	inNamespace := []Right{
		{Verb: "get", Resource: "configmaps", Name: gate.ConfigMapName, Why: "reads when nodegate was installed"},
		{Verb: "create", Group: leases, Resource: "leases", Why: "makes its Lease, the first time"},
		{Verb: "get", Group: leases, Resource: "leases", Name: gate.ControllerLease, Why: "sees which replica guards"},
		{Verb: "update", Group: leases, Resource: "leases", Name: gate.ControllerLease, Why: "takes, renews and gives back the Lease"},
		{Verb: "create", Group: eventsv1.GroupName, Resource: "events", Why: "tells of the fleet, beside the Lease"},
		{Verb: "patch", Group: eventsv1.GroupName, Resource: "events", Why: "counts what is repeated"},
	}
	for i := range inNamespace {
		inNamespace[i].Namespace = gate.Namespace
	}
	inNamespace = append(inNamespace,
		Right{Namespace: metav1.NamespaceDefault, Verb: "create", Group: eventsv1.GroupName, Resource: "events", Why: "tells of a Node's arming and opening; Events of Nodes are here"},
		Right{Namespace: metav1.NamespaceDefault, Verb: "patch", Group: eventsv1.GroupName, Resource: "events", Why: "counts what is repeated"})
	rights := append([]Right{
		{Verb: "get", Resource: "nodes", Why: "decides anew on the stored Node after a conflict"},
		{Verb: "list", Resource: "nodes", Why: "fills its cache"},
		{Verb: "watch", Resource: "nodes", Why: "sees another boot id, an annotation, a taint that goes"},
		{Verb: "patch", Resource: "nodes", Why: "adds the taint of a gate"},
	}, inNamespace...)
	for _, namespace := range agentNamespaces(cfg) {
		rights = append(rights,
			Right{Namespace: namespace, Verb: "list", Resource: "pods", Why: "fills its cache"},
			Right{Namespace: namespace, Verb: "watch", Resource: "pods", Why: "sees on which nodes an agent pod is Ready"},
			Right{Namespace: namespace, Verb: "list", Group: appsv1.GroupName, Resource: "daemonsets", Why: "fills its cache"},
			Right{Namespace: namespace, Verb: "watch", Group: appsv1.GroupName, Resource: "daemonsets", Why: "sees on which nodes an agent belongs"})
	}
	return of(gate.ControllerAccount, gate.ControllerAccount, rights)
}

// webhookRights are those that [certs.SelfManaged] asks for.
func webhookRights() []Right {
	registrations := Right{
		Group: admissionregistrationv1.GroupName, Resource: "mutatingwebhookconfigurations", Name: gate.WebhookRegistration,
	}
	get, update := registrations, registrations
	get.Verb, get.Why = "get", "sees whom API servers trust"
	update.Verb, update.Why = "update", "writes the caBundle of its own webhook"
	return of(webhookRole, gate.ControllerAccount, []Right{
		get, update,
		{Namespace: gate.Namespace, Verb: "create", Resource: "secrets", Why: "makes the Secret of its certificate, whose name RBAC cannot ask for on create"},
		{Namespace: gate.Namespace, Verb: "get", Resource: "secrets", Name: gate.WebhookSecret, Why: "serves what another replica made"},
		{Namespace: gate.Namespace, Verb: "update", Resource: "secrets", Name: gate.WebhookSecret, Why: "renews the certificate"},
	})
}

// agentRights reach every Node, for RBAC knows no "own". Admission confines the
// account to the Node that its token names, and there to its gates.
func agentRights(cfg *gate.Configuration) []Right {
	if !runsAgent(cfg) {
		return nil
	}
	rights := []Right{
		{Verb: "get", Resource: "nodes", Why: "reads its Node after a write that failed"},
		{Verb: "list", Resource: "nodes", Why: "reads its Node, by name, where an API server cannot stream it"},
		{Verb: "watch", Resource: "nodes", Why: "follows its Node, by name"},
		{Verb: "patch", Resource: "nodes", Why: "writes its heartbeat and removes its gates' taints; admission refuses all else"},
	}
	for _, namespace := range checkedNamespaces(cfg) {
		rights = append(rights,
			Right{Namespace: namespace, Verb: "list", Resource: "pods", Why: "looks for the pods of a check on its node"},
			Right{Namespace: namespace, Verb: "watch", Resource: "pods", Why: "sees whether one of them is Ready"})
	}
	return of(gate.AgentAccount, gate.AgentAccount, rights)
}

// checkedNamespaces are those in which the agent looks for pods, in order.
func checkedNamespaces(cfg *gate.Configuration) []string {
	var namespaces []string
	for _, g := range ownGates(cfg) {
		for i := range g.Checks {
			if pod := g.Checks[i].Pod; pod != nil {
				namespaces = append(namespaces, pod.Namespace)
			}
		}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

func of(role, account string, rights []Right) []Right {
	for i := range rights {
		rights[i].Role, rights[i].Account = role, account
	}
	return rights
}

// agentNamespaces are where agent pods are, in order.
func agentNamespaces(cfg *gate.Configuration) []string {
	var namespaces []string
	for i := range cfg.Gates {
		namespaces = append(namespaces, cfg.Gates[i].Agent.Namespace)
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// roles renders the rights as Roles, ClusterRoles and their bindings, with a note
// on every rule.
func roles(rights []Right) []noted {
	var objects []noted
	for _, same := range groupBy(rights, func(r Right) string { return r.Role + "/" + r.Namespace }) {
		rules, notes := rulesOf(same)
		meta := namedMeta(same[0].Namespace, same[0].Role)
		subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: gate.Namespace, Name: same[0].Account}}
		if meta.Namespace == "" {
			objects = append(objects,
				noted{&rbacv1.ClusterRole{TypeMeta: rbacType("ClusterRole"), ObjectMeta: meta, Rules: rules}, notes},
				noted{&rbacv1.ClusterRoleBinding{TypeMeta: rbacType("ClusterRoleBinding"), ObjectMeta: meta, Subjects: subjects,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}, nil})
			continue
		}
		objects = append(objects,
			noted{&rbacv1.Role{TypeMeta: rbacType("Role"), ObjectMeta: meta, Rules: rules}, notes},
			noted{&rbacv1.RoleBinding{TypeMeta: rbacType("RoleBinding"), ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}}, nil})
	}
	return objects
}

func rbacType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

// rulesOf makes one rule of the verbs on the same thing, and says what each is for.
func rulesOf(rights []Right) ([]rbacv1.PolicyRule, []note) {
	var rules []rbacv1.PolicyRule
	var notes []note
	for _, same := range groupBy(rights, func(r Right) string { return r.Group + "/" + r.Resource + "/" + r.Name }) {
		rule := rbacv1.PolicyRule{APIGroups: []string{same[0].Group}, Resources: []string{same[0].Resource}}
		if same[0].Name != "" {
			rule.ResourceNames = []string{same[0].Name}
		}
		var why []string
		for _, r := range same {
			rule.Verbs = append(rule.Verbs, r.Verb)
			why = append(why, r.Verb+": "+r.Why)
		}
		notes = append(notes, note{fmt.Sprintf("rules.%d", len(rules)), strings.Join(why, "\n")})
		rules = append(rules, rule)
	}
	return rules, notes
}

// groupBy keeps together what has the same key, in the order of their first.
func groupBy[T any](list []T, key func(T) string) [][]T {
	at := map[string]int{}
	var groups [][]T
	for _, one := range list {
		i, known := at[key(one)]
		if !known {
			i = len(groups)
			at[key(one)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], one)
	}
	return groups
}

// RightsTable lists rights in Markdown.
func RightsTable(rights []Right) string {
	var out strings.Builder
	out.WriteString("| role | where | verb | on | why |\n|---|---|---|---|---|\n")
	for _, r := range rights {
		on := r.Resource
		if r.Group != "" {
			on += "." + r.Group
		}
		if r.Name != "" {
			on += " `" + r.Name + "`"
		}
		why := r.Why
		if r.Sees {
			why += " (optional)"
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", r.Role, cmp.Or(r.Namespace, "the cluster"), r.Verb, on, why)
	}
	return out.String()
}
