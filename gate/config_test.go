package gate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/netconf"
)

const validConfiguration = `# a comment
apiVersion: nodegate.io/v1alpha1
kind: Configuration
mode: observe
toleratedPrefixes: [mesh.example.com/, example.com/seen-]
cni: {exempt: [kube-system, mesh-system/mesh-*]}
gates:
- name: mesh
  taint: {key: mesh.example.com/agent-not-ready, value: startup}
  nodeSelector: {matchLabels: {pool: blue}}
  finalObject: Deny
  agent: {namespace: mesh-system, serviceAccount: mesh-agent, podLabels: {app: mesh-agent}}
  checks:
  - socket: {path: /run/mesh/cni.sock}
  - name: chain
    dwell: 5s
    conflist: {pluginType: mesh-cni}
  - socket: {path: /run/mesh/api.sock, http: {}}
    name: api
  - http: {port: 9000}
  - http: {host: InternalIP, port: 65535, path: "/livez?verbose", scheme: HTTPS}
    name: https
  - grpc: {port: 9001, service: mesh.Agent}
  - socket: {path: /run/mesh/grpc.sock, grpc: {}}
    name: grpc-socket
  - file: {path: /run/mesh/ready, maxAge: 5m}
  - pod: {namespace: mesh-system, selector: {matchLabels: {app: mesh}}}
  - nodeCondition: {type: NetworkUnavailable, status: "False"}
  - nodeCondition: {type: example.com/MeshReady}
    name: condition
- name: storage
  taint: {key: storage.example.com/not-ready}
`

func TestParseConfiguration(t *testing.T) {
	got, err := gate.ParseConfiguration([]byte(validConfiguration))
	if err != nil {
		t.Fatal(err)
	}
	seconds := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Second} }
	want := &gate.Configuration{
		TypeMeta:          metav1.TypeMeta{APIVersion: gate.APIVersion, Kind: gate.Kind},
		Mode:              gate.ModeObserve,
		ToleratedPrefixes: []string{"mesh.example.com/", "example.com/seen-"},
		CNI:               &gate.CNI{Socket: "/run/nodegate/cni.sock", Timeout: seconds(20), Exempt: []string{"kube-system", "mesh-system/mesh-*"}},
		Gates: []gate.Gate{{
			Name:         "mesh",
			Taint:        gate.Taint{Key: "mesh.example.com/agent-not-ready", Value: "startup", Effect: corev1.TaintEffectNoSchedule},
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "blue"}},
			FinalObject:  gate.FinalObjectDeny,
			Agent:        gate.Agent{Namespace: "mesh-system", ServiceAccount: "mesh-agent", PodLabels: map[string]string{"app": "mesh-agent"}},
			Checks: []gate.Check{
				{Name: "socket", Dwell: seconds(10), Timeout: seconds(2), Socket: &gate.SocketCheck{Path: "/run/mesh/cni.sock"}},
				{Name: "chain", Dwell: seconds(5), Timeout: seconds(2), Conflist: &gate.ConflistCheck{
					PluginType: "mesh-cni", Dir: gate.DefaultNetDir, BinDir: gate.DefaultBinDir, EntryFile: "/etc/cni/net.d/.mesh-cni-entry",
				}},
				{Name: "api", Dwell: seconds(10), Timeout: seconds(2), Socket: &gate.SocketCheck{
					Path: "/run/mesh/api.sock", HTTP: &gate.HTTPHealth{Path: "/"},
				}},
				{Name: "http", Dwell: seconds(10), Timeout: seconds(2), HTTP: &gate.HTTPCheck{
					Host: "127.0.0.1", Port: 9000, Path: "/", Scheme: corev1.URISchemeHTTP,
				}},
				{Name: "https", Dwell: seconds(10), Timeout: seconds(2), HTTP: &gate.HTTPCheck{
					Host: gate.HostInternalIP, Port: 65535, Path: "/livez?verbose", Scheme: corev1.URISchemeHTTPS,
				}},
				{Name: "grpc", Dwell: seconds(10), Timeout: seconds(2), GRPC: &gate.GRPCCheck{
					Host: "127.0.0.1", Port: 9001, Service: "mesh.Agent",
				}},
				{Name: "grpc-socket", Dwell: seconds(10), Timeout: seconds(2), Socket: &gate.SocketCheck{
					Path: "/run/mesh/grpc.sock", GRPC: &gate.GRPCHealth{},
				}},
				{Name: "file", Dwell: seconds(10), Timeout: seconds(2), File: &gate.FileCheck{
					Path: "/run/mesh/ready", MaxAge: seconds(300),
				}},
				{Name: "pod", Dwell: seconds(10), Timeout: seconds(2), Pod: &gate.PodCheck{
					Namespace: "mesh-system", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mesh"}},
				}},
				{Name: "nodecondition", Dwell: seconds(10), Timeout: seconds(2), NodeCondition: &gate.NodeConditionCheck{
					Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
				}},
				{Name: "condition", Dwell: seconds(10), Timeout: seconds(2), NodeCondition: &gate.NodeConditionCheck{
					Type: "example.com/MeshReady", Status: corev1.ConditionTrue,
				}},
			},
		}, {
			Name:         "storage",
			Taint:        gate.Taint{Key: "storage.example.com/not-ready", Effect: corev1.TaintEffectNoSchedule},
			NodeSelector: gate.DefaultNodeSelector(),
			FinalObject:  gate.FinalObjectAudit,
			Agent: gate.Agent{Namespace: gate.Namespace, ServiceAccount: gate.AgentAccount,
				PodLabels: map[string]string{gate.AgentLabel: gate.AgentLabelValue}},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Gates[0].Agent.Own() || !got.Gates[1].Agent.Own() {
		t.Error("the wrong agent counts as nodegate's own")
	}
}

func TestDefault(t *testing.T) {
	cfg := gate.Default()
	if faults := cfg.Validate(); len(faults) > 0 {
		t.Errorf("the default configuration is invalid: %v", faults)
	}
	empty, err := gate.ParseConfiguration([]byte("apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, empty); diff != "" {
		t.Errorf("an empty file is not the default, -default +empty:\n%s", diff)
	}
}

// TestParseConfiguration_Faults: every fault is named at once, each with its
// path.
func TestParseConfiguration_Faults(t *testing.T) {
	header := "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"
	long := "/" + strings.Repeat("x", 107)
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"nothing":          {"", []string{"apiVersion: Unsupported value", "kind: Unsupported value"}},
		"another version":  {"apiVersion: nodegate.io/v2\nkind: Config\n", []string{`apiVersion: Unsupported value: "nodegate.io/v2"`, `kind: Unsupported value: "Config"`}},
		"no YAML":          {"a: [", []string{"reading YAML"}},
		"a list":           {"- a\n", []string{"decoding"}},
		"two documents":    {header + "---\n" + header, []string{"more than one YAML document"}},
		"an ended file":    {header + "...\nmode: paused\n", []string{"more than one YAML document"}},
		"a doubled key":    {header + "mode: enforce\nmode: paused\n", []string{`"mode" already set in map`}},
		"unknown fields":   {header + "gate: []\ngates: [{name: a, taint: {key: a/b, colour: red}}]\n", []string{`unknown field "gate"`, `unknown field "gates[0].taint.colour"`}},
		"a wrong type":     {header + "gates: [{name: [a], taint: {key: a/b}}]\n", []string{"name"}},
		"an unknown mode":  {header + "mode: disabled\n", []string{`mode: Unsupported value: "disabled": supported values: "enforce", "observe", "paused"`}},
		"a bad name":       {header + "gates: [{name: Mesh_1, taint: {key: a/b}}]\n", []string{`gates[0].name: Invalid value: "Mesh_1"`}},
		"no name, no key":  {header + "gates: [{}]\n", []string{"gates[0].name", "gates[0].taint.key"}},
		"one taint twice":  {header + "gates: [{name: a, taint: {key: a/b}}, {name: b, taint: {key: a/b, value: x}}]\n", []string{`gates[1].taint.key: Duplicate value: "a/b"`}},
		"one name twice":   {header + "gates: [{name: a, taint: {key: a/b}}, {name: a, taint: {key: a/c}}]\n", []string{`gates[1].name: Duplicate value: "a"`}},
		"NoExecute":        {header + "gates: [{name: a, taint: {key: a/b, effect: NoExecute}}]\n", []string{`gates[0].taint.effect: Unsupported value: "NoExecute"`}},
		"Kubernetes' own":  {header + "gates: [{name: a, taint: {key: node.kubernetes.io/not-ready}}]\n", []string{"gates[0].taint.key", "belongs to Kubernetes"}},
		"a bad selector":   {header + "gates: [{name: a, taint: {key: a/b}, nodeSelector: {matchExpressions: [{key: x, operator: Near}]}}]\n", []string{"gates[0].nodeSelector.matchExpressions[0].operator"}},
		"a bad agent":      {header + "gates: [{name: a, taint: {key: a/b}, agent: {namespace: A, serviceAccount: _, podLabels: {x: \"a b\"}}}]\n", []string{"gates[0].agent.namespace", "gates[0].agent.serviceAccount", "gates[0].agent.podLabels"}},
		"a bad final":      {header + "gates: [{name: a, taint: {key: a/b}, finalObject: Warn}]\n", []string{"gates[0].finalObject"}},
		"bad prefixes":     {header + "toleratedPrefixes: ['', example.com, nodegate.io/x, heartbeat.nodegate.io/, 'a b/']\n", []string{"toleratedPrefixes[0]", "toleratedPrefixes[1]", "toleratedPrefixes[2]", "toleratedPrefixes[3]", "toleratedPrefixes[4]"}},
		"prefixes of keys": {header + "toleratedPrefixes: [kubernetes.io/, example.com/po]\ngates: [{name: a, taint: {key: a/b}}, {name: b, taint: {key: a/c}, nodeSelector: {matchExpressions: [{key: example.com/pool, operator: Exists}]}}]\n", []string{`toleratedPrefixes[0]: Invalid value: "kubernetes.io/": must not be that of the label kubernetes.io/os, by which gate "a"`, `toleratedPrefixes[1]`, `label example.com/pool, by which gate "b"`}},
		"an empty check":   {header + "gates: [{name: a, taint: {key: a/b}, checks: [{}]}]\n", []string{"gates[0].checks[0]: Required value: one of socket, conflist, "}},
		"a double check":   {header + "gates: [{name: a, taint: {key: a/b}, checks: [{socket: {path: /x}, conflist: {pluginType: x}}]}]\n", []string{"only one of socket, conflist"}},
		"one check twice":  {header + "gates: [{name: a, taint: {key: a/b}, checks: [{socket: {path: /x}}, {socket: {path: /y}}]}]\n", []string{`gates[0].checks[1].name: Duplicate value: "socket"`}},
		"a long socket":    {header + "gates: [{name: a, taint: {key: a/b}, checks: [{socket: {path: " + long + "}}]}]\n", []string{"gates[0].checks[0].socket.path", "has 108 bytes; the path of a Unix socket has at most 107"}},
		"a relative path":  {header + "gates: [{name: a, taint: {key: a/b}, checks: [{socket: {path: x.sock}}]}]\n", []string{"must be an absolute path"}},
		"a path as plugin": {header + "gates: [{name: a, taint: {key: a/b}, checks: [{conflist: {pluginType: ../x}}]}]\n", []string{"gates[0].checks[0].conflist.pluginType"}},
		"a loaded entry":   {header + "gates: [{name: a, taint: {key: a/b}, checks: [{conflist: {pluginType: x, entryFile: /etc/cni/net.d/entry.json}}]}]\n", []string{"gates[0].checks[0].conflist.entryFile", "a runtime would load it"}},
		"an odd runtime":   {header + "gates: [{name: a, taint: {key: a/b}, checks: [{conflist: {pluginType: x, runtime: docker}}]}]\n", []string{`gates[0].checks[0].conflist.runtime: Unsupported value: "docker": supported values: "containerd", "cri-o"`}},
		"bad durations":    {header + "gates: [{name: a, taint: {key: a/b}, checks: [{dwell: -1s, timeout: 0s, socket: {path: /x}}]}]\n", []string{"gates[0].checks[0].dwell", "gates[0].checks[0].timeout"}},
		"bad endpoints": {header + checks(`http: {}`, `http: {host: localhost, port: 65536, path: x, scheme: FTP}`, `http: {host: 10.0.0.1, port: -1}`, `http: {host: "::1%lo", port: 1, path: "/\u0001"}`, `grpc: {host: example.com}`), []string{
			"gates[0].checks[0].http.port: Invalid value: 0",
			`gates[0].checks[1].http.host: Invalid value: "localhost": must be a loopback address, such as 127.0.0.1 or ::1, or InternalIP`,
			"gates[0].checks[1].http.port: Invalid value: 65536", `gates[0].checks[1].http.path: Invalid value: "x"`, `gates[0].checks[1].http.scheme: Unsupported value: "FTP": supported values: "HTTP", "HTTPS"`,
			`gates[0].checks[2].http.host: Invalid value: "10.0.0.1"`, "gates[0].checks[2].http.port: Invalid value: -1",
			`gates[0].checks[3].http.host: Invalid value: "::1%lo"`, "gates[0].checks[3].http.path: Invalid value",
			`gates[0].checks[4].grpc.host: Invalid value: "example.com"`, "gates[0].checks[4].grpc.port: Invalid value: 0",
		}},
		"bad files":         {header + checks(`file: {}`, `file: {path: run/x, maxAge: 0s}`), []string{"gates[0].checks[0].file.path: Required value", "gates[0].checks[1].file.path: Invalid value", "gates[0].checks[1].file.maxAge: Invalid value"}},
		"bad pods":          {header + checks(`pod: {}`, `pod: {namespace: A, selector: {}}`, `pod: {namespace: a, selector: {matchLabels: {"a b": c}}}`), []string{"gates[0].checks[0].pod.namespace", "gates[0].checks[0].pod.selector: Required value: without one any pod would do", "gates[0].checks[1].pod.namespace", "gates[0].checks[1].pod.selector: Required value", "gates[0].checks[2].pod.selector.matchLabels"}},
		"bad conditions":    {header + checks(`nodeCondition: {}`, `nodeCondition: {type: "a b", status: "Yes"}`), []string{"gates[0].checks[0].nodeCondition.type", "gates[0].checks[1].nodeCondition.type", `gates[0].checks[1].nodeCondition.status: Unsupported value: "Yes": supported values: "True", "False", "Unknown"`}},
		"bad socket health": {header + checks(`socket: {path: /s, http: {path: x}, grpc: {}}`), []string{"gates[0].checks[0].socket: Invalid value: \"/s\": only one of http, grpc may be set", `gates[0].checks[0].socket.http.path: Invalid value: "x"`}},
		"bad pods that wait": {header + "cni: {socket: cni.sock, timeout: 2m, exempt: ['*', a/b/c], colour: red}\n", []string{
			`cni.socket: Invalid value: "cni.sock": must be an absolute path`, `cni.timeout: Invalid value: "2m0s": must be more than zero and at most 1m0s`,
			`cni.exempt[0]: Invalid value: "*"`, `cni.exempt[1]: Invalid value: "a/b/c"`, `unknown field "cni.colour"`}},
		"a plugin that nobody answers": {header + checks(`conflist: {pluginType: nodegate-cni}`), []string{
			`gates[0].checks[0].conflist.pluginType: Invalid value: "nodegate-cni": asks the agent, which answers only where cni is set`}},
		"too large": {strings.Repeat("#", gate.MaxConfigurationBytes+1), []string{"1048577 bytes are too many"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gate.ParseConfiguration([]byte(tc.text))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not name %q:\n%v", want, err)
				}
			}
		})
	}
}

// TestCNI_Entry: what is configured is what the plugin reads in its entry.
func TestCNI_Entry(t *testing.T) {
	cfg, err := gate.ParseConfiguration([]byte("apiVersion: nodegate.io/v1alpha1\nkind: Configuration\ncni: {timeout: 90ms, exempt: [], status: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"nodegate-cni","socket":"/run/nodegate/cni.sock","timeout":"90ms","exempt":[],"status":true}`
	if got := string(cfg.CNI.Entry()); got != want {
		t.Errorf("entry %s, want %s", got, want)
	}
	if netconf.Namespace != gate.Namespace {
		t.Errorf("pods of %s never wait, those of %s do", netconf.Namespace, gate.Namespace)
	}
}

// checks is a gate with checks that differ in their names.
func checks(lines ...string) string {
	var b strings.Builder
	b.WriteString("gates: [{name: a, taint: {key: a/b}, checks: [")
	for i, line := range lines {
		fmt.Fprintf(&b, "{name: c%d, %s}, ", i, line)
	}
	return b.String() + "]}]\n"
}

// TestParseConfiguration_LastLine: the last line counts, however long it is and
// whether or not it has an end.
func TestParseConfiguration_LastLine(t *testing.T) {
	header := "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"
	for length := 4090; length <= 4100; length++ {
		last := "mode: paused #"
		last += strings.Repeat("x", length-len(last))
		for _, end := range []string{"", "\n", "\n...", "\n... # the end\n# of it\n"} {
			cfg, err := gate.ParseConfiguration([]byte(header + last + end))
			if err != nil || cfg.Mode != gate.ModePaused {
				t.Errorf("last line of %d bytes, then %q: mode was lost, error %v", length, end, err)
			}
		}
	}
}

func TestLoadConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := gate.LoadConfiguration(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one that names the file", err)
	}
	if err := os.WriteFile(path, []byte("mode: disabled"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gate.LoadConfiguration(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "mode") {
		t.Errorf("error %v, want one that names file and field", err)
	}
	if err := os.WriteFile(path, []byte(validConfiguration), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gate.LoadConfiguration(path); err != nil {
		t.Error(err)
	}
}
