package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// TestController_ServesThroughAnOutage: no replica reaches the API server, as when
// one of several API servers still reaches the webhook. The one that led must end,
// for it may not guard any more; the other one answers as before and is ready, and
// guards when the API server is back.
func TestController_ServesThroughAnOutage(t *testing.T) {
	e := newEnvironment(t)
	wire, err := cluster.NewWire(e.account)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Cut)
	e.kubeconfig = kubeconfig(t, wire.Config(e.account))
	dir := t.TempDir()
	pair := newPair(t, time.Now())
	if err := pair.Write(dir); err != nil {
		t.Fatal(err)
	}
	args := []string{"--webhook", "--webhook-cert-source", "files", "--webhook-cert-dir", dir}
	leading := e.start(t, args...)
	e.expectGuarded(t, "before")
	other := e.start(t, args...)
	other.expectJudges(t, pair.CA)

	wire.Cut()
	leading.expectJudges(t, pair.CA)
	select {
	case err := <-leading.exited:
		close(leading.exited)
		if err == nil || !strings.Contains(leading.log.String(), "leader election lost") {
			t.Errorf("the replica that led ended with %v, and says\n%s", err, leading.log)
		}
	case <-time.After(patience):
		t.Fatal("the replica that led goes on")
	}
	other.expectJudges(t, pair.CA)
	if code, body := get(t.Context(), "http://"+other.health+"/readyz"); code != http.StatusOK {
		t.Errorf("without an API server /readyz answers %d %s", code, body)
	}

	if err := wire.Mend(); err != nil {
		t.Fatal(err)
	}
	e.expectGuarded(t, "after")
	other.expectJudges(t, pair.CA)
	e.start(t, args...).expectJudges(t, pair.CA)
}

// expectJudges: the taint is put back where it is removed too early, and may be
// removed where the heartbeat is fresh.
func (r *replica) expectJudges(t *testing.T, bundle []byte) {
	t.Helper()
	stored := armedNode()
	early := stored.DeepCopy()
	early.Spec.Taints = nil
	want := jsonpatch.NewOperation("add", "/spec/taints", gate.DefaultGate().WithTaint(nil))
	if answer := r.review(t, bundle, stored, early); !answer.Allowed || string(answer.Patch) != "["+want.Json()+"]" {
		t.Errorf("a removal without a heartbeat is answered by allowed=%t, patch %s, want %s", answer.Allowed, answer.Patch, want.Json())
	}
	value, err := gate.Heartbeat{
		Ready: true, Time: time.Now().UTC().Truncate(time.Second), TTL: time.Minute,
		BootID: stored.Status.NodeInfo.BootID, NodeUID: stored.UID,
	}.Format()
	if err != nil {
		t.Fatal(err)
	}
	serves := early.DeepCopy()
	serves.Annotations = map[string]string{gate.DefaultGate().HeartbeatAnnotation(): value}
	stored.Annotations = serves.Annotations
	if answer := r.review(t, bundle, stored, serves); !answer.Allowed || answer.Patch != nil {
		t.Errorf("a removal with a fresh heartbeat is answered by allowed=%t, patch %s", answer.Allowed, answer.Patch)
	}
}

func armedNode() *corev1.Node {
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "node", UID: "0deb1067-949c-4b9d-8907-4eaeaea221b2", Labels: map[string]string{corev1.LabelOSStable: "linux"},
		},
		Spec:   corev1.NodeSpec{Taints: gate.DefaultGate().WithTaint(nil)},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "de2d9a80-35f2-44b5-bea4-72f10b303c45"}},
	}
}

// review asks about an update of a Node.
func (r *replica) review(t *testing.T, bundle []byte, before, after *corev1.Node) *admissionv1.AdmissionResponse {
	t.Helper()
	raw := func(object any) []byte {
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	asked := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       "1",
			Operation: admissionv1.Update,
			Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
			Name:      after.Name,
			Object:    runtime.RawExtension{Raw: raw(after)},
			OldObject: runtime.RawExtension{Raw: raw(before)},
		},
	}
	body, _ := r.post(t, bundle, "127.0.0.1", string(raw(asked)))
	var answered admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(body), &answered); err != nil || answered.Response == nil {
		t.Fatalf("answer %s (%v)", body, err)
	}
	return answered.Response
}
