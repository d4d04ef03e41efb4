//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// TestNodes_Uninstall: in the right order and in the wrong one all is as it was before,
// once what is left on the Nodes is removed. In the wrong order nodes may be closed for
// as long as it takes.
func TestNodes_Uninstall(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, true).powerOn()
	}
	for _, admissionFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("admission first %t", admissionFirst), func(t *testing.T) {
			s := newStage(t, l, l.Machines[0], true)
			s.must(l.Install(s.ctx))
			for _, m := range l.Machines {
				newStage(t, l, m, true).calm()
			}
			s.must(l.Uninstall(s.ctx, admissionFirst, func() { s.rebootHalfInstalled(admissionFirst) }))
			for _, m := range l.Machines {
				s.must(s.cleanNode(m.Name))
			}
			s.gated = false
			s.calm()
			s.rebootFree()
		})
	}
}

// rebootHalfInstalled: with agents and without admission, a reboot is as harmless as
// ever. With admission and without agents its node stays closed, for nobody opens.
func (s *stage) rebootHalfInstalled(agents bool) {
	s.Helper()
	if agents {
		s.calm()
		return
	}
	s.powerOff()
	s.awaitGone()
	s.powerOn()
	s.awaitUp()
	s.awaitClosed()
	if kept, err := s.removeTaint(s.ctx); err != nil || !kept {
		s.Errorf("the taint could be removed (%v), while its admission is there", err)
	}
}

// rebootFree: nothing closes the node any more.
func (s *stage) rebootFree() {
	s.Helper()
	since := time.Now()
	s.powerOff()
	s.powerOn()
	s.awaitUp()
	s.calm()
	for _, n := range s.Seen.Node(s.m.Name) {
		if n.At.After(since) && (n.Armed || n.Reported != "") {
			s.Errorf("after the uninstallation the Node was seen with the gate's marks: %s", s.describe())
			return
		}
	}
}

// cleanNode removes what is left on a Node, as the README says. An API server still
// judges by policies that were deleted a moment ago.
func (s *stage) cleanNode(name string) error {
	g := gate.Default().Gates[0]
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null,%q:null}},"spec":{"taints":null}}`, g.HeartbeatAnnotation(), g.BypassAnnotation())
	return s.Await(s.ctx, name+" to be rid of the taint", func(ctx context.Context) (bool, error) {
		node, err := s.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err == nil && !g.Armed(node), err
	})
}
