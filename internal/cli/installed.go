package cli

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	admissionregistrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
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
	selector, err := labels.Parse(manifests.Installed)
	if err != nil {
		return nil, err
	}
	for _, version := range []schema.GroupVersion{admissionregistrationv1.SchemeGroupVersion, admissionregistrationv1beta1.SchemeGroupVersion} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(version.WithKind(kind))
		err := c.List(ctx, list, client.MatchingLabelsSelector{Selector: selector})
		if isNotServed(err) {
			continue
		}
		if err != nil {
			return nil, explain(err, newObject(version.WithKind(kind), "", "(list)"))
		}
		var found []*unstructured.Unstructured
		for i := range list.Items {
			found = append(found, &list.Items[i])
		}
		return found, nil
	}
	if kind == "ValidatingAdmissionPolicy" || kind == "ValidatingAdmissionPolicyBinding" {
		return nil, errTooOld
	}
	return nil, nil
}
