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
		"Ready in between":                {pod(before, after), after},
		"not Ready all the time":          {pod(before, before), now},
		"another pod, not Ready yet":      {pod(after, after), now},
		"by a node's clock that is ahead": {pod(before, now.Add(24*time.Hour)), now},
	} {
		var m memory
		m.look(newInput(noPods))
		if got := m.look(newInput(tc.change, at(now.Add(20*time.Second)))).missingSince; !got.Equal(tc.want) {
			t.Errorf("%s: missing since %s, want %s", name, got, tc.want)
		}
	}
}

func TestProcessOf(t *testing.T) {
	pod := agentPod("agent-1", false)
	pod.UID = "1"
	if got := processOf(&pod); got != "" {
		t.Errorf("a pod that has not started runs %q", got)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	another := *pod.DeepCopy()
	another.UID = "2"
	if a, b := processOf(&pod), processOf(&another); a == "" || a == b {
		t.Errorf("two pods run %q and %q", a, b)
	}
}

// TestMemory_APodThatHasEnded serves no more, whatever else it says of itself.
func TestMemory_APodThatHasEnded(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
		var m memory
		in := newInput(func(in *input) { in.pods[0].Status.Phase = phase })
		pod, err := trimPod(&in.pods[0])
		if err != nil {
			t.Fatal(err)
		}
		in.pods = []corev1.Pod{*pod.(*corev1.Pod)}
		if got := m.look(in).missingSince; !got.Equal(now) {
			t.Errorf("%s: missing since %s, want %s", phase, got, now)
		}
	}
}

// TestMemory_AClockThatWasAhead: an absence that began by a clock that was ahead
// begins when that is set right.
func TestMemory_AClockThatWasAhead(t *testing.T) {
	var m memory
	m.look(newInput(noPods, at(now.Add(24*time.Hour))))
	if got := m.look(newInput(noPods)).missingSince; !got.Equal(now) {
		t.Errorf("missing since %s, want %s", got, now)
	}
}

// TestMemory_AProcessEnds: an agent that has served and died before its pod was
// ever Ready is absent from then on, whatever it wrote before.
func TestMemory_AProcessEnds(t *testing.T) {
	pod := func(restarts int32, running bool) func(*input) {
		return func(in *input) {
			p := agentPod("agent-1", false)
			p.UID = "1"
			status := corev1.ContainerStatus{RestartCount: restarts}
			if running {
				status.State.Running = &corev1.ContainerStateRunning{}
			}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
			in.pods = []corev1.Pod{p}
		}
	}
	wrote, died := now.Add(10*time.Second), now.Add(20*time.Second)
	for name, end := range map[string]func(*input){
		"the pod is deleted":       noPods,
		"the container has ended":  pod(0, false),
		"the container runs again": pod(1, true),
	} {
		t.Run(name, func(t *testing.T) {
			var m memory
			look := func(at time.Time, change func(*input)) decision {
				in := newInput(change, heartbeatOf(wrote))
				in.now = at
				in.trouble = m.look(in)
				return decide(in)
			}
			look(now, pod(0, true))
			if d := look(wrote, pod(0, true)); d.reason != "" || !d.lookAgain.Equal(wrote.Add(ttl)) {
				t.Errorf("while it serves: %+v", d)
			}
			if d := look(died, end); d.reason != "" || !d.lookAgain.Equal(died.Add(Grace)) {
				t.Errorf("when it has died: %+v", d)
			}
			if d := look(died.Add(Grace), end); d.reason != AgentAbsent || !d.since.Equal(died) {
				t.Errorf("after the grace: %+v", d)
			}
		})
	}
}
