package cli

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestInstalled_TooOld: a cluster that does not serve what nodegate cannot do without
// is told from one in which it is not installed.
func TestInstalled_TooOld(t *testing.T) {
	c := &connection{Client: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			return &meta.NoKindMatchError{GroupKind: list.GetObjectKind().GroupVersionKind().GroupKind(), SearchedVersions: []string{"v1"}}
		},
	}).Build()}
	if _, err := installed(t.Context(), c, "ValidatingAdmissionPolicy"); !errors.Is(err, errTooOld) {
		t.Errorf("error %v, want %v", err, errTooOld)
	}
	found, err := installed(t.Context(), c, "MutatingAdmissionPolicy", "MutatingWebhookConfiguration")
	if err != nil || len(found) > 0 {
		t.Errorf("found %v, error %v", found, err)
	}
}
