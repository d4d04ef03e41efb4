package cli

import (
	"context"
	"slices"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// otherForm is what arms besides what is wanted, what makes it do so first.
func otherForm(ctx context.Context, c *connection, wanted manifests.Mutation) ([]*unstructured.Unstructured, error) {
	if wanted == manifests.ByPolicy {
		return installed(ctx, c, "MutatingWebhookConfiguration")
	}
	return installed(ctx, c, "MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy")
}

// leftBehind is what another configuration, or another form of the mutation, had
// besides, and what nothing refers to any more.
func leftBehind(ctx context.Context, c *connection, objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding", "ClusterRole", "Role"} {
		ours, err := c.ours(ctx, []schema.GroupVersionKind{rbacv1.SchemeGroupVersion.WithKind(kind)})
		if err != nil {
			return nil, err
		}
		found = append(found, ours...)
	}
	named := []*unstructured.Unstructured{newObject(corev1.SchemeGroupVersion.WithKind("Service"), gate.Namespace, gate.ControllerService)}
	if c.serves(certmanagerv1.SchemeGroupVersion.WithKind(certmanagerv1.CertificateKind)) {
		certificates, err := manifests.Certificates()
		if err != nil {
			return nil, err
		}
		named = append(named, certificates...)
	}
	wanted := map[string]bool{}
	for _, object := range objects {
		wanted[describe(object)] = true
	}
	for _, object := range named {
		if wanted[describe(object)] {
			continue
		}
		live, err := c.find(ctx, object)
		if err != nil {
			return nil, err
		}
		if live != nil {
			found = append(found, live)
		}
	}
	return slices.DeleteFunc(found, func(object *unstructured.Unstructured) bool { return wanted[describe(object)] }), nil
}

// secrets are those of the webhook's certificate in other forms of the mutation.
func secrets(wanted manifests.Mutation) ([]*unstructured.Unstructured, error) {
	var names []string
	if wanted != manifests.ByWebhook {
		names = append(names, gate.WebhookSecret)
	}
	if wanted != manifests.ByWebhookWithCertManager {
		certificates, err := manifests.Certificates()
		if err != nil {
			return nil, err
		}
		for _, object := range certificates {
			if name, found, _ := unstructured.NestedString(object.Object, "spec", "secretName"); found {
				names = append(names, name)
			}
		}
	}
	var left []*unstructured.Unstructured
	for _, name := range names {
		left = append(left, newObject(corev1.SchemeGroupVersion.WithKind("Secret"), gate.Namespace, name))
	}
	return left, nil
}

// showLeft prints what would be removed.
func (o *installOptions) showLeft(ctx context.Context, c *connection, p plan) error {
	objects, err := p.objects(p.mode)
	if err != nil {
		return err
	}
	for _, list := range []func() ([]*unstructured.Unstructured, error){
		func() ([]*unstructured.Unstructured, error) { return policiesOfNone(ctx, c, p.cfg) },
		func() ([]*unstructured.Unstructured, error) { return otherForm(ctx, c, p.options.Mutation) },
		func() ([]*unstructured.Unstructured, error) { return leftBehind(ctx, c, objects) },
	} {
		left, err := list()
		if err != nil {
			return err
		}
		for _, object := range left {
			o.didf("%s removed (server dry run)", describe(object))
		}
	}
	return nil
}
