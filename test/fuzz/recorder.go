package fuzz

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
)

// recorder is a webhook that comes last, changes nothing, and keeps what admission
// saw of the latest write: with the stamps that the API server has put on it, and
// the caller as it knows them.
type recorder struct {
	server *httptest.Server

	mu     sync.Mutex
	latest *gate.Write
	err    error
}

func startRecorder(ctx context.Context, admin kubernetes.Interface) (*recorder, error) {
	r := &recorder{}
	r.server = httptest.NewTLSServer(http.HandlerFunc(r.serve))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	_, err := admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "zzz.recorder.example.com"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    "recorder.example.com",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &r.server.URL, CABundle: ca},
			FailurePolicy:           new(admissionregistrationv1.Fail),
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			ReinvocationPolicy:      new(admissionregistrationv1.IfNeededReinvocationPolicy),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes", "nodes/status"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.server.Close()
		return nil, fmt.Errorf("registering the recorder: %w", err)
	}
	return r, nil
}

// take returns what admission saw of the latest write, or nil if it never came so
// far, and forgets it.
func (r *recorder) take() (*gate.Write, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	latest, err := r.latest, r.err
	r.latest, r.err = nil, nil
	return latest, err
}

func (r *recorder) serve(w http.ResponseWriter, request *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	latest, err := seen(review.Request)
	r.mu.Lock()
	r.latest, r.err = latest, err
	r.mu.Unlock()
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	if err := json.NewEncoder(w).Encode(&review); err != nil {
		panic(http.ErrAbortHandler) // the API server sees a broken answer
	}
}

func seen(request *admissionv1.AdmissionRequest) (*gate.Write, error) {
	w := &gate.Write{
		Operation: request.Operation, Subresource: request.SubResource, Name: request.Name, User: request.UserInfo,
		New: &corev1.Node{},
	}
	if err := json.Unmarshal(request.Object.Raw, w.New); err != nil {
		return nil, fmt.Errorf("reading the recorded Node: %w", err)
	}
	if len(request.OldObject.Raw) > 0 {
		w.Old = &corev1.Node{}
		if err := json.Unmarshal(request.OldObject.Raw, w.Old); err != nil {
			return nil, fmt.Errorf("reading the recorded stored Node: %w", err)
		}
	}
	return w, nil
}
