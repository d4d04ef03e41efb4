//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

func (s *story) isBornArmed(ctx context.Context) error {
	s.does("the kubelet starts and creates its Node")
	began := time.Now()
	if err := s.node.Boot(); err != nil {
		return err
	}
	_, first, err := s.await(ctx, "at all", func(*corev1.Node) bool { return true })
	if err != nil {
		return err
	}
	if !s.gate.Armed(first.Node) {
		return errors.New("the first state of the Node is open")
	}
	s.measured("kubelet starts -> Node is seen, armed from its first state", first.At.Sub(began))
	s.holds("armed in its first state")
	return nil
}

// workload is a pod of an ordinary user for the node.
func workload() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: nodeName},
			Containers:   []corev1.Container{{Name: "workload", Image: "workload"}},
		},
	}
}

func (s *story) staysPending(ctx context.Context) error {
	_, _, err := s.await(ctx, "Ready, and kept closed by nothing but the gate", func(node *corev1.Node) bool {
		return world.Ready(node) && len(node.Spec.Taints) == 1 && s.gate.Armed(node)
	})
	if err != nil {
		return err
	}
	s.does("a pod is created for this node")
	began := time.Now()
	pods := s.world.Admin.CoreV1().Pods(metav1.NamespaceDefault)
	if _, err = pods.Create(ctx, workload(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating pod: %w", err)
	}
	var message string
	_, err = s.awaitPod(ctx, "unschedulable", func(pod *corev1.Pod) bool {
		message = unschedulable(pod)
		return message != ""
	})
	if err != nil {
		return err
	}
	if want := "untolerated taint"; !strings.Contains(message, want) {
		return fmt.Errorf("the scheduler says %q, and nothing of an %s", message, want)
	}
	message, _, _ = strings.Cut(message, " preemption:")
	s.says("scheduler", message)
	s.measured("pod is created -> unschedulable for the taint", time.Since(began))
	s.holds("Pending")
	return nil
}

// unschedulable is what the scheduler says of a pod that it cannot place.
func unschedulable(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

func (s *story) awaitPod(ctx context.Context, what string, condition func(*corev1.Pod) bool) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		var err error
		pod, err = s.world.Admin.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, podName, metav1.GetOptions{})
		return err == nil && condition(pod), err
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for the workload to be %s: %w", what, err)
	}
	return pod, nil
}

func (s *story) opens(ctx context.Context) error {
	s.does("the agent starts; neither the gated agent's socket nor the chained plugin is there")
	if err := s.node.StartAgent(ctx); err != nil {
		return err
	}
	_, seen, err := s.await(ctx, "reported as not serving", s.saysNotReady)
	if err != nil {
		return err
	}
	if !s.gate.Armed(seen.Node) {
		return errors.New("the agent says that the node does not serve, and it is open")
	}
	pod, err := s.awaitPod(ctx, "there", func(*corev1.Pod) bool { return true })
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != "" {
		return errors.New("the workload is bound to an armed node")
	}
	s.does("the gated agent serves its socket, and its plugin is chained")
	began := time.Now()
	if err := errors.Join(s.node.Serve(), s.node.Chain()); err != nil {
		return err
	}
	i, seen, err := s.await(ctx, "open", s.world.Open)
	if err != nil {
		return err
	}
	if before := s.state(i - 1); !s.gate.Armed(before) || !s.saysNotReady(before) {
		return errors.New("heartbeat and removal of the taint were not one write")
	}
	s.measured("socket serves, plugin is chained -> open", seen.At.Sub(began))
	_, err = s.awaitPod(ctx, "bound and running", func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == nodeName && pod.Status.Phase == corev1.PodRunning
	})
	if err != nil {
		return err
	}
	s.measured("open -> workload is bound and running", time.Since(seen.At))
	s.holds("opened by one write with the heartbeat; the workload runs")
	return nil
}

func (s *story) losesChain(ctx context.Context) error {
	s.does("another CNI puts a configuration of a single plugin in front: nothing can be chained in it")
	began := time.Now()
	if err := s.node.Strip(); err != nil {
		return err
	}
	i, seen, err := s.await(ctx, "reported as not serving", s.saysNotReady)
	if err != nil {
		return err
	}
	if !s.gate.Armed(seen.Node) || s.gate.Armed(s.state(i-1)) {
		return errors.New("the taint did not come with the heartbeat that says ready=false")
	}
	s.measured("plugin is no longer chained -> armed, by the agent's heartbeat", seen.At.Sub(began))
	s.holds("ready=false and the taint came in one write; the agent wrote only the first")
	return nil
}

func (s *story) isUntainted(ctx context.Context) error {
	s.does("the agent is stopped")
	s.node.StopAgent()
	return s.untaint(ctx)
}

func (s *story) isUntaintedLate(ctx context.Context) error {
	s.does("its last heartbeat said ready=true, and grows old")
	began := time.Now()
	_, seen, err := s.await(ctx, "armed, with a heartbeat that was good and has expired", func(node *corev1.Node) bool {
		return s.gate.Armed(node) && gate.Judge(node, s.gate, gate.LatestStamp(node)) == gate.Expired
	})
	if err != nil {
		return err
	}
	s.measured("waited until the heartbeat had expired", seen.At.Sub(began))
	return s.untaint(ctx)
}

// untaint has a third party remove the taint, which must change nothing.
func (s *story) untaint(ctx context.Context) error {
	from := s.node.History.Len()
	args := []string{"taint", "nodes", nodeName, s.gate.Taint.Key + "-"}
	s.does("kubectl " + strings.Join(args, " "))
	began := time.Now()
	said, err := s.world.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	took := time.Since(began)
	s.says("kubectl", said)
	node, err := s.world.Admin.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node: %w", err)
	}
	now, _, err := s.node.History.Await(ctx, 0, "as it is now", func(seen *corev1.Node) bool {
		return seen.ResourceVersion == node.ResourceVersion
	})
	if err != nil {
		return err
	}
	for i := min(from, now); i <= now; i++ {
		if !s.gate.Armed(s.state(i)) {
			return errors.New("the Node was seen open")
		}
	}
	hb, _ := s.heartbeat(node)
	s.measured("kubectl taint nodes -, which changes nothing", took)
	s.holds(fmt.Sprintf("armed all the time, by a heartbeat that is %.0f s old", time.Since(hb.Time).Seconds()))
	return nil
}

func (s *story) isRepaired(ctx context.Context) error {
	s.does("the agent starts, and the other CNI's file is removed")
	began := time.Now()
	if err := errors.Join(s.node.StartAgent(ctx), s.node.Unstrip()); err != nil {
		return err
	}
	_, seen, err := s.await(ctx, "open", s.world.Open)
	if err != nil {
		return err
	}
	s.measured("agent starts, network is repaired -> open", seen.At.Sub(began))
	s.holds("open")
	return nil
}

func (s *story) losesAgent(ctx context.Context) error {
	if err := s.node.AwaitAgentReady(ctx); err != nil {
		return err
	}
	s.does("the agent is killed, and nothing starts it again")
	began := time.Now()
	s.node.KillAgent()
	_, armed, err := s.await(ctx, "armed", s.gate.Armed)
	if err != nil {
		return err
	}
	if !managedBy(armed.Node, gate.ManagerGuard) {
		return errors.New("the write that armed is not the guard's")
	}
	s.measured(fmt.Sprintf("agent is gone -> armed, by the guard, which waits %.0f s", guard.Grace.Seconds()), armed.At.Sub(began))
	if verdict := gate.Judge(armed.Node, s.gate, armed.At); verdict != gate.Fresh {
		return fmt.Errorf("the heartbeat was %s by then", verdict)
	}
	s.holds("armed by the guard, while the last heartbeat still counts")
	return nil
}

func (s *story) reopens(ctx context.Context) error {
	s.does("the agent starts")
	began := time.Now()
	if err := s.node.StartAgent(ctx); err != nil {
		return err
	}
	_, seen, err := s.await(ctx, "open", s.world.Open)
	if err != nil {
		return err
	}
	s.measured("agent starts -> open", seen.At.Sub(began))
	s.holds("open")
	return nil
}

func (s *story) rebootsSlowly(ctx context.Context) error {
	s.does("the guard is suspended: nothing of nodegate runs but admission")
	if err := s.world.SuspendGuard(ctx); err != nil {
		return err
	}
	s.does("the machine goes down: kubelet, agents and all")
	began := time.Now()
	s.node.Crash()
	down, seen, err := s.await(ctx, "unreachable", func(node *corev1.Node) bool { return world.KubernetesTaints(node) == 2 })
	if err != nil {
		return err
	}
	s.measured("kubelet falls silent -> unreachable, by the control plane", seen.At.Sub(began))
	s.does("it comes up in another boot; no agent runs yet")
	began = time.Now()
	if err := s.node.Boot(); err != nil {
		return err
	}
	i, seen, err := s.await(ctx, "armed", s.gate.Armed)
	if err != nil {
		return err
	}
	s.measured("kubelet is back -> armed, in the control plane's own write", seen.At.Sub(began))
	if world.KubernetesTaints(seen.Node) >= world.KubernetesTaints(s.state(i-1)) {
		return errors.New("the write that armed is not one in which the control plane lifts its own taints")
	}
	_, seen, err = s.await(ctx, "Ready, and kept closed by nothing but the gate", func(node *corev1.Node) bool {
		return world.Ready(node) && world.KubernetesTaints(node) == 0
	})
	if err != nil {
		return err
	}
	s.measured("kubelet is back -> the control plane has lifted its taints", seen.At.Sub(began))
	for _, state := range s.node.History.Since(down) {
		if world.KubernetesTaints(state.Node) == 0 && !s.gate.Armed(state.Node) {
			return errors.New("a state was seen with neither the control plane's taints nor the gate's")
		}
	}
	s.holds("armed by a write of the control plane; no state between the two was without a taint")
	return s.world.ResumeGuard(ctx)
}

func (s *story) opensInNewBoot(ctx context.Context) error {
	s.does("the gated agent and the agent start")
	began := time.Now()
	if err := errors.Join(s.node.Serve(), s.node.StartAgent(ctx)); err != nil {
		return err
	}
	_, seen, err := s.await(ctx, "open", s.world.Open)
	if err != nil {
		return err
	}
	hb, _ := s.heartbeat(seen.Node)
	if hb.BootID != s.node.BootID {
		return fmt.Errorf("it is open by a heartbeat of boot %s", hb.BootID)
	}
	s.measured("agent starts -> open", seen.At.Sub(began))
	s.holds("open, by a heartbeat of this boot")
	return nil
}

func (s *story) rebootsFast(ctx context.Context) error {
	from := s.node.History.Len()
	s.does("the machine goes down, and comes up within the control plane's patience")
	s.node.Crash()
	if err := s.node.Boot(); err != nil {
		return err
	}
	_, booted, err := s.await(ctx, "in the new boot", func(node *corev1.Node) bool {
		return node.Status.NodeInfo.BootID == s.node.BootID
	})
	if err != nil {
		return err
	}
	_, armed, err := s.await(ctx, "armed", s.gate.Armed)
	if err != nil {
		return err
	}
	s.measured("the new boot is seen -> armed, by the guard", armed.At.Sub(booted.At))
	for _, state := range s.node.History.Since(from) {
		if !world.Ready(state.Node) || world.KubernetesTaints(state.Node) > 0 {
			return errors.New("the Node was NotReady for a while")
		}
	}
	if !managedBy(armed.Node, gate.ManagerGuard) {
		return errors.New("the write that armed is not the guard's")
	}
	s.holds("armed by the guard; the control plane has noticed nothing")
	return nil
}

func managedBy(node *corev1.Node, manager string) bool {
	return slices.ContainsFunc(node.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == manager })
}
