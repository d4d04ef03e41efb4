package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/nodegate/nodegate/gate"
)

// Handler answers what an API server asks about writes to Nodes.
type Handler struct {
	// Configuration returns the one in force, which must not be changed any more.
	Configuration func() *gate.Configuration
	// Clock shows the API server's time.
	Clock clock.PassiveClock
	// Metrics count what is decided. Default: none.
	Metrics *Metrics
}

var _ admission.Handler = (*Handler)(nil)

// Handle implements [admission.Handler].
func (h *Handler) Handle(_ context.Context, request admission.Request) admission.Response {
	began := time.Now()
	response := h.answer(request)
	h.Metrics.took(time.Since(began))
	return response
}

func (h *Handler) answer(request admission.Request) admission.Response {
	cfg := h.Configuration()
	if cfg.Mode != gate.ModeEnforce {
		return admission.Allowed("")
	}
	sent, err := decode(request.AdmissionRequest)
	if err != nil {
		h.Metrics.refused()
		return admission.Errored(http.StatusBadRequest, err)
	}
	if sent.write.New == nil {
		return admission.Allowed("")
	}
	return h.mutate(sent, cfg.Gates)
}

// mutate asks every gate, each of which sees the Node as it was sent: they act
// independently.
func (h *Handler) mutate(sent request, gates []gate.Gate) admission.Response {
	now := h.Clock.Now()
	var taints []corev1.Taint
	var warnings []string
	for i := range gates {
		g := &gates[i]
		d := g.Admit(sent.write, now)
		h.Metrics.decided(g, d)
		if !d.Arm {
			continue
		}
		d.TimeAdded = nil // for judges without a clock
		taints = append(taints, g.Apply(d, nil)...)
		warnings = append(warnings, warn(g, d, sent.write)...)
	}
	response := admission.Patched("", sent.add(taints)...)
	response.Warnings = warnings
	return response
}

// warn tells the caller what became of the write and what to look at. A CREATE
// is armed always; there is nothing to say about it.
func warn(g *gate.Gate, d gate.Decision, w gate.Write) []string {
	if w.Operation == admissionv1.Create {
		return nil
	}
	did := "taint %s was added"
	if d.Cause == gate.CauseKept {
		did = "taint %s was put back"
	}
	return []string{fmt.Sprintf("nodegate: "+did+": %s (%s); see annotation %s of the node",
		g.Taint.Key, d.Verdict.Meaning(), d.Verdict, g.HeartbeatAnnotation())}
}

// add is the patch that adds taints at the end of the list.
func (r request) add(taints []corev1.Taint) []jsonpatch.JsonPatchOperation {
	if len(taints) == 0 {
		return nil
	}
	switch {
	case !r.hasSpec:
		return []jsonpatch.JsonPatchOperation{jsonpatch.NewOperation("add", "/spec", corev1.NodeSpec{Taints: taints})}
	case len(r.write.New.Spec.Taints) == 0:
		return []jsonpatch.JsonPatchOperation{jsonpatch.NewOperation("add", "/spec/taints", taints)}
	}
	patch := make([]jsonpatch.JsonPatchOperation, 0, len(taints))
	for _, taint := range taints {
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/taints/-", taint))
	}
	return patch
}

// errNoNode is the answer to what only a wrong registration can send. It refuses
// nothing, see [failOpen].
var errNoNode = errors.New("the webhook is asked about v1 nodes only")
