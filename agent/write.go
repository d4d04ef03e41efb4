package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = 10 * time.Second

// nodeClient is what the agent asks of the API server, besides the watch.
type nodeClient interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, patchType types.PatchType, data []byte, options metav1.PatchOptions,
		subresources ...string) (*corev1.Node, error)
}

// patchNode makes the write and returns the Node as it came out of admission.
func (a *Agent) patchNode(ctx context.Context, data []byte) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := a.nodes.Patch(ctx, a.name, types.JSONPatchType, data,
		metav1.PatchOptions{FieldManager: gate.ManagerAgent})
	if err != nil {
		return nil, fmt.Errorf("patching node %q: %w", a.name, err)
	}
	return node, nil
}

// reread replaces what was seen of the Node by what the API server has.
func (a *Agent) reread(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	seen, turn := a.own.get()
	node, err := a.nodes.Get(ctx, a.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if seen != nil {
			a.own.gone(seen.UID)
		}
		return nil
	case err != nil:
		return fmt.Errorf("getting node %q: %w", a.name, err)
	}
	a.own.answer(node, turn)
	return nil
}

// failure names why a write failed, in logs and metrics.
type failure string

const (
	// failureStale: the Node is not what it was when it was read.
	failureStale failure = "stale"
	// failureDenied: an admission policy or webhook refused the write.
	failureDenied failure = "denied"
	// failureForbidden: the agent lacks the right to write.
	failureForbidden failure = "forbidden"
	// failureServer: the API server answered with another error.
	failureServer failure = "server"
	// failureUnreachable: no answer came.
	failureUnreachable failure = "unreachable"
	// failureFormat: no valid heartbeat can be written, as with a Node UID that
	// has a blank, or an API server whose clock was never set.
	failureFormat failure = "format"
)

func failures() []failure {
	return []failure{failureStale, failureDenied, failureForbidden, failureServer, failureUnreachable, failureFormat}
}

// classify names an error of the API server.
func classify(err error) failure {
	var status apierrors.APIStatus
	switch {
	case !errors.As(err, &status):
		return failureUnreachable
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), testFailed(status.Status()):
		return failureStale
	case deniedByAdmission(status.Status()):
		return failureDenied
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return failureForbidden
	}
	return failureServer
}

// testFailed: a test in a JSON patch that does not hold is answered as an entity
// that cannot be processed, without the causes that validation and policies give.
func testFailed(status metav1.Status) bool {
	return status.Code == http.StatusUnprocessableEntity && status.Reason == metav1.StatusReasonInvalid &&
		(status.Details == nil || len(status.Details.Causes) == 0)
}

// deniedByAdmission knows policies ("denied request") and webhooks ("denied the
// request") by their words; there is no other mark.
func deniedByAdmission(status metav1.Status) bool {
	return strings.Contains(status.Message, "denied request") || strings.Contains(status.Message, "denied the request")
}

// permanent failures do not go away by trying again soon.
func (f failure) permanent() bool {
	return f == failureDenied || f == failureForbidden || f == failureFormat
}
