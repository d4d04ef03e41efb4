package kubelet_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/kubelet"
)

const (
	firstBoot  = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	secondBoot = "0f3c9c54-7d0e-4a53-9d0b-6a2f7a1b5e11"
)

// TestKubelet: NodeRestriction and the Node authorizer let the stand-in do all
// that it does, through two boots.
func TestKubelet(t *testing.T) {
	c := cluster.ForTest(t)
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := c.Kubelet("n")
	if err != nil {
		t.Fatal(err)
	}
	var healthy atomic.Bool
	k, err := kubelet.New(kubelet.Options{
		Config: identity, Name: "n", Labels: map[string]string{gate.ExemptLabel: "true"}, LeaseInterval: 20 * time.Millisecond,
		Ready: func(context.Context, *corev1.Pod) bool { return healthy.Load() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)

	if err := k.Start(t.Context(), firstBoot); err != nil {
		t.Fatal(err)
	}
	if err := k.Start(t.Context(), firstBoot); err == nil {
		t.Error("it was started twice")
	}
	expectBoot(t, admin, firstBoot)
	pod := createPod(t, admin)
	expectPod(t, admin, "running and not ready", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning && !isReady(pod)
	})
	healthy.Store(true)
	expectPod(t, admin, "ready", isReady)
	expectToken(t, admin, k, pod)
	expectTokenInTime(t, admin, k, pod)

	k.Stop()
	k.Stop()
	before := renewed(t, admin)
	if err := k.Start(t.Context(), secondBoot); err != nil {
		t.Fatal(err)
	}
	expectBoot(t, admin, secondBoot)
	eventually(t, "the Lease to be renewed", func(context.Context) (bool, error) { return renewed(t, admin).After(before), nil })

	if err := admin.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod to be gone", func(ctx context.Context) (bool, error) {
		_, err := admin.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// expectTokenInTime: a pod that the authorizer has not seen bound yet has a token as
// soon as it has.
func expectTokenInTime(t *testing.T, admin kubernetes.Interface, k *kubelet.Kubelet, like *corev1.Pod) {
	t.Helper()
	pods := admin.CoreV1().Pods("default")
	spec := *like.Spec.DeepCopy()
	spec.NodeName = ""
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := k.Token(t.Context(), pod)
		answer <- err
	}()
	err = pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func expectBoot(t *testing.T, admin kubernetes.Interface, bootID string) {
	t.Helper()
	node, err := admin.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := node.Status.NodeInfo.BootID; got != bootID {
		t.Errorf("boot id %q, want %q", got, bootID)
	}
	if node.Labels[corev1.LabelOSStable] != "linux" || node.Labels[gate.ExemptLabel] != "true" {
		t.Errorf("labels %v", node.Labels)
	}
}

func createPod(t *testing.T, admin kubernetes.Interface) *corev1.Pod {
	t.Helper()
	_, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "account"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
	pod, err := admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			NodeName: "n", ServiceAccountName: "account",
			Containers: []corev1.Container{{Name: "c", Image: "c"}},
			Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{token}},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// expectToken: the token that the kubelet asked for names pod and node.
func expectToken(t *testing.T, admin kubernetes.Interface, k *kubelet.Kubelet, pod *corev1.Pod) {
	t.Helper()
	token, err := k.Token(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	extra := review.Status.User.Extra
	if !slices.Equal(extra[gate.ExtraNodeName], authenticationv1.ExtraValue{"n"}) ||
		!slices.Equal(extra[gate.ExtraPodUID], authenticationv1.ExtraValue{string(pod.UID)}) {
		t.Errorf("the token's extra is %v", extra)
	}
}

func renewed(t *testing.T, admin kubernetes.Interface) time.Time {
	t.Helper()
	lease, err := admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease.Spec.RenewTime.Time
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func expectPod(t *testing.T, admin kubernetes.Interface, what string, condition func(*corev1.Pod) bool) {
	t.Helper()
	eventually(t, "the pod to be "+what, func(ctx context.Context) (bool, error) {
		pod, err := admin.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
		return err == nil && condition(pod), err
	})
}

func eventually(t *testing.T, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	if err := cluster.Await(t.Context(), condition); err != nil {
		t.Fatal(fmt.Errorf("waiting for %s: %w", what, err))
	}
}

func TestNew_Refuses(t *testing.T) {
	if _, err := kubelet.New(kubelet.Options{Name: "n"}); err == nil {
		t.Error("it was made without an identity")
	}
}
