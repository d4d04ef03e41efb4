package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// nodeConditionCheck looks at a condition of the own Node.
type nodeConditionCheck struct {
	kind corev1.NodeConditionType
	want corev1.ConditionStatus
	// boot tells which times lie in the running boot.
	boot func() (bootSpan, error)
}

func newNodeConditionCheck(c gate.NodeConditionCheck) *nodeConditionCheck {
	return &nodeConditionCheck{kind: c.Type, want: c.Status}
}

func (c *nodeConditionCheck) attach(a *Agent) { c.boot = a.bootSpan }

// Check implements [Check].
func (c *nodeConditionCheck) Check(_ context.Context, node *corev1.Node) error {
	if node == nil {
		return ErrNoNode
	}
	condition := findCondition(node, c.kind)
	if condition == nil {
		return fmt.Errorf("the Node has no condition %s", c.kind)
	}
	if condition.Status != c.want {
		return fmt.Errorf("condition %s is %s, not %s%s", c.kind, condition.Status, c.want,
			explained(condition.Reason, condition.Message))
	}
	boot, err := c.boot()
	if err != nil {
		return err
	}
	if reported := lastReport(condition); !boot.holds(reported) {
		return fmt.Errorf("condition %s is %s, but was last reported at %s, which is not in this boot", c.kind, c.want, stamp(reported))
	}
	return nil
}

func findCondition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// lastReport is when somebody last said so. Not everybody who sets a condition
// says it again while it stays.
func lastReport(c *corev1.NodeCondition) time.Time {
	if c.LastHeartbeatTime.After(c.LastTransitionTime.Time) {
		return c.LastHeartbeatTime.Time
	}
	return c.LastTransitionTime.Time
}

// explained joins what a condition gives as reason and message.
func explained(reason, message string) string {
	switch {
	case reason != "" && message != "":
		return " (" + reason + ": " + message + ")"
	case reason != "" || message != "":
		return " (" + reason + message + ")"
	}
	return ""
}
