package guard_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
)

// faulty is the way to an API server on which writes of Nodes go wrong: refused, or
// done without an answer that says so.
type faulty struct {
	http.RoundTripper
	mu     sync.Mutex
	random *rand.Rand
	count  map[string]int
}

func (f *faulty) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodPatch || !strings.HasPrefix(request.URL.Path, "/api/v1/nodes/") {
		return f.RoundTripper.RoundTrip(request)
	}
	f.mu.Lock()
	faults := []string{"", "busy", "conflict", "error", "timeout", "done, error", "done, timeout"}
	fault := faults[f.random.IntN(len(faults))]
	f.count[fault]++
	f.mu.Unlock()
	if fault == "" || strings.HasPrefix(fault, "done") {
		answer, err := f.RoundTripper.RoundTrip(request)
		if fault == "" || err != nil {
			return answer, err
		}
		_ = answer.Body.Close()
	}
	switch strings.TrimPrefix(fault, "done, ") {
	case "busy":
		answer := f.answer(request, http.StatusTooManyRequests, "TooManyRequests")
		answer.Header.Set("Retry-After", "0")
		return answer, nil
	case "conflict":
		return f.answer(request, http.StatusConflict, "Conflict"), nil
	case "error":
		return f.answer(request, http.StatusInternalServerError, "InternalError"), nil
	}
	return nil, context.DeadlineExceeded
}

func (f *faulty) answer(request *http.Request, code int, reason string) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	return &http.Response{
		Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// faults: whatever becomes of its writes, a guard arms every Node, and once.
func (e *environment) faults(t *testing.T) {
	const nodes = 40
	f := &faulty{random: rand.New(rand.NewPCG(1, 2)), count: map[string]int{}}
	config := rest.CopyConfig(e.config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { f.RoundTripper = rt; return f })
	var names []string
	for i := range nodes {
		// Only the guard with faults governs these.
		name := fmt.Sprintf("faults-%d", i)
		e.node(t, name, setup{raw: "{", gate: troubled, labels: map[string]string{troubled: "true", "kubernetes.io/os": "other"}})
		names = append(names, name)
	}
	cfg := &gate.Configuration{Mode: gate.ModeEnforce, Gates: []gate.Gate{troubledGate()}}
	began := time.Now()
	e.guard(t, config, cfg)
	eventually(t, "all Nodes to be armed", func() bool {
		for _, name := range names {
			node := e.get(t, name)
			count := 0
			for _, taint := range node.Spec.Taints {
				if cfg.Gates[0].IsTaint(taint) {
					count++
				}
			}
			if count > 1 {
				t.Fatalf("node %s carries the taint %d times", name, count)
			}
			if count == 0 {
				return false
			}
		}
		return true
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Logf("armed %d Nodes in %s, writes: %v", nodes, time.Since(began), f.count)
	if len(f.count) != 7 {
		t.Errorf("not every fault occurred: %v", f.count)
	}
}

// untainter: somebody removes the taint for ever, where no admission hinders it.
// Every time it is armed again, and it is told as one Event for each of the two.
func (e *environment) untainter(t *testing.T) {
	const rounds = 15
	node := e.node(t, "untainted", setup{heartbeat: func(hb *gate.Heartbeat) { hb.Ready = false }, pod: true})
	for range rounds {
		e.armed(t, node, gate.DefaultName)
		patch := []byte(`{"spec":{"taints":null}}`)
		if err := e.admin.Patch(t.Context(), node.DeepCopy(), client.RawPatch("application/merge-patch+json", patch)); err != nil {
			t.Fatal(err)
		}
	}
	e.armed(t, node, gate.DefaultName)
	for _, reason := range []string{"NotReady", "Opened"} {
		if events := e.expectEvent(t, "default", node.Name, reason); len(events) != 1 {
			t.Errorf("%d Events %s, want 1: %v", len(events), reason, events)
		}
	}
}

// denied: where a policy forbids the taint, other Nodes do not wait, and when it is
// gone the Node is armed.
func (e *environment) denied(t *testing.T) {
	forbids := fmt.Sprintf("object.metadata.name != 'denied' || !has(object.spec.taints) || !object.spec.taints.exists(t, t.key == %q)", gate.DefaultTaintKey)
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "forbids"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: forbids}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "forbids"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "forbids", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	e.create(t, policy)
	e.create(t, binding)
	node := e.node(t, "denied", setup{pod: true})
	taint := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, gate.DefaultTaintKey))
	eventually(t, "the policy to be in force", func() bool {
		return apierrors.IsInvalid(e.admin.Patch(t.Context(), node.DeepCopy(), taint, client.DryRunAll))
	})
	notReady := func(hb *gate.Heartbeat) { hb.Ready = false }
	e.merge(t, node, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		gate.HeartbeatPrefix + gate.DefaultName: e.heartbeat(t, node, notReady),
	}}})
	e.armed(t, e.node(t, "not-denied", setup{pod: true, heartbeat: notReady}), gate.DefaultName)
	e.expectOpen(t, node)
	for _, object := range []client.Object{binding, policy} {
		if err := e.admin.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	e.armed(t, node, gate.DefaultName)
}
