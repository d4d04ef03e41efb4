package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
)

// applied is what an apply does, or would do, to an object.
type applied struct {
	// before is nil where there was none.
	before, after *unstructured.Unstructured
	// unchecked: the object's namespace, or what it refers to, is not there yet, so
	// that the API server could not try it.
	unchecked bool
}

func (a applied) outcome() string {
	switch {
	case a.before == nil:
		return "created"
	case a.before.GetResourceVersion() == a.after.GetResourceVersion() && a.diff() == "" && len(a.lost()) == 0:
		return "unchanged"
	}
	return "configured"
}

// predecessors are managers whose fields become those of the apply: of `kubectl
// apply`, by which an installation may have been made, and of this program's other
// commands. What such a manager set and the apply does not goes.
func predecessors() sets.Set[string] {
	return sets.New("kubectl-client-side-apply", "kubectl-create", gate.ManagerCLI)
}

// lost are the fields that `kubectl apply` was told to set and this apply is not, which
// go with their manager. A dry run of the apply alone cannot show it.
func (a applied) lost() []string {
	if a.before == nil {
		return nil
	}
	var told any // what was never applied is told nothing
	_ = json.Unmarshal([]byte(a.before.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), &told)
	theirs, kept := &fieldpath.Set{}, &fieldpath.Set{}
	for _, entry := range a.before.GetManagedFields() {
		if succeeds(entry) {
			theirs = theirs.Union(fieldsOf(entry))
		}
	}
	for _, entry := range a.after.GetManagedFields() {
		if !succeeds(entry) {
			kept = kept.Union(fieldsOf(entry))
		}
	}
	var paths []string
	theirs.Leaves().Difference(kept).Iterate(func(path fieldpath.Path) {
		if has(told, path) {
			paths = append(paths, path.String())
		}
	})
	slices.Sort(paths)
	return paths
}

// has reports whether there is something at a path. What the API server fills in was
// never told, not even in the key of an item.
func has(told any, path fieldpath.Path) bool {
	if len(path) == 0 {
		return true
	}
	switch at := path[0]; {
	case at.FieldName != nil:
		fields, _ := told.(map[string]any)
		field, there := fields[*at.FieldName]
		return there && has(field, path[1:])
	case at.Key != nil:
		items, _ := told.([]any)
		return slices.ContainsFunc(items, func(item any) bool { return isItem(item, *at.Key) && has(item, path[1:]) })
	}
	return told != nil
}

func isItem(item any, key value.FieldList) bool {
	fields, _ := item.(map[string]any)
	return !slices.ContainsFunc(key, func(f value.Field) bool {
		is, told := fields[f.Name]
		return told && fmt.Sprint(is) != fmt.Sprint(f.Value.Unstructured())
	})
}

// succeeds reports whether an entry's fields become the apply's.
func succeeds(entry metav1.ManagedFieldsEntry) bool {
	return entry.Operation == metav1.ManagedFieldsOperationUpdate && entry.Subresource == "" && predecessors().Has(entry.Manager)
}

// fieldsOf is empty where they cannot be read.
func fieldsOf(entry metav1.ManagedFieldsEntry) *fieldpath.Set {
	set := &fieldpath.Set{}
	if entry.FieldsV1 == nil || set.FromJSON(entry.FieldsV1.GetRawReader()) != nil {
		return &fieldpath.Set{}
	}
	return set
}

// find returns the object that is there, or nil.
func (c *connection) find(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	found := newObject(object.GroupVersionKind(), object.GetNamespace(), object.GetName())
	err := c.Get(ctx, client.ObjectKeyFromObject(found), found)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, explain(err, object)
}

// tryApply has the API server try an apply: validation, rights, other admission, and
// whether another manager set a field otherwise. Nothing is changed.
func (c *connection) tryApply(ctx context.Context, object *unstructured.Unstructured, force bool) (applied, error) {
	before, err := c.find(ctx, object)
	if err != nil {
		return applied{}, err
	}
	after := object.DeepCopy()
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(after), client.DryRunAll)
	var others []metav1.StatusCause
	if apierrors.IsConflict(err) {
		others = conflicts(err)
		after = object.DeepCopy()
		err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(after), client.DryRunAll, client.ForceOwnership)
	}
	switch {
	case apierrors.IsNotFound(err) && before == nil:
		return applied{after: object, unchecked: true}, nil
	case err != nil:
		return applied{}, explain(err, object)
	}
	others = slices.DeleteFunc(others, func(c metav1.StatusCause) bool { return same(c.Field, before, after) })
	if len(others) > 0 && !force {
		fields := make([]string, len(others))
		for i, other := range others {
			fields[i] = other.Field + ", " + other.Message
		}
		return applied{}, fmt.Errorf("%s: set otherwise by others (%s); --force-conflicts takes these fields over",
			describe(object), strings.Join(fields, ", "))
	}
	return applied{before: before, after: after}, nil
}

// same reports whether a field that another manager has set stays as it is. An API
// server takes what it has filled in for a conflict, where a field is taken as a whole.
func same(field string, before, after *unstructured.Unstructured) bool {
	if strings.Contains(field, "[") {
		return false // of a list, which is not looked into
	}
	path := strings.Split(strings.TrimPrefix(field, "."), ".")
	was, there, err := unstructured.NestedFieldNoCopy(before.Object, path...)
	is, stays, isErr := unstructured.NestedFieldNoCopy(after.Object, path...)
	return err == nil && isErr == nil && there && stays && equality.Semantic.DeepEqual(was, is)
}

// conflicts are of the fields that managers other than the predecessors have set.
func conflicts(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(status.Status().Details.Causes), func(cause metav1.StatusCause) bool {
		ours := false
		for manager := range predecessors() {
			ours = ours || strings.Contains(cause.Message, strconv.Quote(manager))
		}
		return cause.Type != metav1.CauseTypeFieldManagerConflict || ours
	})
}

// apply makes the object as it is to be. What others set besides stays.
func (c *connection) apply(ctx context.Context, object *unstructured.Unstructured) (applied, error) {
	var before *unstructured.Unstructured
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var err error
		if before, err = c.find(ctx, object); err != nil || before == nil {
			return err
		}
		return explain(c.succeed(ctx, before), object)
	})
	if err != nil {
		return applied{}, err
	}
	after := object.DeepCopy()
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(after), client.ForceOwnership); err != nil {
		return applied{}, explain(err, object)
	}
	return applied{before: before, after: after}, nil
}

// succeed makes the fields of the predecessors this program's own, by apply.
func (c *connection) succeed(ctx context.Context, object *unstructured.Unstructured) error {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(object, predecessors(), gate.ManagerCLI)
	if err != nil || patch == nil {
		return err
	}
	return c.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch))
}

// diff is what an apply changes, as text; empty if nothing.
func (a applied) diff() string {
	before, after := content(a.before), content(a.after)
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(before), B: difflib.SplitLines(after), FromFile: "now", ToFile: "then", Context: 3,
	})
	if err != nil {
		return err.Error()
	}
	return text
}

// content is an object without what an API server keeps about it.
func content(object *unstructured.Unstructured) string {
	if object == nil {
		return ""
	}
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	for _, field := range []string{"resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		text, _ = json.Marshal(object.Object) //nolint:errchkjson // it came as JSON
	}
	return string(text)
}
