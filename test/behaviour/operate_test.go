package behaviour

import (
	"testing"

	"github.com/nodegate/nodegate/test/docs"
)

// TestOperate: every command of docs/operate.md does and writes what stands there.
func TestOperate(t *testing.T) {
	e := newEnvironment(t)
	installPolicies(t, e)
	e.install(t)
	e.create(t, "node-1")
	kubeconfig, err := e.cluster.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shell := docs.NewShell(t, kubeconfig, docs.Build(t))
	for _, section := range docs.Sections(t, "operate.md") {
		t.Run(section.Title, func(t *testing.T) {
			for _, command := range section.Commands {
				shell.Run(t, command)
			}
		})
	}
}
