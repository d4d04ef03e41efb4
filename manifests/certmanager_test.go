package manifests_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

// certManagerCRDs is the folder of the definitions in cert-manager's own module.
func certManagerCRDs(t *testing.T) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager")
	output, err := command.Output()
	if err != nil {
		t.Fatalf("looking for cert-manager's module: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(output)), "deploy", "crds")
}

// TestWebhookWithCertManager_OnAnAPIServer: an API server with cert-manager's
// definitions takes every object, with no field unknown and none dropped.
func TestWebhookWithCertManager_OnAnAPIServer(t *testing.T) {
	c := cluster.ForTest(t)
	if _, err := envtest.InstallCRDs(c.Admin, envtest.CRDInstallOptions{Paths: []string{certManagerCRDs(t)}, ErrorIfPathMissing: true}); err != nil {
		t.Fatalf("installing cert-manager's definitions: %v", err)
	}
	admin, err := client.New(c.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}}
	if err := admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	strict := client.WithFieldValidation(admin, client.FieldValidation(metav1.FieldValidationStrict))
	objects, err := manifests.WebhookWithCertManager(gate.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		stored := object.DeepCopy()
		if err := strict.Create(t.Context(), stored); err != nil {
			t.Fatalf("creating %s %q: %v", object.GetKind(), object.GetName(), err)
		}
		if diff := cmp.Diff(object.Object["spec"], stored.Object["spec"]); diff != "" {
			t.Errorf("spec of %s %q, -rendered +stored:\n%s", object.GetKind(), object.GetName(), diff)
		}
	}
	t.Run("what is wrong is refused", func(t *testing.T) {
		for name, spoil := range map[string]func(*unstructured.Unstructured) error{
			"an unknown field": func(u *unstructured.Unstructured) error {
				return unstructured.SetNestedField(u.Object, "x", "spec", "secretname")
			},
			"a wrong key size": func(u *unstructured.Unstructured) error {
				return unstructured.SetNestedField(u.Object, "256", "spec", "privateKey", "size")
			},
		} {
			wrong := objects[1].DeepCopy()
			wrong.SetName("wrong")
			if err := spoil(wrong); err != nil {
				t.Fatal(err)
			}
			if err := strict.Create(t.Context(), wrong); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Errorf("%s: %v, want a refusal", name, err)
			}
		}
	})
}

// TestWebhookWithCertManager_FitsTogether: what one object names, another is.
func TestWebhookWithCertManager_FitsTogether(t *testing.T) {
	objects, err := manifests.WebhookWithCertManager(gate.Default())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, object := range objects {
		known[object.GetKind()+" "+object.GetName()] = true
		if secret, found, _ := unstructured.NestedString(object.Object, "spec", "secretName"); found {
			known["Secret "+secret] = true
		}
		if injectFrom, found := object.GetAnnotations()["cert-manager.io/inject-ca-from"]; found {
			namespace, name, _ := strings.Cut(injectFrom, "/")
			if namespace != gate.Namespace || !known["Certificate "+name] {
				t.Errorf("%s %q: inject-ca-from names %q", object.GetKind(), object.GetName(), injectFrom)
			}
		}
		for prefix, path := range map[string][]string{
			"Issuer ": {"spec", "issuerRef", "name"}, "Secret ": {"spec", "ca", "secretName"},
		} {
			if name, found, _ := unstructured.NestedString(object.Object, path...); found && !known[prefix+name] {
				t.Errorf("%s %q names %s%q, which is not rendered before it", object.GetKind(), object.GetName(), prefix, name)
			}
		}
	}
}
