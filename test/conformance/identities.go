package conformance

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/cluster"
)

// Grants that the identities have. They allow everything on Nodes, so that what
// is refused is refused by admission.
const (
	editNodes  = "conformance-edit-nodes"
	administer = "conformance-administer"
	bypass     = "conformance-bypass"
)

// identities hands out clients for the table's identities.
type identities struct {
	cluster *cluster.Cluster
	people  map[cases.Identity]kubernetes.Interface
}

func newIdentities(ctx context.Context, c *cluster.Cluster) (*identities, error) {
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return nil, err
	}
	ids := &identities{cluster: c, people: map[cases.Identity]kubernetes.Interface{cases.Admin: admin}}
	return ids, ids.grant(ctx, admin)
}

// grant creates the roles and binds them.
func (ids *identities) grant(ctx context.Context, admin kubernetes.Interface) error {
	gates := func(verb string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{gate.Group}, Resources: []string{gate.ResourceGates},
			ResourceNames: []string{gate.DefaultName}, Verbs: []string{verb}}
	}
	nodes := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"},
		Verbs: []string{"get", "list", "create", "update", "patch", "delete"}}
	account := func(namespace, name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
	}
	person := func(id cases.Identity) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: string(id)}
	}
	grants := []struct {
		name     string
		rule     rbacv1.PolicyRule
		subjects []rbacv1.Subject
	}{
		{editNodes, nodes, []rbacv1.Subject{
			person(cases.Editor), person(cases.Administrator), person(cases.Bypasser), person(impostor),
			account(gate.Namespace, gate.AgentAccount), account("default", "other"), account("storage-system", "storage-node"),
		}},
		{administer, gates(gate.VerbAdminister), []rbacv1.Subject{person(cases.Administrator)}},
		{bypass, gates(gate.VerbBypass), []rbacv1.Subject{person(cases.Bypasser)}},
	}
	for _, g := range grants {
		_, err := admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: g.name}, Rules: []rbacv1.PolicyRule{g.rule},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating cluster role %q: %w", g.name, err)
		}
		_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: g.name}, Subjects: g.subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: g.name},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating cluster role binding %q: %w", g.name, err)
		}
	}
	return nil
}

// impostor has a kubelet's name and not its group.
const impostor cases.Identity = "system:node:impostor"

// elsewhere is the Node on which the agents of another node run.
const elsewhere = "elsewhere"

// client returns a client for the identity, towards the Node of this name, which
// exists where a token is to be bound to it.
func (ids *identities) client(ctx context.Context, id cases.Identity, node string) (kubernetes.Interface, error) {
	if client, ok := ids.people[id]; ok {
		return client, nil
	}
	config, shared, err := ids.config(ctx, id, node)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating client for %s: %w", id, err)
	}
	if shared {
		ids.people[id] = client
	}
	return client, nil
}

// config returns the credentials, and whether they are the same for every Node.
func (ids *identities) config(ctx context.Context, id cases.Identity, node string) (config *rest.Config, shared bool, err error) {
	c := ids.cluster
	switch id {
	case cases.Kubelet:
		config, err = c.Kubelet(node)
	case cases.Lifecycle:
		shared = true
		config, err = c.AccountToken(ctx, "kube-system", "node-controller")
	case cases.Agent:
		config, err = c.PodToken(ctx, gate.Namespace, gate.AgentAccount, node)
	case cases.AgentElsewhere:
		shared = true
		config, err = c.PodToken(ctx, gate.Namespace, gate.AgentAccount, elsewhere)
	case cases.AgentOfNode:
		config, err = c.NodeToken(ctx, gate.Namespace, gate.AgentAccount, node)
	case cases.AgentUnbound:
		shared = true
		config, err = c.AccountToken(ctx, gate.Namespace, gate.AgentAccount)
	case cases.OtherPod:
		config, err = c.PodToken(ctx, "default", "other", node)
	case cases.StorageAgent:
		config, err = c.PodToken(ctx, "storage-system", "storage-node", node)
	case cases.StorageElsewhere:
		shared = true
		config, err = c.PodToken(ctx, "storage-system", "storage-node", elsewhere)
	default:
		shared = true
		config, err = c.User(string(id), "system:authenticated")
	}
	return config, shared, err
}
