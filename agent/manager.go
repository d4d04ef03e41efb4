package agent

import (
	"errors"
	"fmt"
	"net/http"

	ctrl "sigs.k8s.io/controller-runtime"
)

// readyCheckName is the agent's among a manager's readiness checks.
const readyCheckName = "nodegate-agent"

// SetupWithManager runs the agent with another project's manager, on every node,
// and makes the manager's readiness follow the gates'. A host that has other
// ideas of its readiness adds the agent to the manager itself: it is a Runnable.
func (a *Agent) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(a); err != nil {
		return fmt.Errorf("adding the agent to the manager: %w", err)
	}
	if err := mgr.AddReadyzCheck(readyCheckName, a.ReadyCheck); err != nil {
		return fmt.Errorf("adding the agent's readiness to the manager: %w", err)
	}
	return nil
}

// ReadyCheck is [Agent.Ready] as a manager's readiness check. The manager does
// not show the error to whoever asks, it logs it.
func (a *Agent) ReadyCheck(*http.Request) error {
	if ok, reasons := a.Ready(); !ok {
		return errors.New(reasons)
	}
	return nil
}
