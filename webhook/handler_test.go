package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/gen"
)

var now = time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC)

const nodeUID = "0deb1067-949c-4b9d-8907-4eaeaea221b2"

func newHandler(cfg *gate.Configuration, at time.Time) *Handler {
	return &Handler{
		Configuration: func() *gate.Configuration { return cfg },
		Clock:         clocktesting.NewFakePassiveClock(at),
		Metrics:       NewMetrics(),
	}
}

// ask puts a write to the handler as an API server does, and returns the answer
// and the sent object as the answer leaves it.
func ask(t fataler, h *Handler, w gate.Write) (admission.Response, []byte) {
	t.Helper()
	r := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID:         "1",
		Kind:        metav1.GroupVersionKind{Version: "v1", Kind: "Node"},
		Resource:    metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
		SubResource: w.Subresource,
		Name:        w.Name,
		Operation:   w.Operation,
		UserInfo:    w.User,
		Object:      runtime.RawExtension{Raw: unknownFields(t, w.New)},
		OldObject:   runtime.RawExtension{Raw: unknownFields(t, w.Old)},
	}}
	answer := (&admission.Webhook{Handler: h}).Handle(t.Context(), r)
	if answer.Patch == nil {
		return answer, r.Object.Raw
	}
	patch, err := jsonpatch.DecodePatch(answer.Patch)
	if err != nil {
		t.Fatalf("decoding patch %s: %v", answer.Patch, err)
	}
	result, err := patch.Apply(r.Object.Raw)
	if err != nil {
		t.Fatalf("applying patch %s: %v", answer.Patch, err)
	}
	return answer, result
}

// unknownFields writes a Node with fields that no version of the API has yet.
func unknownFields(t fataler, node *corev1.Node) []byte {
	t.Helper()
	if node == nil {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		t.Fatalf("encoding Node: %v", err)
	}
	content["futureField"] = map[string]any{"big": int64(9007199254740993)}
	spec := content["spec"].(map[string]any)
	spec["futureSpec"] = "kept"
	if taints, ok := spec["taints"].([]any); ok {
		for _, taint := range taints {
			taint.(map[string]any)["futureTaint"] = "kept"
		}
	}
	return marshal(t, content)
}

// fataler is a [testing.T] or a [rapid.T].
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Context() context.Context
}

func marshal(t fataler, content any) []byte {
	t.Helper()
	data, err := json.Marshal(content)
	if err != nil {
		t.Fatalf("encoding: %v", err)
	}
	return data
}

// expect says what the sent object becomes by the decisions of package gate, and
// no other way.
func expect(t fataler, cfg *gate.Configuration, w gate.Write, at time.Time) []byte {
	t.Helper()
	sent := unknownFields(t, w.New)
	var added []any
	for i := range cfg.Gates {
		decision := cfg.Gates[i].Admit(w, at)
		decision.TimeAdded = nil // for judges without a clock
		for _, taint := range cfg.Gates[i].Apply(decision, nil) {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&taint)
			if err != nil {
				t.Fatalf("encoding taint: %v", err)
			}
			added = append(added, content)
		}
	}
	if len(added) == 0 {
		return sent
	}
	node := unmarshal(t, sent).(map[string]any)
	spec := node["spec"].(map[string]any)
	taints, _ := spec["taints"].([]any)
	spec["taints"] = append(taints, added...)
	return marshal(t, node)
}

func sameJSON(t fataler, want, got []byte) string {
	t.Helper()
	return cmp.Diff(unmarshal(t, want), unmarshal(t, got))
}

// unmarshal keeps every digit of a number.
func unmarshal(t fataler, data []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var content any
	if err := decoder.Decode(&content); err != nil {
		t.Fatalf("decoding %s: %v", data, err)
	}
	return content
}

// The webhook's clock is set to the stamp by which the policy judges: then they
// must agree on every row.
func TestHandler_Table(t *testing.T) {
	for _, tc := range cases.Table() {
		if tc.Verb == cases.Delete {
			continue
		}
		t.Run(tc.ID, func(t *testing.T) {
			cfg := cases.Config()
			if tc.Mode != "" {
				cfg.Mode = tc.Mode
			}
			node := cases.Blank("node-1", nodeUID, now)
			if tc.Stored != nil {
				tc.Stored(node, now)
			}
			w := tc.Write(node, node.Name, now)
			clock := cfg.Gates[0].LatestTime(w.Old, w.New)
			answer, got := ask(t, newHandler(cfg, clock), w)
			if !answer.Allowed {
				t.Fatalf("refused: %v", answer.Result)
			}
			want := expect(t, cfg, w, clock)
			if cfg.Mode != gate.ModeEnforce {
				want = unknownFields(t, w.New)
			}
			if diff := sameJSON(t, want, got); diff != "" {
				t.Errorf("%s\n-want +got:\n%s", tc.Must, diff)
			}
			armed := strings.Contains(string(answer.Patch), gate.DefaultTaintKey)
			if tc.Want != cases.Denied && !tc.Foreign && armed != (tc.Want == cases.Armed) {
				t.Errorf("%s\nwant %s, patch %s", tc.Must, tc.Want, answer.Patch)
			}
		})
	}
}

// Whatever the write, the answer is what package gate decides.
func TestHandler_RandomWrites(t *testing.T) {
	cfg := cases.Config()
	h := newHandler(cfg, gen.Now)
	rapid.Check(t, func(t *rapid.T) {
		w := gen.Write(cfg).Filter(encodable).Draw(t, "write")
		answer, got := ask(t, h, w)
		if !answer.Allowed {
			t.Fatalf("refused: %v", answer.Result)
		}
		if diff := sameJSON(t, expect(t, cfg, w, gen.Now), got); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}

// encodable leaves out Nodes with stamps that JSON cannot say.
func encodable(w gate.Write) bool {
	for _, node := range []*corev1.Node{w.Old, w.New} {
		if _, err := json.Marshal(node); err != nil {
			return false
		}
	}
	return true
}

func TestHandler_IsIdempotent(t *testing.T) {
	cfg := gate.Default()
	h := newHandler(cfg, now)
	w := removal()
	_, got := ask(t, h, w)
	if err := json.Unmarshal(got, w.New); err != nil {
		t.Fatal(err)
	}
	answer, _ := ask(t, h, w)
	if !answer.Allowed || answer.Patch != nil || answer.Warnings != nil {
		t.Errorf("the second pass answers %s, %v", answer.Patch, answer.Warnings)
	}
}

// removal is a premature one of the taint.
func removal() gate.Write {
	node := cases.Blank("node-1", nodeUID, now)
	open := node.DeepCopy()
	node.Spec.Taints = []corev1.Taint{{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoSchedule}}
	return gate.Write{Operation: admissionv1.Update, Name: node.Name, User: cases.Editor.UserInfo(node.Name), Old: node, New: open}
}

func TestHandler_WarnsTheCaller(t *testing.T) {
	h := newHandler(gate.Default(), now)
	kept := removal()
	evidence := removal()
	evidence.Old.Spec.Taints = nil
	evidence.Old.Annotations = map[string]string{"heartbeat.nodegate.io/agent": "v=1"}
	created := gate.Write{Operation: admissionv1.Create, Name: "node-1", User: cases.Kubelet.UserInfo("node-1"), New: kept.New}
	tests := map[string]struct {
		write gate.Write
		want  []string
	}{
		"put back": {kept, []string{"nodegate: taint nodegate.io/agent-not-ready was put back: there is no heartbeat of the node's agent (Absent); see annotation heartbeat.nodegate.io/agent of the node"}},
		"added":    {evidence, []string{"nodegate: taint nodegate.io/agent-not-ready was added: there is no heartbeat of the node's agent (Absent); see annotation heartbeat.nodegate.io/agent of the node"}},
		"created":  {created, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer, _ := ask(t, h, tc.write)
			if answer.Patch == nil {
				t.Error("was not armed")
			}
			if diff := cmp.Diff(tc.want, answer.Warnings, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The API server cuts a warning that is longer.
func TestHandler_WarningsAreShort(t *testing.T) {
	g := gate.DefaultGate()
	for _, verdict := range gate.Verdicts() {
		for _, cause := range []gate.Cause{gate.CauseKept, gate.CauseEvidence} {
			for _, warning := range warn(g, gate.Decision{Arm: true, Cause: cause, Verdict: verdict}, removal()) {
				if len(warning) > 256 {
					t.Errorf("warning of %d bytes: %s", len(warning), warning)
				}
			}
		}
	}
}

func TestHandler_OtherModesTouchNothing(t *testing.T) {
	for _, mode := range []gate.Mode{gate.ModeObserve, gate.ModePaused} {
		cfg := gate.Default()
		cfg.Mode = mode
		h := newHandler(cfg, now)
		answer, _ := ask(t, h, removal())
		if !answer.Allowed || answer.Patch != nil || answer.Warnings != nil {
			t.Errorf("mode %s answers %s, %v", mode, answer.Patch, answer.Warnings)
		}
	}
}

func TestHandler_Metrics(t *testing.T) {
	h := newHandler(gate.Default(), now)
	registry := prometheus.NewRegistry()
	if err := h.Metrics.Register(registry); err != nil {
		t.Fatal(err)
	}
	ask(t, h, removal())
	w := removal()
	w.New.Labels["kubernetes.io/os"] = "windows"
	ask(t, h, w)
	h.Handle(t.Context(), admission.Request{})
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP nodegate_webhook_decisions_total Writes that were judged, by gate, by the cause for which the taint was added (None if it was not), and by the heartbeat's verdict (None if it was not asked).
# TYPE nodegate_webhook_decisions_total counter
nodegate_webhook_decisions_total{cause="Kept",gate="agent",verdict="Absent"} 1
nodegate_webhook_decisions_total{cause="None",gate="agent",verdict="None"} 1
# HELP nodegate_webhook_refused_total Requests that were not about a Node, and so failed.
# TYPE nodegate_webhook_refused_total counter
nodegate_webhook_refused_total 1
`), "nodegate_webhook_decisions_total", "nodegate_webhook_refused_total")
	if err != nil {
		t.Error(err)
	}
	if count := testutil.CollectAndCount(h.Metrics.duration); count != 1 {
		t.Errorf("%d histograms of the duration", count)
	}
}

const reviewHead = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","name":"node-1",
	"resource":{"group":"","version":"v1","resource":"nodes"},"kind":{"group":"","version":"v1","kind":"Node"},"operation":"UPDATE",`

// post sends a body as an API server would, and returns the answer's code.
func post(t *testing.T, body []byte) int {
	t.Helper()
	server, err := NewServer("127.0.0.1:0", selfSigned(t), newHandler(gate.Default(), now))
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodPost, gate.WebhookPath, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	server.WebhookMux().ServeHTTP(recorder, request)
	var review admissionv1.AdmissionReview
	err = json.Unmarshal(recorder.Body.Bytes(), &review)
	if recorder.Code == http.StatusOK && (err != nil || review.Response == nil || !review.Response.Allowed) {
		t.Fatalf("answer %q refuses: %v", recorder.Body, err)
	}
	return recorder.Code
}

// No answer refuses a write: what is no Node is an HTTP error, which fails open.
func TestServer_PassesOverWhatIsNoNode(t *testing.T) {
	tests := map[string]struct {
		body string
		want int
	}{
		"nothing":              {"", http.StatusBadRequest},
		"no JSON":              {"{", http.StatusBadRequest},
		"no review":            {`{"apiVersion":"v1","kind":"Node"}`, http.StatusBadRequest},
		"a pod":                {strings.Replace(reviewHead, `"nodes"`, `"pods"`, 1) + `"object":{},"oldObject":{}}}`, http.StatusBadRequest},
		"another group's":      {strings.Replace(reviewHead, `"group":""`, `"group":"metrics.k8s.io"`, 1) + `"object":{},"oldObject":{}}}`, http.StatusBadRequest},
		"no object":            {reviewHead + `"oldObject":{}}}`, http.StatusBadRequest},
		"no oldObject":         {reviewHead + `"object":{}}}`, http.StatusBadRequest},
		"null":                 {reviewHead + `"object":null,"oldObject":{}}}`, http.StatusBadRequest},
		"a list":               {reviewHead + `"object":[],"oldObject":{}}}`, http.StatusBadRequest},
		"labels of numbers":    {reviewHead + `"object":{"metadata":{"labels":{"a":1}}},"oldObject":{}}}`, http.StatusBadRequest},
		"taints of strings":    {reviewHead + `"object":{"spec":{"taints":["a"]}},"oldObject":{}}}`, http.StatusBadRequest},
		"eight megabytes":      {reviewHead + `"object":{"metadata":{"name":"` + strings.Repeat("x", 8<<20) + `"}},"oldObject":{}}}`, http.StatusRequestEntityTooLarge},
		"an empty Node":        {reviewHead + `"object":{},"oldObject":{}}}`, http.StatusOK},
		"a Node of the future": {reviewHead + `"object":{"status":{"images":7}},"oldObject":{"spec":{"podCIDRs":{}}}}}`, http.StatusOK},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := post(t, []byte(tc.body)); got != tc.want {
				t.Errorf("code %d, want %d", got, tc.want)
			}
		})
	}
}

// Whatever an API server, of whatever version, writes for "no taints".
func TestHandler_NodesWithoutTaints(t *testing.T) {
	h := newHandler(gate.Default(), now)
	const labels = `"metadata":{"labels":{"kubernetes.io/os":"linux"}}`
	const want = `{` + labels + `,"spec":{"taints":[{"key":"nodegate.io/agent-not-ready","effect":"NoSchedule"}]}}`
	for _, rest := range []string{``, `,"spec":null`, `,"spec":{}`, `,"spec":{"taints":null}`, `,"spec":{"taints":[]}`} {
		object := []byte(`{` + labels + rest + `}`)
		answer := h.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"}, Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: object},
		}})
		patch, err := jsonpatch.DecodePatch(marshal(t, answer.Patches))
		if err != nil {
			t.Fatal(err)
		}
		got, err := patch.Apply(object)
		if err != nil {
			t.Errorf("%s: applying patch: %v", object, err)
			continue
		}
		if diff := sameJSON(t, []byte(want), got); diff != "" {
			t.Errorf("%s:\n-want +got:\n%s", object, diff)
		}
	}
}

// No body makes the handler panic: controller-runtime would recover and answer
// with 500.
func FuzzHandler(f *testing.F) {
	f.Add([]byte(reviewHead + `"object":{"spec":{"taints":[{}]}},"oldObject":{"spec":null}}}`))
	f.Add([]byte(reviewHead + `"object":{"metadata":{"labels":{"kubernetes.io/os":"linux"},"annotations":{"heartbeat.nodegate.io/agent":"v=1"}}},"oldObject":{}}}`))
	hook := &admission.Webhook{Handler: newHandler(gate.Default(), now)}
	f.Fuzz(func(t *testing.T, body []byte) {
		request := httptest.NewRequest(http.MethodPost, gate.WebhookPath, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		hook.ServeHTTP(recorder, request)
		if bytes.Contains(recorder.Body.Bytes(), []byte("recovered")) {
			t.Errorf("panicked: %s", recorder.Body)
		}
	})
}
