package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leaseSeconds is how long a kubelet's Lease is good for.
const leaseSeconds = 40

// register creates the Node, as a kubelet does at each start, and returns it, or
// the one that was there.
func (k *Kubelet) register(ctx context.Context) (*corev1.Node, error) {
	nodes := k.client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.Name, Labels: k.Labels},
		Spec:       corev1.NodeSpec{Taints: k.Taints},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nodes.Get(ctx, k.Name, metav1.GetOptions{})
	}
	return node, err
}

// postStatus patches the whole status, as a kubelet does when anything changed or
// its report is due.
func (k *Kubelet) postStatus(ctx context.Context, bootID string, started metav1.Time) error {
	patch, err := json.Marshal(map[string]any{"status": k.status(bootID, started)})
	if err != nil {
		return fmt.Errorf("encoding status: %w", err)
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, k.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("posting status of node %q: %w", k.Name, err)
	}
	return nil
}

func (k *Kubelet) status(bootID string, started metav1.Time) corev1.NodeStatus {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	status := corev1.NodeStatus{
		Capacity:    resources,
		Allocatable: resources,
		Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: k.Name}},
		NodeInfo: corev1.NodeSystemInfo{
			BootID:                  bootID,
			MachineID:               k.Name,
			SystemUUID:              k.Name,
			KernelVersion:           "6.1.0",
			OSImage:                 "stand-in",
			OperatingSystem:         "linux",
			Architecture:            "amd64",
			ContainerRuntimeVersion: "containerd://2.0.0",
			KubeletVersion:          "v1.37.2",
		},
	}
	for _, c := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		reason string
	}{
		{corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"},
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"},
	} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type: c.kind, Status: c.status, Reason: c.reason, LastHeartbeatTime: metav1.Now(), LastTransitionTime: started,
		})
	}
	return status
}

// renewLease tells the control plane that the kubelet lives.
func (k *Kubelet) renewLease(ctx context.Context, node *corev1.Node) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed := func(lease *coordinationv1.Lease) *coordinationv1.Lease {
		lease.Spec.HolderIdentity = &k.Name
		lease.Spec.LeaseDurationSeconds = new(int32(leaseSeconds))
		lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now()))
		return lease
	}
	lease, err := leases.Get(ctx, k.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
		_, err = leases.Create(ctx, renewed(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: k.Name, OwnerReferences: []metav1.OwnerReference{owner},
		}}), metav1.CreateOptions{})
	case err == nil:
		_, err = leases.Update(ctx, renewed(lease), metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing lease of node %q: %w", k.Name, err)
	}
	return nil
}
