package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// TestPodCheck: on a real API server, with the agent's own account.
func TestPodCheck(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil)
	created, err := w.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-check-"}}, metav1.CreateOptions{})
	w.ok(err)
	namespace := created.Name
	pods := w.admin.CoreV1().Pods(namespace)
	create := func(name, node, app string) {
		t.Helper()
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		w.ok(err)
		t.Cleanup(func() { w.deletePod(namespace, name, 0) })
	}
	reports := func(name string, ready corev1.ConditionStatus, reason string) {
		t.Helper()
		_, err := pods.Patch(t.Context(), name, "application/strategic-merge-patch+json", fmt.Appendf(nil,
			`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":%q,"lastTransitionTime":"1970-01-01T00:01:00Z"}]}}`,
			ready, reason), metav1.PatchOptions{FieldManager: "kubelet"}, "status")
		w.ok(err)
	}

	check, err := newPodCheck(gate.PodCheck{Namespace: namespace, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mesh"}}})
	w.ok(err)
	a := w.agent(w.options(w.identity(), check))
	booted := time.Now().Add(-time.Hour)
	a.uptime = func() (time.Duration, error) { return time.Since(booted), nil }
	go check.follow(t.Context())
	expect := func(want string) {
		t.Helper()
		w.eventually(func() string {
			if got := text(check.Check(t.Context(), nil)); got != want {
				return fmt.Sprintf("the check says %q, want %q", got, want)
			}
			return ""
		})
	}

	// It has no right to list pods yet, and says so without waiting for ever.
	w.eventually(func() string {
		err := askUntil(t, check, closedChannel())
		if !strings.Contains(text(err), "listing pods of namespace "+namespace+": ") || !strings.Contains(text(err), "forbidden") {
			return "the lack of rights is not told: " + text(err)
		}
		return ""
	})
	w.allowPods(namespace)
	expect("no pod of namespace " + namespace + " with app=mesh is on this node")
	create("elsewhere", "another-node", "mesh")
	create("other", w.name, "other")
	create("mesh", w.name, "mesh")
	reports("elsewhere", "True", "")
	reports("other", "True", "")
	expect("pod " + namespace + "/mesh is not Ready")
	reports("mesh", "False", "ContainersNotReady")
	expect("pod " + namespace + "/mesh is not Ready (ContainersNotReady)")
	reports("mesh", "True", "") // whatever the node's clock says
	expect("")

	// A reboot: what the API server shows is of the boot before.
	booted = time.Now().Add(2 * time.Second)
	expect("pod " + namespace + "/mesh was Ready before this boot, and was not reported since")
	w.eventually(func() string {
		reports("mesh", "False", "ContainersNotReady")
		reports("mesh", "True", "")
		return text(check.Check(t.Context(), nil))
	})
	w.deletePod(namespace, "mesh", 3600)
	expect("pod " + namespace + "/mesh is being deleted")
	create("mesh-2", w.name, "mesh")
	reports("mesh-2", "True", "")
	expect("") // one of them is enough
}

func closedChannel() <-chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}

func (w *world) deletePod(namespace, name string, grace int64) {
	w.Helper()
	// Until the test's end the pod may be gone.
	_ = w.admin.CoreV1().Pods(namespace).Delete(w.unended(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
}

// allowPods gives the agent's account the right that a check of pods needs.
func (w *world) allowPods(namespace string) {
	w.Helper()
	meta := metav1.ObjectMeta{Name: "nodegate-agent", Namespace: namespace}
	_, err := w.admin.RbacV1().Roles(namespace).Create(w.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
	}}, metav1.CreateOptions{})
	w.ok(err)
	_, err = w.admin.RbacV1().RoleBindings(namespace).Create(w.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: gate.Namespace, Name: gate.AgentAccount}},
	}, metav1.CreateOptions{})
	w.ok(err)
}
