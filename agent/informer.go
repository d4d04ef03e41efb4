package agent

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// source is what an informer follows.
type source struct {
	resource, namespace string
	// choose has the selectors.
	choose metav1.ListOptions
	object runtime.Object
	// shrink drops what is of no use here.
	shrink cache.TransformFunc
}

// newInformer returns one that tells why it cannot follow, each time that it
// tries in vain, instead of logging it.
func newInformer(client rest.Interface, s source, failed func(error)) cache.SharedIndexInformer {
	list := cache.NewFilteredListWatchFromClient(client, s.resource, s.namespace, func(options *metav1.ListOptions) {
		options.FieldSelector, options.LabelSelector = s.choose.FieldSelector, s.choose.LabelSelector
	})
	informer := cache.NewSharedIndexInformerWithOptions(list, s.object, cache.SharedIndexInformerOptions{})
	// These fail only for an informer that runs already.
	_ = informer.SetTransform(s.shrink)
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { failed(err) })
	return informer
}
