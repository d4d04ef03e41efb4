//go:build unix

package world

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// controller is the one replica of nodegate-controller.
type controller struct {
	*program
	args   []string
	health string
	// webhook is where it serves the mutation, with pair; empty if it does not.
	webhook string
	pair    certs.Pair
}

func (c *controller) stop() {
	if c != nil {
		c.program.stop()
	}
}

// startController starts nodegate-controller with a token of its account.
func (w *World) startController(ctx context.Context) error {
	identity, err := w.cluster.AccountToken(ctx, gate.Namespace, gate.ControllerAccount)
	if err != nil {
		return err
	}
	kubeconfig, err := w.kubeconfig(gate.ControllerAccount, identity)
	if err != nil {
		return err
	}
	c := &controller{}
	if c.health, err = freeAddress(); err != nil {
		return err
	}
	c.args = []string{"--config=" + w.configFile(), "--kubeconfig=" + kubeconfig, "--health-address=" + c.health, "--metrics-address=0"}
	if w.options.Mutation == Webhook {
		if err := w.serveWebhook(c); err != nil {
			return err
		}
	}
	w.controller = c
	return w.runController(ctx)
}

// serveWebhook gives the controller a certificate and an address.
func (w *World) serveWebhook(c *controller) error {
	var err error
	if c.pair, err = certs.SelfSigned(time.Now(), localhost); err != nil {
		return err
	}
	dir := filepath.Join(w.options.Dir, webhookFolder)
	if err := c.pair.Write(dir); err != nil {
		return err
	}
	if c.webhook, err = freeAddress(); err != nil {
		return err
	}
	c.args = append(c.args, "--webhook", "--webhook-address="+c.webhook,
		"--webhook-cert-source=files", "--webhook-cert-dir="+dir)
	return nil
}

// runController starts the program and waits until it is ready.
func (w *World) runController(ctx context.Context) error {
	c := w.controller
	var err error
	if c.program, err = w.start(gate.ControllerAccount, filepath.Join(w.options.Programs, "nodegate-controller"), c.args...); err != nil {
		return err
	}
	if err := c.await(ctx, func(ctx context.Context) (bool, error) { return ready(ctx, c.health) }); err != nil {
		return fmt.Errorf("waiting for nodegate-controller to be ready: %w", err)
	}
	return nil
}

// SuspendGuard ends the guard, so that only admission is left, and returns when it
// has. A webhook goes on being served: by a replica that may not guard, since
// another one seems to hold the Lease.
func (w *World) SuspendGuard(ctx context.Context) error {
	if err := w.awaitHolder(ctx, func(holder string) bool { return holder != "" }); err != nil {
		return err
	}
	w.controller.stop()
	if err := w.awaitHolder(ctx, func(holder string) bool { return holder == "" }); err != nil {
		return err
	}
	if w.options.Mutation != Webhook {
		return nil
	}
	if err := w.setHolder(ctx, "another-replica"); err != nil {
		return err
	}
	return w.runController(ctx)
}

// ResumeGuard undoes [World.SuspendGuard] and returns when the guard leads.
func (w *World) ResumeGuard(ctx context.Context) error {
	if w.options.Mutation == Webhook {
		if err := w.setHolder(ctx, ""); err != nil {
			return err
		}
	} else if err := w.runController(ctx); err != nil {
		return err
	}
	return w.awaitHolder(ctx, func(holder string) bool { return holder != "" })
}

func (w *World) awaitHolder(ctx context.Context, condition func(string) bool) error {
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		lease, err := w.Admin.CoordinationV1().Leases(gate.Namespace).Get(ctx, gate.ControllerLease, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		holder := lease.Spec.HolderIdentity
		return condition(*holder), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the guard's Lease to change hands: %w", err)
	}
	return nil
}

func (w *World) setHolder(ctx context.Context, holder string) error {
	leases := w.Admin.CoordinationV1().Leases(gate.Namespace)
	lease, err := leases.Get(ctx, gate.ControllerLease, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the guard's Lease: %w", err)
	}
	lease.Spec.HolderIdentity = &holder
	lease.Spec.LeaseDurationSeconds = new(int32(time.Hour / time.Second))
	lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now()))
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("changing the guard's Lease: %w", err)
	}
	return nil
}

// ready asks a program whether it is.
func ready(ctx context.Context, address string) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return false, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, err
	}
	return answer.StatusCode == http.StatusOK, answer.Body.Close()
}
