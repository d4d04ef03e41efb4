package conformance

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/test/cases"
)

// Values of the strip label: who takes the taints away.
const (
	stripByPolicy  = "true"
	stripByWebhook = cases.StripByWebhook
	// stripAgain is a webhook that is invoked again after everybody else.
	stripAgain = "again"
)

// startForeignWebhooks serves and registers webhooks of somebody else that take
// every taint away. Webhooks run after all policies, so theirs is the last word
// of the first pass.
func startForeignWebhooks(ctx context.Context, admin kubernetes.Interface) (stop func(), err error) {
	server := httptest.NewTLSServer(http.HandlerFunc(stripTaints))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign.example.com"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			foreignWebhook("once.example.com", stripByWebhook, admissionregistrationv1.NeverReinvocationPolicy, server.URL, ca),
			foreignWebhook("again.example.com", stripAgain, admissionregistrationv1.IfNeededReinvocationPolicy, server.URL, ca),
		},
	}
	_, err = admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, configuration, metav1.CreateOptions{})
	if err != nil {
		server.Close()
		return nil, fmt.Errorf("registering foreign webhooks: %w", err)
	}
	return server.Close, nil
}

func foreignWebhook(name, strip string, reinvocation admissionregistrationv1.ReinvocationPolicyType, url string, ca []byte,
) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    name,
		ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca},
		FailurePolicy:           new(admissionregistrationv1.Fail),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		ReinvocationPolicy:      &reinvocation,
		AdmissionReviewVersions: []string{"v1"},
		ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{cases.StripLabel: strip}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
		}},
	}
}

func stripTaints(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var node corev1.Node
	err := json.NewDecoder(r.Body).Decode(&review)
	if err == nil {
		err = json.Unmarshal(review.Request.Object.Raw, &node)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if len(node.Spec.Taints) > 0 {
		review.Response.PatchType = new(admissionv1.PatchTypeJSONPatch)
		review.Response.Patch = []byte(`[{"op":"remove","path":"/spec/taints"}]`)
	}
	review.Request = nil
	if err := json.NewEncoder(w).Encode(&review); err != nil {
		panic(http.ErrAbortHandler) // the API server sees a broken answer
	}
}
