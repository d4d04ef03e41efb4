//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodegate/nodegate/test/e2e/lab"
)

// kit is what the tests are given in their sandbox.
var kit *lab.Kit

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	log.SetLogger(logr.Discard())
	var err error
	if kit, err = lab.FindKit(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// newLab starts a cluster for a test, and keeps its logs if the test fails.
func newLab(t *testing.T, machines ...string) *lab.Lab {
	t.Helper()
	l, err := lab.Start(t.Context(), kit, machines...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(context.WithoutCancel(t.Context()), t.Failed()); err != nil {
			t.Error(err)
		}
	})
	return l
}
