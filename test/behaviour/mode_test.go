package behaviour

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// TestMode_IsInEffectWhenTheCommandReturns: the very next write is treated by the
// new mode, and the guard is in it.
func TestMode_IsInEffectWhenTheCommandReturns(t *testing.T) {
	inEachForm(t, func(t *testing.T, e *environment) {
		e.install(t)
		steps := []struct {
			command string
			mode    gate.Mode
		}{
			{"observe", gate.ModeObserve}, {"resume", gate.ModeEnforce}, {"pause", gate.ModePaused},
			{"observe", gate.ModeObserve}, {"pause", gate.ModePaused}, {"resume", gate.ModeEnforce},
		}
		for i := range steps {
			e.create(t, fmt.Sprintf("armed-%d", i))
		}
		for i, step := range steps {
			e.nodegate(t, step.command)
			enforced := step.mode == gate.ModeEnforce
			removed := e.patch(t, e.admin, fmt.Sprintf("armed-%d", i), map[string]any{"spec": map[string]any{"taints": nil}})
			if e.gate.Armed(removed) != enforced {
				t.Errorf("step %d, mode %s: after a removal the node is armed: %t", i, step.mode, !enforced)
			}
			created, err := e.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("new-%d", i), Labels: map[string]string{corev1.LabelOSStable: "linux"},
			}}, metav1.CreateOptions{})
			if err != nil || e.gate.Armed(created) != enforced {
				t.Errorf("step %d, mode %s: a new node is armed: %t (%v)", i, step.mode, !enforced, err)
			}
			if mode := e.configuration().Mode; mode != step.mode {
				t.Errorf("step %d: the guard is in mode %s, want %s", i, mode, step.mode)
			}
			e.expectConfig(t, step.mode)
		}
		for i := range steps {
			e.await(t, fmt.Sprintf("new-%d", i), "armed by the guard", e.gate.Armed)
		}
		e.expectIdempotent(t)
	})
}

// expectConfig: nothing but the mode is another.
func (e *environment) expectConfig(t *testing.T, mode gate.Mode) {
	t.Helper()
	object, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		gate.ConfigMapKey: strings.Replace(configText, "enforce", string(mode), 1), "other": "of somebody else",
	}
	if diff := cmp.Diff(want, object.Data); diff != "" {
		t.Errorf("the ConfigMap's data, -want +got:\n%s", diff)
	}
	if object.Annotations[gate.InstalledAtAnnotation] == "" {
		t.Error("the time of installation is lost")
	}
}

// expectIdempotent: the same again writes nothing.
func (e *environment) expectIdempotent(t *testing.T) {
	t.Helper()
	versions := func() map[string]string {
		found := map[string]string{}
		object, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found[object.Name] = object.ResourceVersion
		validating, err := e.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, binding := range validating.Items {
			found[binding.Name] = binding.ResourceVersion
		}
		mutating, err := e.admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, binding := range mutating.Items {
			found[binding.Name] = binding.ResourceVersion
		}
		return found
	}
	before := versions()
	if out := e.nodegate(t, "resume"); strings.Contains(out, "set to mode") {
		t.Errorf("it set what was set:\n%s", out)
	}
	if diff := cmp.Diff(before, versions()); diff != "" {
		t.Errorf("the same command again has written:\n%s", diff)
	}
}
