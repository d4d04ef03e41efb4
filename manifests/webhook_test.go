package manifests_test

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/golden"
)

// TestWebhook_Golden: what is committed is what is rendered for the default gate.
func TestWebhook_Golden(t *testing.T) {
	registration, err := manifests.Webhook(gate.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	withCertManager, err := manifests.WebhookWithCertManager(gate.Default())
	if err != nil {
		t.Fatal(err)
	}
	for file, objects := range map[string][]*unstructured.Unstructured{
		"webhook/default.yaml": {registration}, "webhook/cert-manager.yaml": withCertManager,
	} {
		got, err := manifests.YAML(objects)
		if err != nil {
			t.Fatal(err)
		}
		golden.Expect(t, file, got)
	}
}

// TestWebhook_Mode: outside enforce no Node is put to the webhook.
func TestWebhook_Mode(t *testing.T) {
	for _, mode := range gate.Modes() {
		cfg := cases.Config()
		cfg.Mode = mode
		object, err := manifests.Webhook(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		var registration admissionregistrationv1.MutatingWebhookConfiguration
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &registration); err != nil {
			t.Fatal(err)
		}
		narrowed := registration.Webhooks[0].ObjectSelector != nil
		if want := mode != gate.ModeEnforce; narrowed != want {
			t.Errorf("mode %s: narrowed to nothing: %t, want %t", mode, narrowed, want)
		}
	}
}
