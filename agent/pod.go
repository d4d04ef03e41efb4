package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/nodegate/nodegate/gate"
)

// podCheck follows the pods of this node that it selects.
type podCheck struct {
	namespace string
	selector  labels.Selector
	boot      func() (bootSpan, error)
	pods      cache.SharedIndexInformer

	mu sync.Mutex
	// trouble is why the pods could not be followed when last tried.
	trouble error
}

func newPodCheck(c gate.PodCheck) (*podCheck, error) {
	selector, err := metav1.LabelSelectorAsSelector(c.Selector)
	if err != nil {
		return nil, fmt.Errorf("reading the selector: %w", err)
	}
	return &podCheck{namespace: c.Namespace, selector: selector}, nil
}

func (c *podCheck) attach(a *Agent) {
	c.boot = a.bootSpan
	c.pods = newInformer(a.rest, source{
		resource: "pods", namespace: c.namespace, object: &corev1.Pod{}, shrink: shrinkPod,
		choose: metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", a.name).String(),
			LabelSelector: c.selector.String(),
		},
	}, func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.trouble = err
	})
}

// follow follows the pods until the context ends.
func (c *podCheck) follow(ctx context.Context) { c.pods.RunWithContext(ctx) }

// Check implements [Check]. It passes if any of the pods is Ready.
func (c *podCheck) Check(ctx context.Context, _ *corev1.Node) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced) {
		return c.notListed()
	}
	boot, err := c.boot()
	if err != nil {
		return err
	}
	reason := fmt.Errorf("no pod of namespace %s with %s is on this node", c.namespace, c.selector)
	for _, object := range c.pods.GetStore().List() {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			continue
		}
		if reason = podReady(pod, boot); reason == nil {
			return nil
		}
	}
	return reason
}

func (c *podCheck) notListed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trouble != nil {
		return fmt.Errorf("listing pods of namespace %s: %w", c.namespace, c.trouble)
	}
	return errors.New("the pods of namespace " + c.namespace + " are not known yet")
}

// podReady says why a pod is not known to be Ready in this boot.
func podReady(pod *corev1.Pod, boot bootSpan) error {
	name := pod.Namespace + "/" + pod.Name
	if pod.DeletionTimestamp != nil {
		return fmt.Errorf("pod %s is being deleted", name)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodReady {
			continue
		}
		if condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("pod %s is not Ready%s", name, explained(condition.Reason, condition.Message))
		}
		// After a reboot the API server shows what was true before it, until the
		// kubelet speaks.
		if !boot.holdsByAPI(readyWritten(pod)) {
			return fmt.Errorf("pod %s was Ready before this boot, and was not reported since", name)
		}
		return nil
	}
	return fmt.Errorf("pod %s is not Ready", name)
}

// readyWritten is when whoever says that the pod is Ready last wrote its status,
// as the API server noted it: the condition's own times are by the node's clock.
func readyWritten(pod *corev1.Pod) time.Time {
	for _, entry := range pod.ManagedFields {
		if entry.Time != nil && writesReady(entry) {
			return entry.Time.Time
		}
	}
	return time.Time{}
}

func writesReady(entry metav1.ManagedFieldsEntry) bool {
	if entry.Subresource != "status" || entry.FieldsV1 == nil {
		return false
	}
	var owned struct {
		Status struct {
			Conditions map[string]json.RawMessage `json:"f:conditions"`
		} `json:"f:status"`
	}
	err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned)
	_, ok := owned.Status.Conditions[`k:{"type":"Ready"}`]
	return err == nil && ok
}

// shrinkPod keeps what the check looks at.
func shrinkPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
		},
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			small.Status.Conditions = append(small.Status.Conditions, condition)
		}
	}
	for _, entry := range pod.ManagedFields {
		if writesReady(entry) {
			small.ManagedFields = append(small.ManagedFields, entry)
		}
	}
	return small, nil
}
