package cluster

import "testing"

// ForTest starts a cluster that stops with the test.
func ForTest(t testing.TB, options ...Option) *Cluster {
	t.Helper()
	c, err := Start(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
	})
	return c
}
