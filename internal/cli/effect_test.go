package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestTelling: who waits long hears why, once for each reason.
func TestTelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		o := &options{IOStreams: genericiooptions.IOStreams{ErrOut: &said}}
		began := time.Now()
		err := poll(t.Context(), o.telling(func(context.Context) (bool, error) {
			switch passed := time.Since(began); {
			case passed < 30*time.Second:
				return false, errors.New("no pod is made")
			case passed < time.Minute:
				return false, errors.New("the image cannot be pulled")
			}
			return true, nil
		}))
		if want := "    not yet: no pod is made\n    not yet: the image cannot be pulled\n"; err != nil || said.String() != want {
			t.Errorf("it says %q (%v), want %q", said.String(), err, want)
		}
	})
}

// TestMode_SeesWhatBecomesOfAWrite: where somebody narrowed what judges an UPDATE, new
// Nodes are armed, and one that is there could be opened by anybody.
func TestMode_SeesWhatBecomesOfAWrite(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.installConfig(t)
	e.setConfig(t, checkedGate)
	cfg, policies := policiesOf(t, checkedGate)
	if err := e.cluster.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	e.node(t, "linux", map[string]string{corev1.LabelOSStable: "linux"})
	adopt := []byte(`{"metadata": {"annotations": {"` + cfg.Gates[0].HeartbeatAnnotation() + `": "x"}}}`)
	if _, err := e.admin.CoreV1().Nodes().Patch(t.Context(), "linux", types.MergePatchType, adopt, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	narrow := func(to string) {
		t.Helper()
		patch := []byte(`{"spec": {"matchResources": {"objectSelector": {"matchExpressions": ` + to + `}}}}`)
		_, err := e.admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().
			Patch(t.Context(), "update.agent.nodegate.io", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	const unseen = `a write to Node linux is still treated by gate "agent" as in another mode`
	narrow(`[{"key": "pool", "operator": "Exists"}]`)
	e.expect(t, codeUnseen, "It was not seen: "+unseen, "resume", "--timeout=10s")
	narrow("null")
	if _, said, _ := e.run(t, "resume", "--timeout=20s"); strings.Contains(said, "It was not seen: a ") {
		t.Errorf("all is in force, and it says:\n%s", said)
	}
	if _, said, _ := e.run(t, "pause", "--timeout=20s"); strings.Contains(said, "It was not seen: a ") {
		t.Errorf("all is paused, and it says:\n%s", said)
	}
}
