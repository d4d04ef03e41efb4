package manifests

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nodegate/nodegate/gate"
)

// On is what the right is on, in words.
func (r Right) On() string {
	on := r.Resource
	if r.Group != "" {
		on += "." + r.Group
	}
	if r.Name != "" {
		on += " " + r.Name
	}
	if r.Namespace != "" {
		on += " in namespace " + r.Namespace
	}
	return on
}

// Commands lists those of kubectl nodegate that change something in a cluster.
func Commands() []string {
	return []string{"install", "upgrade", "prune", "uninstall", "pause", "observe", "resume", "bypass"}
}

// CommandRights are what a person needs for a command of kubectl nodegate; none for
// others. cert-manager's Issuers and Certificates are applied besides where it is
// used.
func CommandRights(command string) []Right {
	var rights []Right
	switch command {
	case "pause", "observe", "resume":
		rights = modeRights()
	case "install", "upgrade":
		rights = slices.Concat(applyRights(), waitRights(), tryRights())
	case "prune":
		rights = pruneRights()
	case "uninstall":
		rights = removeRights()
	case "bypass":
		rights = bypassRights()
	}
	for i := range rights {
		rights[i].Role = command
	}
	return rights
}

// on makes a right for each verb.
func on(group, resource, why string, verbs ...string) []Right {
	rights := make([]Right, len(verbs))
	for i, verb := range verbs {
		rights[i] = Right{Verb: verb, Group: group, Resource: resource, Why: why}
	}
	return rights
}

// own is nodegate's namespace.
func own(rights []Right) []Right {
	for i := range rights {
		rights[i].Namespace = gate.Namespace
	}
	return rights
}

func named(name string, rights []Right) []Right {
	for i := range rights {
		rights[i].Name = name
	}
	return rights
}

// toSee marks rights without which a command does its work, and says what it could
// not see.
func toSee(rights []Right) []Right {
	for i := range rights {
		rights[i].Sees = true
	}
	return rights
}

func modeRights() []Right {
	const admission = admissionregistrationv1.GroupName
	config := own(named(gate.ConfigMapName, on("", "configmaps", "sets the mode in the configuration", "get", "update")))
	var rights []Right
	for _, resource := range []string{"mutatingadmissionpolicybindings", "validatingadmissionpolicybindings", "mutatingwebhookconfigurations"} {
		rights = append(rights, on(admission, resource, "sets the mode in what admits", "list", "get", "update")...)
	}
	return slices.Concat(config, rights,
		toSee(on(admission, "mutatingadmissionpolicies", "sees that each gate has its policies", "get")),
		toSee(on("", "nodes", "looks for a Node to ask about", "list")),
		toSee(effectRights()))
}

func bypassRights() []Right {
	return slices.Concat(
		own(named(gate.ConfigMapName, on("", "configmaps", "reads which gates there are", "get"))),
		on("", "nodes", "sets or ends the bypass, and removes the taint", "get", "update"),
		named(gate.DefaultName, on(gate.Group, gate.ResourceGates, "sets a bypass of this gate; to end one it is not needed", gate.VerbBypass)))
}

// effectRights are for seeing that a mode is in effect.
func effectRights() []Right {
	return slices.Concat(
		on("", "nodes", "asks, by dry run, what would become of a new Node", "create"),
		on("", "nodes", "asks, by dry run, whether a write could open a Node that is there", "patch"),
		own(named(gate.ControllerLease, on(coordinationv1.GroupName, "leases", "sees the guard's mode", "get"))))
}

// applyRights are for all that is rendered. An apply that creates asks for create, too.
// To grant rights that one does not have takes escalate and bind.
func applyRights() []Right {
	verbs := []string{"get", "create", "patch"}
	const why = "applies it"
	var rights []Right
	for _, resource := range []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"} {
		rights = append(rights, on(rbacv1.GroupName, resource, why, verbs...)...)
	}
	for _, resource := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "mutatingwebhookconfigurations"} {
		rights = append(rights, on(admissionregistrationv1.GroupName, resource, why, verbs...)...)
	}
	const grants = "grants controller and agents what the caller does not have; not needed by who has all of that"
	for _, resource := range []string{"clusterroles", "roles"} {
		rights = append(rights, on(rbacv1.GroupName, resource, grants, "escalate", "bind")...)
	}
	const left = "removes what another configuration or mutation had"
	for _, resource := range []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"} {
		rights = append(rights, on(rbacv1.GroupName, resource, left, "list", "delete")...)
	}
	for _, resource := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "mutatingwebhookconfigurations"} {
		rights = append(rights, on(admissionregistrationv1.GroupName, resource, left, "list", "delete")...)
	}
	return slices.Concat(
		on("", "namespaces", why, verbs...),
		on(flowcontrolv1.GroupName, "flowschemas", why, verbs...),
		own(slices.Concat(
			on("", "configmaps", why, verbs...),
			on("", "serviceaccounts", why, verbs...),
			on("", "services", why, verbs...),
			on(appsv1.GroupName, "deployments", why, verbs...),
			on(appsv1.GroupName, "daemonsets", why, verbs...),
			on(policyv1.GroupName, "poddisruptionbudgets", why, verbs...),
			named(gate.ControllerService, on("", "services", left, "delete")),
			named(gate.WebhookSecret, on("", "secrets", left, "delete")),
			named(WebhookCertManagerSecret, on("", "secrets", left, "delete")),
			named(authorityName, on("", "secrets", left, "delete")))),
		rights)
}

// waitRights are for what an installation rests on, and for waiting for it.
func waitRights() []Right {
	return slices.Concat(
		on("", "nodes", "sees whether there are Nodes already", "list"),
		on(appsv1.GroupName, "daemonsets", "sees on which Nodes no agent can run", "list"),
		toSee(own(on("", "pods", "says why a pod is not ready", "list"))))
}

// tryRights are for seeing, by dry run, that all is active.
func tryRights() []Right {
	impersonate := func(resource, why string) Right {
		return Right{Verb: "impersonate", Group: "authentication.k8s.io", Resource: "userextras/" + resource, Why: why}
	}
	const why = "tries, by dry run, a write of the agent"
	return toSee(slices.Concat(effectRights(),
		on("", "nodes", "reads the Node whose agent it writes as", "get"),
		own(named(gate.AgentAccount, on("", "serviceaccounts", why, "impersonate"))),
		[]Right{impersonate(gate.ExtraNodeName, why), impersonate(gate.ExtraPodUID, why)}))
}

func pruneRights() []Right {
	var rights []Right
	for _, resource := range []string{"mutatingadmissionpolicybindings", "mutatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingadmissionpolicies"} {
		rights = append(rights, on(admissionregistrationv1.GroupName, resource, "removes those of gates that are not configured", "list", "delete")...)
	}
	return slices.Concat(
		own(named(gate.ConfigMapName, on("", "configmaps", "reads which gates there are and were, and forgets the latter", "get", "update"))),
		rights,
		on("", "nodes", "removes taints, heartbeats and bypasses of gates that do not govern them", "list", "get", "update"))
}

func removeRights() []Right {
	var rights []Right
	for _, resource := range []string{"mutatingwebhookconfigurations", "mutatingadmissionpolicybindings", "mutatingadmissionpolicies",
		"validatingadmissionpolicybindings", "validatingadmissionpolicies"} {
		rights = append(rights, on(admissionregistrationv1.GroupName, resource, "removes what is nodegate's", "list", "delete")...)
	}
	for _, resource := range []string{"clusterrolebindings", "rolebindings", "clusterroles", "roles"} {
		rights = append(rights, on(rbacv1.GroupName, resource, "removes what is nodegate's", "list", "delete")...)
	}
	return slices.Concat(rights,
		on(flowcontrolv1.GroupName, "flowschemas", "removes what is nodegate's", "list", "delete"),
		named(gate.Namespace, on("", "namespaces", "removes it with all that is in it", "get", "delete")),
		named(gate.Namespace, on("", "namespaces", "notes before where plugins were taken out, for when it is run again", "patch")),
		on("", "nodes", "removes taints, heartbeats and bypasses", "list", "get", "update"),
		toSee(on("", "nodes", "asks, by dry run, whether a Node would still be armed", "create", "patch")),
		own(slices.Concat(
			named(gate.ConfigMapName, on("", "configmaps", "reads which gates there are", "get")),
			named(gate.ControllerAccount, on(appsv1.GroupName, "deployments", "stops the guard before the agents", "get", "delete")),
			named(gate.AgentAccount, on(appsv1.GroupName, "daemonsets", "has the agents take plugins out of CNI lists, and removes them", "get", "patch", "delete")),
			on("", "pods", "sees that they have done so, and are gone", "list"))))
}
