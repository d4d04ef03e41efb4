package rights

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/cli"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

// person is somebody who has the rights for one command, and no others.
type person struct {
	*testing.T
	command    string
	kubeconfig string
}

// TestCommandRights_AreThoseThatAreUsed runs each command as a person with the
// rights that are documented for it: nothing is refused, nothing is asked for that
// is not among them, and each is used.
func TestCommandRights_AreThoseThatAreUsed(t *testing.T) {
	ctrl.SetLogger(logr.Discard()) // the libraries'
	log, flags := newAuditLog(t)
	c := cluster.ForTest(t, flags...)
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), bareNode(nodeName), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "gates.yaml")
	text := "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n" +
		"gates: [{name: agent, taint: {key: nodegate.io/agent-not-ready}, checks: [{socket: {path: /run/x/s}}, {conflist: {pluginType: x}}]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(t.TempDir(), "former.yaml")
	if err := os.WriteFile(former, []byte(strings.ReplaceAll(text, "agent", "former")), 0o600); err != nil {
		t.Fatal(err)
	}
	installer, setter, bypasser := newPerson(t, c, admin, "install"), newPerson(t, c, admin, "pause"), newPerson(t, c, admin, "bypass")
	remover, pruner := newPerson(t, c, admin, "uninstall"), newPerson(t, c, admin, "prune")
	installer.run(strings.Fields("install --timeout=3s --config=" + config))
	noteDeployment(t, admin)
	adopt(t, admin)
	for _, does := range []struct {
		who  *person
		what string
	}{
		{setter, "pause --timeout=3s"},
		{setter, "resume --timeout=3s"},
		{setter, "observe --timeout=3s"},
		{installer, "install --timeout=0 --mutation=webhook"},
		{installer, "install --timeout=0 --mutation=policy --config=" + former},
		{installer, "install --timeout=0 --mutation=webhook --config=" + config},
		{installer, "upgrade --timeout=3s"},
		{setter, "resume --timeout=3s"},
		{installer, "upgrade --timeout=0"}, // which enforces now
		{bypasser, "bypass " + nodeName + " --for=1h --reason=test"},
		{bypasser, "bypass " + nodeName + " --clear"},
		{pruner, "prune --old-config=" + former},
		{remover, "uninstall --yes --timeout=3s"},
	} {
		if does.who == pruner || does.who == remover {
			leave(t, c, admin, former)
		}
		does.who.run(strings.Fields(does.what))
	}
	for _, who := range []*person{installer, setter, bypasser, pruner, remover} {
		expectUsed(t, log, who.command)
	}
}

// leave leaves behind what a former configuration has made: policies, and a taint.
func leave(t *testing.T, c *cluster.Cluster, admin kubernetes.Interface, former string) {
	t.Helper()
	cfg, err := gate.LoadConfiguration(former)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Mode = gate.ModeObserve
	policies, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	note := []byte(`{"metadata":{"annotations":{"heartbeat.nodegate.io/former":null,"bypass.nodegate.io/other":"x","nodegate.io/retired":"a=b/c"}}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, note, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, note, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// noteDeployment has the controller's Deployment look as if its controller had seen
// it, and no pod of it were there: then the pods are asked why.
func noteDeployment(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	patch := []byte(`{"status":{"observedGeneration":1000}}`)
	_, err := admin.AppsV1().Deployments(gate.Namespace).
		Patch(t.Context(), gate.ControllerAccount, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// adopt has the Node carry a heartbeat: what would become of a write to it is asked
// only then.
func adopt(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"` + gate.DefaultGate().HeartbeatAnnotation() + `":"x"}}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectUsed compares the log with the rights for a command. What an API server asks
// its authorizer for besides the request itself is in no log.
func expectUsed(t *testing.T, log auditLog, command string) {
	t.Helper()
	rights := manifests.CommandRights(command)
	requests := slices.DeleteFunc(log.requests(t), func(r request) bool {
		return r.User.Username != command || r.Impersonated != nil || r.Object.Resource == "selfsubjectaccessreviews"
	})
	for _, right := range rights {
		unseen := slices.Contains([]string{"escalate", "bind", "impersonate", "bypass"}, right.Verb) ||
			right.Verb == "create" && slices.ContainsFunc(rights, func(r manifests.Right) bool { return r.Verb == "patch" && r.On() == right.On() })
		if !unseen && !slices.ContainsFunc(requests, func(r request) bool { return r.by(right) }) {
			t.Errorf("%s: nobody used the right %s %s", command, right.Verb, right.On())
		}
	}
	seen := map[string]bool{}
	for _, r := range requests {
		granted := slices.ContainsFunc(rights, r.by)
		if (r.forbidden() || !granted) && !seen[r.String()] {
			seen[r.String()] = true
			t.Errorf("%s: forbidden: %t, granted: %t", r, r.forbidden(), granted)
		}
	}
}

func newPerson(t *testing.T, c *cluster.Cluster, admin kubernetes.Interface, command string) *person {
	t.Helper()
	for _, right := range manifests.CommandRights(command) {
		grant(t, admin, command, right)
	}
	identity, err := c.User(command, people)
	if err != nil {
		t.Fatal(err)
	}
	p := &person{T: t, command: command, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cluster.WriteKubeconfig(identity, p.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return p
}

// grant gives a person a right in all namespaces: the one in which it holds is not
// there before the installation.
func grant(t *testing.T, admin kubernetes.Interface, user string, right manifests.Right) {
	t.Helper()
	rule := rbacv1.PolicyRule{APIGroups: []string{right.Group}, Resources: []string{right.Resource}, Verbs: []string{right.Verb}}
	if right.Name != "" {
		rule.ResourceNames = []string{right.Name}
	}
	role, err := admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"}, Rules: []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: role.Name}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}
	_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a command that must do its work, and say nothing of rights.
func (p *person) run(args []string) {
	p.Helper()
	var out, errOut bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
	code := cli.Run(p.Context(), streams, append(args, "--kubeconfig="+p.kubeconfig, "--cache-dir="+p.TempDir()))
	said := out.String() + errOut.String()
	// Nothing runs here that would take a plugin out, or a namespace away.
	if code == 1 && !strings.Contains(said, "not everything could be removed") || strings.Contains(said, "you may not") || strings.Contains(said, "cannot") {
		p.Errorf("%v: exit code %d\n%s", args, code, said)
	}
}
