package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

const twoGates = head + `gates:
- {name: mesh, taint: {key: example.com/mesh}}
- {name: disk, taint: {key: example.com/disk}}
- {name: blue, taint: {key: example.com/blue}, nodeSelector: {matchLabels: {pool: blue}}}
`

// environment is a real API server on which more and more is there.
type environment struct {
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	flags   []string
}

func (e *environment) run(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	return run(t, append(args, e.flags...)...)
}

func (e *environment) expect(t *testing.T, wantCode int, want string, args ...string) {
	t.Helper()
	out, errOut, code := e.run(t, args...)
	if code != wantCode || !strings.Contains(out+errOut, want) {
		t.Errorf("%v: exit code %d, out:\n%serr:\n%s\nwant exit code %d and %q", args, code, out, errOut, wantCode, want)
	}
}

// TestCommands_SayWhatToDo: each thing that can be amiss is named.
func TestCommands_SayWhatToDo(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.expect(t, codeFailed, "is nodegate installed in this cluster?", "pause")
	e.expect(t, codeFailed, "is nodegate installed in this cluster?", "bypass", "linux", "--clear")
	e.expect(t, codeFailed, "run it as somebody who may", "pause", "--as=nobody")
	e.installConfig(t)
	e.expect(t, codeFailed, "set the mode there by hand", "pause")
	e.setConfig(t, twoGates)
	e.expect(t, codeFailed, "neither a binding of a mutation policy nor a webhook", "pause")
	e.node(t, "old", map[string]string{"pool": "blue"})
	e.installAdmission(t)
	t.Run("mode", e.modes)
	t.Run("bypass", e.bypasses)
}

// installConfig installs one whose text cannot be edited.
func (e *environment) installConfig(t *testing.T) {
	t.Helper()
	if _, err := e.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: gate.ConfigMapName},
		Data:       map[string]string{gate.ConfigMapKey: head + "mode: !!str enforce\n"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func (e *environment) setConfig(t *testing.T, text string) {
	t.Helper()
	maps := e.admin.CoreV1().ConfigMaps(gate.Namespace)
	object, err := maps.Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Data[gate.ConfigMapKey] = text
	if _, err := maps.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// policiesOf are those of a configuration.
func policiesOf(t *testing.T, config string) (*gate.Configuration, []*unstructured.Unstructured) {
	t.Helper()
	cfg, err := gate.ParseConfiguration([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	policies, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, policies
}

func (e *environment) installAdmission(t *testing.T) {
	t.Helper()
	_, policies := policiesOf(t, twoGates)
	if err := e.cluster.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	for name, labels := range map[string]map[string]string{"linux": {"kubernetes.io/os": "linux"}, "blue": {"pool": "blue"}, "other": nil} {
		e.node(t, name, labels)
	}
}

func (e *environment) modes(t *testing.T) {
	// There is no guard here.
	e.expect(t, codeUnseen, "It was not seen: no guard has ever run in this cluster", "pause", "--timeout=5s")
	e.expect(t, codeDone, "is in mode paused already", "pause", "--timeout=0s")
	e.leaveLease(t, gate.ModePaused)
	e.expect(t, codeUnseen, "no guard runs", "pause", "--timeout=5s")
	bindings, policies := e.admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings(), e.admin.AdmissionregistrationV1().MutatingAdmissionPolicies()
	if err := errors.Join(bindings.Delete(t.Context(), "update.mesh.nodegate.io", metav1.DeleteOptions{}),
		policies.Delete(t.Context(), "update.disk.nodegate.io", metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeUnseen, "MutatingAdmissionPolicyBinding update.mesh.nodegate.io is not there", "resume", "--timeout=0s")
	e.expect(t, codeUnseen, "MutatingAdmissionPolicy update.disk.nodegate.io is not there", "resume", "--timeout=0s")
	e.expect(t, codeDone, "set to mode paused", "pause", "--timeout=0s")
	// Somebody who may set the mode, and look no further.
	e.grant(t, "setter",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "update"}},
		rbacv1.PolicyRule{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"list", "get", "update"}})
	e.expect(t, codeUnseen, `cannot create resource "nodes"`, "resume", "--as=setter")
}

// leaveLease is what a guard leaves that is killed.
func (e *environment) leaveLease(t *testing.T, mode gate.Mode) {
	t.Helper()
	_, err := e.admin.CoordinationV1().Leases(gate.Namespace).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: gate.ControllerLease, Annotations: map[string]string{gate.ModeAnnotation: string(mode)}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("killed"), LeaseDurationSeconds: new(int32(4)), RenewTime: new(metav1.NewMicroTime(time.Now().Add(-time.Minute))),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitBorn waits until Nodes with the labels are born with a taint, or without any:
// what judges a change of one is in that mode by then, too.
func (e *environment) awaitBorn(t *testing.T, armed bool, labels map[string]string) {
	t.Helper()
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		probe := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "born", Labels: labels}}
		node, err := e.admin.CoreV1().Nodes().Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && (len(keysOf(node)) > 0) == armed, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// keysOf are those of a Node's taints, but for what an API server adds to every Node
// that is new.
func keysOf(node *corev1.Node) []string {
	var keys []string
	for _, taint := range node.Spec.Taints {
		if taint.Key != corev1.TaintNodeNotReady {
			keys = append(keys, taint.Key)
		}
	}
	return keys
}

func (e *environment) bypasses(t *testing.T) {
	e.awaitBorn(t, true, map[string]string{"pool": "blue"})
	bypass := func(args ...string) []string { return append([]string{"bypass"}, args...) }
	set := []string{"--for=1h", "--reason=test"}
	e.expect(t, codeFailed, `nodes "unknown" not found`, bypass(append(set, "unknown")...)...)
	e.expect(t, codeFailed, "say which by --gate: mesh, disk", bypass(append(set, "linux")...)...)
	e.expect(t, codeFailed, `there is no gate "typo"; there are: mesh, disk, blue`, bypass(append(set, "linux", "--gate=typo")...)...)
	e.expect(t, codeFailed, "is not governed by that gate", bypass(append(set, "linux", "--gate=blue")...)...)
	e.expect(t, codeFailed, "is not governed by that gate", bypass(append(set, "other")...)...)
	e.expect(t, codeDone, "gate blue is bypassed", bypass(append(set, "blue")...)...)
	e.expect(t, codeDone, "gate disk is bypassed", bypass(append(set, "linux", "--gate=mesh", "--gate=disk")...)...)
	e.expect(t, codeDone, "bypass of gate mesh is over", bypass("linux", "--clear", "--gate=mesh")...)
	e.expect(t, codeDone, "bypass of gate disk is over", bypass("linux", "--clear")...)
	e.expect(t, codeDone, "has no bypass", bypass("linux", "--clear")...)
	// As the help says: a bypass puts a node into the gate's care that was not.
	e.expect(t, codeDone, "has no bypass", bypass("old", "--clear")...)
	e.expect(t, codeDone, "gate blue is bypassed", bypass(append(set, "old")...)...)
	e.expect(t, codeDone, "the bypass of gate blue is over, the gate is closed", bypass("old", "--clear")...)
	e.grant(t, "editor",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "update"}})
	e.expect(t, codeFailed, `the verb "bypass" on gates.nodegate.io "blue": run it as somebody who may`, bypass("blue", "--for=2h", "--reason=test", "--as=editor")...)
}

// allow gives a person rights, which takes effect a little later.
func (e *environment) allow(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: user}
	if _, err := e.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := e.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// grant gives a person rights, among them to read the configuration, and waits until
// they have them.
func (e *environment) grant(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	e.allow(t, user, rules...)
	impersonated := *e.cluster.Admin
	impersonated.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(&impersonated)
	if err != nil {
		t.Fatal(err)
	}
	err = cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps(gate.Namespace).Get(ctx, gate.ConfigMapName, metav1.GetOptions{})
		return err == nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
}
