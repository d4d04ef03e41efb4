package agent

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// patience is how long a condition may take on a machine that is busy.
const patience = 3 * time.Minute

// polling is the interval at which a condition is looked at.
const polling = 20 * time.Millisecond

// shared is the API server of all tests of this package, with the policies of the
// default configuration, and of two more gates, in force. It starts when the first test asks for it.
var shared = sync.OnceValues(startCluster)

// stop ends the API server, if one was started.
var stop = func() error { return nil }

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		code = 1
	}
	os.Exit(code)
}

func startCluster() (*cluster.Cluster, error) {
	c, err := cluster.Start()
	if err != nil {
		return nil, err
	}
	stop = c.Stop
	ctx, cancel := context.WithTimeout(context.Background(), patience) //nolint:forbidigo // it is of no single test
	defer cancel()
	if err := allowAgent(ctx, c.Admin); err != nil {
		return nil, err
	}
	return c, c.InstallPolicies(ctx, severalGates())
}

// allowAgent gives the agent's account the rights that it needs, and no others.
func allowAgent(ctx context.Context, admin *rest.Config) error {
	clients, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: "nodegate-agent"}
	_, err = clients.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = clients.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: gate.Namespace, Name: gate.AgentAccount}},
	}, metav1.CreateOptions{})
	return err
}

func governedLabels() map[string]string { return map[string]string{"kubernetes.io/os": "linux"} }

// world is a Node and the identities that write it.
type world struct {
	*testing.T
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	name    string
}

// newWorld names a Node after the test; it does not exist yet, nor any more after
// it.
func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, cluster: c, admin: admin, name: nodeName(t)}
	t.Cleanup(func() {
		err := admin.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), w.name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return w
}

func nodeName(t *testing.T) string {
	name := []byte("n-")
	for _, c := range []byte(t.Name()) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			name = append(name, c)
		case c >= 'A' && c <= 'Z':
			name = append(name, '-', c+'a'-'A')
		}
	}
	return string(name)
}

func armed() []corev1.Taint { return gate.DefaultGate().WithTaint(nil) }

// create makes the Node and, as its kubelet would, its status, and returns it as
// it was born. A Node without labels is not governed: the gate's admission leaves
// its taints alone.
func (w *world) create(bootID string, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Create(w.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: taints},
	}, metav1.CreateOptions{})
	w.ok(err)
	w.boots(bootID)
	return node
}

// boots has the kubelet show another boot.
func (w *world) boots(bootID string) {
	w.Helper()
	w.status(fmt.Sprintf(`{"nodeInfo":{"bootID":%q}}`, bootID))
}

// status changes the Node's status as its kubelet does.
func (w *world) status(merge string) {
	w.Helper()
	_, err := w.admin.CoreV1().Nodes().PatchStatus(w.Context(), w.name, fmt.Appendf(nil, `{"status":%s}`, merge))
	w.ok(err)
}

func (w *world) delete() {
	w.Helper()
	w.ok(w.admin.CoreV1().Nodes().Delete(w.Context(), w.name, metav1.DeleteOptions{}))
}

func (w *world) node() *corev1.Node {
	w.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.Context(), w.name, metav1.GetOptions{})
	w.ok(err)
	return node
}

// update changes the Node as others do, with optimistic locking, and returns it
// as it was stored.
func (w *world) update(change func(*corev1.Node)) *corev1.Node {
	w.Helper()
	for {
		node := w.node()
		change(node)
		node, err := w.admin.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			continue
		}
		w.ok(err)
		return node
	}
}

// alwaysArm installs a policy that adds the taint to every write of this Node,
// waits until it is in force, and returns what removes it.
func (w *world) alwaysArm() (remove func()) {
	w.Helper()
	fail, reinvoke := admissionv1.Fail, admissionv1.NeverReinvocationPolicy
	meta := metav1.ObjectMeta{Name: "always-arm"}
	policies := w.admin.AdmissionregistrationV1()
	_, err := policies.MutatingAdmissionPolicies().Create(w.Context(), &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: meta,
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				ResourceNames: []string{w.name},
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
				},
			}}},
			FailurePolicy:      &fail,
			ReinvocationPolicy: reinvoke,
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{Expression: fmt.Sprintf(
					`[JSONPatch{op: "add", path: "/spec/taints", value: [Object.spec.taints{key: %q, effect: "NoSchedule"}]}]`,
					gate.DefaultTaintKey)},
			}},
		},
	}, metav1.CreateOptions{})
	w.ok(err)
	_, err = policies.MutatingAdmissionPolicyBindings().Create(w.Context(), &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name},
	}, metav1.CreateOptions{})
	w.ok(err)
	w.eventually(func() string {
		if isOpen(w.update(func(n *corev1.Node) { n.Spec.Taints = nil })) {
			return "the policy is not in force"
		}
		return ""
	})
	return func() {
		w.ok(policies.MutatingAdmissionPolicyBindings().Delete(w.Context(), meta.Name, metav1.DeleteOptions{}))
		w.ok(policies.MutatingAdmissionPolicies().Delete(w.Context(), meta.Name, metav1.DeleteOptions{}))
	}
}

// identity is the agent's on this Node: a token bound to a pod there.
func (w *world) identity() *rest.Config {
	w.Helper()
	config, err := w.cluster.PodToken(w.Context(), gate.Namespace, gate.AgentAccount, w.name)
	w.ok(err)
	return config
}

// unended is a context for what is done when the test has ended.
func (w *world) unended() context.Context { return context.WithoutCancel(w.Context()) }

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually waits until the complaint is empty.
func (w *world) eventually(complaint func() string) {
	w.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(w.Context(), polling, patience, true, func(context.Context) (bool, error) {
		last = complaint()
		return last == "", nil
	})
	if err != nil {
		w.Fatalf("after %s: %s", patience, last)
	}
}

// eventuallyNode waits until the Node is as wanted.
func (w *world) eventuallyNode(want string, is func(*corev1.Node) bool) *corev1.Node {
	w.Helper()
	var node *corev1.Node
	w.eventually(func() string {
		node = w.node()
		if is(node) {
			return ""
		}
		return fmt.Sprintf("the Node is not %s: taints %v, annotations %v", want, node.Spec.Taints, node.Annotations)
	})
	return node
}

func (w *world) eventuallyOpen() *corev1.Node {
	w.Helper()
	return w.eventuallyNode("open and ready", func(n *corev1.Node) bool { return isOpen(n) && saysReady(n, true) })
}

func isOpen(node *corev1.Node) bool { return !gate.DefaultGate().Armed(node) }

// saysReady reports whether the Node's own heartbeat says so.
func saysReady(node *corev1.Node, ready bool) bool {
	hb, err := gate.ParseHeartbeat(node.Annotations[gate.DefaultGate().HeartbeatAnnotation()])
	return err == nil && hb.Ready == ready && hb.NodeUID == node.UID
}
