//go:build unix

package main

import (
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/nodegate/nodegate/gate"
)

// TestWorkload_WaitsForTheGate: what shows that the gate holds pods back tolerates no
// gate.
func TestWorkload_WaitsForTheGate(t *testing.T) {
	taint := &corev1.Taint{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoSchedule}
	if pod := workload(); corev1helpers.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, taint, true) {
		t.Errorf("it tolerates %s by %v", taint.ToString(), pod.Spec.Tolerations)
	}
}
