package guard

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMemory_ReadyInBetween: a pod that was Ready too briefly to be seen so ends
// one absence and begins another; one that never was Ready does not.
func TestMemory_ReadyInBetween(t *testing.T) {
	pod := func(created, lost time.Time) func(*input) {
		return func(in *input) {
			in.pods = []corev1.Pod{{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)},
				Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
					Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(lost),
				}}},
			}}
		}
	}
	before, after := now.Add(-time.Hour), now.Add(10*time.Second)
	for name, tc := range map[string]struct {
		change func(*input)
		want   time.Time
	}{
		"Ready in between":           {pod(before, after), after},
		"not Ready all the time":     {pod(before, before), now},
		"another pod, not Ready yet": {pod(after, after), now},
	} {
		var m memory
		m.look(newInput(noPods))
		if got := m.look(newInput(tc.change, at(now.Add(20*time.Second)))).missingSince; !got.Equal(tc.want) {
			t.Errorf("%s: missing since %s, want %s", name, got, tc.want)
		}
	}
}
