package guard

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// TestWrite_RestsOnWhatWasRead: whatever taints a Node has, an API server refuses to
// arm it where anything of it has changed since, and adds the taint to them where
// nothing has.
func TestWrite_RestsOnWhatWasRead(t *testing.T) {
	t.Parallel()
	admin, err := client.New(cluster.ForTest(t).Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := &Guard{Client: admin}
	arm := []step{{in: newInput()}}
	for name, taints := range map[string][]corev1.Taint{
		"none": nil,
		"some": {{Key: "second", Value: "x", Effect: corev1.TaintEffectNoExecute}, {Key: "first", Effect: corev1.TaintEffectNoSchedule}},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := admin.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		node.Spec.Taints = taints // not that which admission puts on a new Node
		if err := admin.Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		stale := node.DeepCopy()
		change := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"other":"change"}}}`))
		if err := admin.Patch(t.Context(), node, change); err != nil {
			t.Fatal(err)
		}
		if err := g.write(t.Context(), stale, arm); !apierrors.IsConflict(err) {
			t.Errorf("%s: a write that rests on what is not any more: %v", name, err)
		}
		if err := g.write(t.Context(), node, arm); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := gate.DefaultGate().WithTaint(node.Spec.Taints)
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, node.Spec.Taints); diff != "" || node.Labels["other"] != "change" {
			t.Errorf("%s: labels %v, taints (-want +got):\n%s", name, node.Labels, diff)
		}
	}
}
