package manifests_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// all renders all that admits, in a mode.
func all(t *testing.T, mode gate.Mode) []*unstructured.Unstructured {
	t.Helper()
	cfg := gate.Default()
	cfg.Mode = mode
	objects, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		t.Fatal(err)
	}
	webhook, err := manifests.Webhook(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return append(objects, webhook)
}

// TestSetMode: what was rendered in one mode becomes what is rendered in another.
func TestSetMode(t *testing.T) {
	for _, from := range gate.Modes() {
		for _, to := range gate.Modes() {
			want := all(t, to)
			for i, object := range all(t, from) {
				before := object.DeepCopy()
				changed, err := manifests.SetMode(object, to)
				if err != nil {
					t.Fatal(err)
				}
				if changed == cmp.Equal(before, object) {
					t.Errorf("%s %s: changed is %t", object.GetKind(), object.GetName(), changed)
				}
				delete(object.Object, "status")
				if diff := cmp.Diff(want[i].Object, object.Object); diff != "" && !onlyEmptySelector(object) {
					t.Errorf("%s %s from %s to %s, -want +got:\n%s", object.GetKind(), object.GetName(), from, to, diff)
				}
			}
		}
	}
}

// onlyEmptySelector: a webhook keeps the empty selector that an API server would
// fill in.
func onlyEmptySelector(object *unstructured.Unstructured) bool {
	hooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil || len(hooks) == 0 {
		return false
	}
	selector, found, err := unstructured.NestedMap(hooks[0].(map[string]any), "objectSelector")
	return err == nil && found && len(selector) == 0
}

// TestSetMode_KeepsOthersSelectors: who has narrowed a binding further finds it so
// after a pause.
func TestSetMode_KeepsOthersSelectors(t *testing.T) {
	for _, object := range all(t, gate.ModeEnforce) {
		if object.GetKind() != "MutatingAdmissionPolicyBinding" {
			continue
		}
		err := unstructured.SetNestedStringMap(object.Object, map[string]string{"pool": "blue"}, "spec", "matchResources", "objectSelector", "matchLabels")
		if err != nil {
			t.Fatal(err)
		}
		before := object.DeepCopy()
		for _, mode := range []gate.Mode{gate.ModePaused, gate.ModeObserve, gate.ModeEnforce} {
			changed, err := manifests.SetMode(object, mode)
			if err != nil || changed == (mode == gate.ModeObserve) {
				t.Errorf("to %s: changed is %t, error %v", mode, changed, err)
			}
		}
		if diff := cmp.Diff(before.Object, object.Object); diff != "" {
			t.Errorf("-before +after:\n%s", diff)
		}
	}
}
