package manifests_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/golden"
)

// TestRights_Golden: the table in the documentation is that of what is granted.
func TestRights_Golden(t *testing.T) {
	cfg, err := gate.ParseConfiguration([]byte(baseConfig(t)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.CNI = &gate.CNI{}
	golden.Expect(t, "../docs/rbac.md", []byte(`# What controller and agent may do

Rendered from manifests/rights.go. A test runs both programs on a real API server and compares its audit log with this table: each right is used, and none
is missing. No right is a wildcard, and no Secret is read but by its name. The role nodegate-webhook is bound to the controller's account by the component
webhook, and not where cert-manager makes the certificate; nodegate-cni to the agent's by the component cni-plugin. RBAC cannot say "its own Node": that the agent writes no other, and there nothing but its gates'
heartbeats and taints, is what the validation policies see to.

`+manifests.RightsTable(manifests.Rights(cfg, manifests.ByWebhook))+`
# What people need for kubectl nodegate

Whoever runs a command does so with rights of their own. Most installers are cluster administrators; these tables are for those who are not. What is optional
only lets a command see that its work is done: without it, it says what it could not see. Each command asks for its rights first and changes nothing if one is
missing. A test runs the commands as people with these rights and compares the audit log with the table.

`+commandTables()))
}

// commandTables has one table for commands with the same rights.
func commandTables() string {
	var out strings.Builder
	for _, command := range manifests.Commands() {
		switch command {
		case "upgrade", "observe", "resume": // as install, as pause
			continue
		}
		out.WriteString(manifests.RightsTable(manifests.CommandRights(command)) + "\n")
	}
	return out.String() + "`upgrade` needs what `install` does, `observe` and `resume` what `pause` does; `render` asks no cluster.\n"
}

// TestRights_AreFew: no wildcard, no Secret that is not named, no way to other
// rights, and a reason for each.
func TestRights_AreFew(t *testing.T) {
	for _, cfg := range []*gate.Configuration{gate.Default(), cases.Config()} {
		for _, r := range manifests.Rights(cfg, manifests.ByWebhook) {
			if slices.Contains([]string{r.Verb, r.Group, r.Resource, r.Name}, "*") {
				t.Errorf("%+v has a wildcard", r)
			}
			if r.Resource == "secrets" && r.Name == "" && r.Verb != "create" {
				t.Errorf("%+v reaches every Secret", r)
			}
			if slices.Contains([]string{"escalate", "bind", "impersonate", "deletecollection"}, r.Verb) {
				t.Errorf("%+v leads to other rights", r)
			}
			if r.Why == "" {
				t.Errorf("%+v has no reason", r)
			}
		}
	}
}
