package manifests

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
)

// Differences names the fields of what admits in which an object of the cluster
// differs from the rendered one, such as spec.variables. Of what an API server fills
// in it makes nothing, nor of how the webhook is reached, or of the mode: see
// [ModeOf].
func Differences(rendered, live *unstructured.Unstructured) ([]string, error) {
	var trees [2]map[string]any
	for i, object := range []*unstructured.Unstructured{rendered, live} {
		object = object.DeepCopy()
		if _, err := SetMode(object, gate.ModeEnforce); err != nil {
			return nil, err
		}
		hooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
		for _, hook := range hooks {
			if fields, ok := hook.(map[string]any); ok {
				delete(fields, "clientConfig")
			}
		}
		trees[i] = map[string]any{"spec": object.Object["spec"], "webhooks": hooks}
	}
	found := map[string]bool{}
	differ(trees[0], trees[1], "", found)
	return slices.Sorted(maps.Keys(found)), nil
}

// ModeOf is the mode that a binding or a registration is in: enforce, or one of those
// that change nothing. The second result is false for what the mode means nothing to.
func ModeOf(object *unstructured.Unstructured) (enforced, follows bool, err error) {
	narrowed, err := SetMode(object.DeepCopy(), gate.ModeEnforce)
	if err != nil || narrowed {
		return false, err == nil, err
	}
	follows, err = SetMode(object.DeepCopy(), gate.ModePaused)
	return true, follows, err
}

// reported is down to where differences are named: what is in a policy is long.
const reported = 2

// differ notes where two trees differ.
func differ(want, have any, path string, found map[string]bool) {
	note := func() {
		fields := strings.SplitN(path, ".", reported+1)
		found[strings.Join(fields[:min(reported, len(fields))], ".")] = true
	}
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			have = nil
		}
		for key := range have {
			if _, wanted := want[key]; !wanted && !filledIn(key, have[key]) {
				differ(nil, have[key], join(path, key), found)
			}
		}
		for key, value := range want {
			if other, there := have[key]; there || !filledIn(key, value) {
				differ(value, other, join(path, key), found)
			}
		}
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			note()
			return
		}
		for i := range want {
			differ(want[i], have[i], path, found)
		}
	default:
		if !reflect.DeepEqual(want, have) && (!empty(want) || !filledIn("", have)) {
			note()
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// filledIn reports whether a field says what an API server takes for granted where
// it is absent.
func filledIn(field string, value any) bool {
	usual := map[string]any{
		"matchPolicy": "Equivalent", "failurePolicy": "Fail", "scope": "*", "reinvocationPolicy": "Never", "timeoutSeconds": int64(10),
	}
	if fields, ok := value.(map[string]any); ok {
		for field, value := range fields {
			if !filledIn(field, value) {
				return false
			}
		}
		return true
	}
	return empty(value) || usual[field] == value
}

func empty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case []any:
		return len(value) == 0
	}
	return false
}
