package cli

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/manifests"
)

var errTooOld = errors.New("this cluster does not serve ValidatingAdmissionPolicy in admissionregistration.k8s.io/v1: nodegate needs Kubernetes 1.30 or newer")

// installed lists what nodegate has of kinds that admit. Those that not every cluster
// serves may be absent.
func installed(ctx context.Context, c *connection, kinds ...string) ([]*unstructured.Unstructured, error) {
	found := make([][]*unstructured.Unstructured, len(kinds))
	group, ctx := errgroup.WithContext(ctx)
	for i, kind := range kinds {
		group.Go(func() (err error) {
			found[i], err = installedOf(ctx, c, kind)
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(found...), err
}

func installedOf(ctx context.Context, c *connection, kind string) ([]*unstructured.Unstructured, error) {
	found, served, err := c.oursOf(ctx, admissionKind(kind))
	if err == nil && !served && (kind == "ValidatingAdmissionPolicy" || kind == "ValidatingAdmissionPolicyBinding") {
		err = errTooOld
	}
	return found, err
}

// ours lists what of a kind is nodegate's; nothing where the kind is not served.
func (c *connection) ours(ctx context.Context, versions []schema.GroupVersionKind) ([]*unstructured.Unstructured, error) {
	found, _, err := c.oursOf(ctx, versions)
	return found, err
}

// oursOf lists them in the first version that is served, if one is.
func (c *connection) oursOf(ctx context.Context, versions []schema.GroupVersionKind) (found []*unstructured.Unstructured, served bool, err error) {
	selector, err := labels.Parse(manifests.Installed)
	if err != nil {
		return nil, false, err
	}
	for _, kind := range versions {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		err := c.List(ctx, list, client.MatchingLabelsSelector{Selector: selector})
		if isNotServed(err) {
			continue
		}
		for i := range list.Items {
			found = append(found, &list.Items[i])
		}
		return found, true, explain(err, newObject(kind, "", "(list)"))
	}
	return nil, false, nil
}
