package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/options"
	"github.com/nodegate/nodegate/test/golden"
)

func TestHelp(t *testing.T) {
	var got bytes.Buffer
	command := newCommand(io.Discard)
	command.SetOut(&got)
	command.SetArgs([]string{"--help"})
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	golden.Expect(t, "testdata/help.txt", got.Bytes())
}

func TestOptions_Validate(t *testing.T) {
	if err := NewOptions().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	silent := NewOptions()
	silent.Common = options.Common{HealthAddress: options.Off, MetricsAddress: options.Off, LogFormat: "json", LogLevel: "debug"}
	if err := silent.Validate(); err != nil {
		t.Errorf("without endpoints: %v", err)
	}
	wrong := &Options{
		Namespace: "A/b", WebhookAddress: "9443",
		Common: options.Common{HealthAddress: "", MetricsAddress: "x", LogFormat: "yaml", LogLevel: "loud"},
	}
	err := wrong.Validate()
	if err == nil {
		t.Fatal("nothing is refused")
	}
	for _, flag := range []string{
		"--namespace", "--webhook-address", "--webhook-cert-source", "--health-address", "--metrics-address", "--log-format", "--log-level",
	} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("the error does not name %s:\n%v", flag, err)
		}
	}
}

func TestOptions_ValidateCertificate(t *testing.T) {
	for name, tc := range map[string]struct{ source, dir, want string }{
		"self-managed":                  {sourceSelfManaged, "", ""},
		"self-managed with a directory": {sourceSelfManaged, "/certs", "did you mean files?"},
		"files":                         {sourceFiles, "/certs", ""},
		"files without a directory":     {sourceFiles, "", "--webhook-cert-dir is empty"},
		"cert-manager":                  {"cert-manager", "/certs", "neither self-managed nor files"},
	} {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			o.Webhook, o.WebhookCertSource, o.WebhookCertDir = true, tc.source, tc.dir
			err := o.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCommand_RefusesBeforeItStarts(t *testing.T) {
	for name, args := range map[string][]string{
		"a wrong flag's value":      {"--log-level=loud"},
		"an argument":               {"now"},
		"a missing configuration":   {"--config=testdata/missing.yaml"},
		"a missing kubeconfig":      {"--config=", "--kubeconfig=testdata/missing"},
		"no kubeconfig, and no pod": {"--config="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			command := newCommand(io.Discard)
			command.SetArgs(args)
			if err := command.ExecuteContext(t.Context()); err == nil {
				t.Error("started")
			}
		})
	}
}

func TestAgents_TellWhereTheyAreLookedFor(t *testing.T) {
	before, after := gate.Default(), gate.Default()
	after.Mode, after.Gates[0].Taint.Value = gate.ModePaused, "other"
	if !cmp.Equal(agents(before), agents(after)) {
		t.Error("the mode or a taint moves the agents")
	}
	after.Gates[0].Agent.PodLabels = map[string]string{"app": "other"}
	if cmp.Equal(agents(before), agents(after)) {
		t.Error("other labels do not move the agents")
	}
}
