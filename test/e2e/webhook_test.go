//go:build linux && e2e

package e2e

import (
	"bytes"
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// TestNodes_WebhookRenewsItsCertificate: where the webhook arms, and its certificate
// is made anew, each removal of the taint comes to nothing, in the very write, and
// another node goes on as before.
func TestNodes_WebhookRenewsItsCertificate(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, true).powerOn()
	}
	if err := l.InstallWebhook(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range l.Machines {
		newStage(t, l, m, true).calm()
	}
	s := newStage(t, l, l.Machines[0], true)
	s.killMesh()
	s.awaitClosed()
	s.must(s.Await(s.ctx, "the webhook to be called", func(ctx context.Context) (bool, error) { return s.removeTaint(ctx) }))

	other := newStage(t, l, l.Machines[1], true)
	end := other.Stream(s.ctx, "stream", other.m.Name)
	before := len(other.closed())

	secrets := s.Client.CoreV1().Secrets(gate.Namespace)
	old, err := secrets.Get(s.ctx, gate.WebhookSecret, metav1.GetOptions{})
	s.must(err)
	s.must(secrets.Delete(s.ctx, gate.WebhookSecret, metav1.DeleteOptions{}))
	removals := 0
	renewed := func(ctx context.Context) (bool, error) {
		kept, err := s.removeTaint(ctx)
		if err == nil && !kept {
			t.Error("a removal of the taint went through")
		}
		removals++
		fresh, getErr := secrets.Get(ctx, gate.WebhookSecret, metav1.GetOptions{})
		if apierrors.IsNotFound(getErr) || err != nil {
			return false, err
		}
		return getErr == nil && !bytes.Equal(fresh.Data[corev1.TLSCertKey], old.Data[corev1.TLSCertKey]), getErr
	}
	s.must(s.Await(s.ctx, "another certificate", renewed))
	// All have to have changed over by then.
	for began := time.Now(); time.Since(began) < 3*awhile; <-time.After(100 * time.Millisecond) {
		if kept, err := s.removeTaint(s.ctx); err != nil || !kept {
			t.Errorf("a removal of the taint went through (%v)", err)
		}
		removals++
	}
	t.Logf("the taint was removed %d times, and was there each time", removals)
	s.must(end(s.ctx))
	if o := other.outcome(); o.harmed > 0 || o.starts == 0 || len(other.closed()) != before {
		t.Errorf("the other node: %s%s", o, other.describe())
	}
	s.calm()
}

// removeTaint does what somebody does who is in a hurry, and reports whether the
// answer has the taint nevertheless.
func (s *stage) removeTaint(ctx context.Context) (bool, error) {
	node, err := s.Client.CoreV1().Nodes().Patch(ctx, s.m.Name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	if err != nil {
		return false, err
	}
	return gate.Default().Gates[0].Armed(node), nil
}
