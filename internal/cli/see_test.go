package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/report"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/syncbuf"
)

const oneGate = head + `gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - socket: {path: /run/example/cni.sock}
`

// TestSee: what is there is seen, with whatever rights.
func TestSee(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.expect(t, codeFailed, "is nodegate installed in this cluster?", "status")
	e.expect(t, codeDone, "Neither controller nor agent is installed", "version")
	e.install(t, manifests.Options{Config: oneGate})
	t.Run("policies as rendered", e.seesNoDifference)
	t.Run("a policy that was edited", e.seesDifference)
	cfg, err := gate.ParseConfiguration([]byte(oneGate))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.AwaitPolicies(t.Context(), cfg); err != nil { // nodes are born armed from here on
		t.Fatal(err)
	}
	e.install(t, manifests.Options{Config: oneGate, Mutation: manifests.ByWebhook})
	e.expect(t, int(codeAmiss), "policies and the webhook arm", "status")
	e.createNode(t, "node-1")
	t.Run("heartbeat", e.seesHeartbeat)
	t.Run("completion", e.completes)
	t.Run("config", e.validates)
	t.Run("version", e.seesVersions)
	t.Run("few rights", e.seesLittle)
	t.Run("an agent that waits", e.seesWaitingAgent)
	t.Run("watch", e.watches)
	t.Run("watch, while the API server is away", e.watchesNothing)
}

// install applies all that an installation is.
func (e *environment) install(t *testing.T, o manifests.Options) {
	t.Helper()
	objects, err := manifests.Install(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.Apply(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) createNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	node, err := e.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func (e *environment) patchNode(t *testing.T, name, patch string) {
	t.Helper()
	_, err := e.admin.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// status is what programs read.
func (e *environment) status(t *testing.T, wantCode int, args ...string) *report.Status {
	t.Helper()
	out, errOut, code := e.run(t, append([]string{"status", "-o", "json"}, args...)...)
	if code != wantCode {
		t.Fatalf("exit code %d, want %d:\n%s%s", code, wantCode, out, errOut)
	}
	s := &report.Status{}
	if err := json.Unmarshal([]byte(out), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// seesNoDifference: what an API server makes of the manifests is what is rendered.
func (e *environment) seesNoDifference(t *testing.T) {
	s := e.status(t, int(codeAmiss))
	if len(s.Findings) != 1 || s.Findings[0].Kind != report.GuardAbsent || len(s.Unseen) > 0 || s.Installation.Mutation != report.MutationPolicy {
		t.Errorf("findings %+v, unseen %+v, installation %+v", s.Findings, s.Unseen, s.Installation)
	}
}

func (e *environment) seesDifference(t *testing.T) {
	policies := e.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	patch := `{"spec":{"failurePolicy":"Ignore"}}`
	if _, err := policies.Patch(t.Context(), "writers.agent.nodegate.io", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.expect(t, int(codeAmiss), "ValidatingAdmissionPolicy writers.agent.nodegate.io in spec.failurePolicy", "status")
	e.install(t, manifests.Options{Config: oneGate})
	e.seesNoDifference(t)
}

func (e *environment) seesHeartbeat(t *testing.T) {
	node := e.createNode(t, "beating")
	patch := `{"status":{"nodeInfo":{"bootID":"de2d9a80-35f2-44b5-bea4-72f10b303c45"}}}`
	if _, err := e.admin.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeFailed, `nodes "unknown" not found`, "heartbeat", "unknown")
	e.expect(t, int(codeArmed), "Absent: there is no heartbeat", "heartbeat", node.Name)
	e.expect(t, int(codeArmed), "Absent: there is no heartbeat", "heartbeat", "node/"+node.Name) // as status -o name has it
	hb := gate.Heartbeat{Ready: true, Time: time.Now().Truncate(time.Second), TTL: gate.MaxTTL, BootID: "de2d9a80-35f2-44b5-bea4-72f10b303c45", NodeUID: node.UID}
	value, err := hb.Format()
	if err != nil {
		t.Fatal(err)
	}
	annotate := func(value string) {
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{gate.HeartbeatPrefix + "agent": value}}})
		if err != nil {
			t.Fatal(err)
		}
		e.patchNode(t, node.Name, string(data))
	}
	annotate(value)
	e.expect(t, codeDone, "Fresh: the node's agent serves", "heartbeat", node.Name)
	annotate("v=1 \x1b[2J")
	e.expect(t, int(codeArmed), `fault     parsing heartbeat: value "v=1 \x1b[2J"`, "heartbeat", node.Name)
}

func (e *environment) completes(t *testing.T) {
	e.createNode(t, "node-2")
	for _, tc := range []struct{ line, want string }{
		{"heartbeat node-", "node-1\nnode-2\n:4"},
		{"heartbeat node-1 ", ":4"},
		{"bypass node-1 --gate ", "agent\n:4"},
		{"status -o ", "wide\nname\njson\nyaml\n:4"},
	} {
		out, errOut, code := run(t, slices.Concat([]string{"__complete"}, e.flags, strings.Split(tc.line, " "))...)
		if code != codeDone || strings.TrimSpace(out) != tc.want {
			t.Errorf("%s: exit code %d, %q, want %q\n%s", tc.line, code, out, tc.want, errOut)
		}
	}
}

func (e *environment) validates(t *testing.T) {
	e.expect(t, codeDone, "ConfigMap nodegate-system/nodegate-config is valid: mode enforce, gates agent", "config", "validate")
	e.setConfig(t, head+"mode: sometimes\n")
	e.expect(t, codeFailed, `- mode: Unsupported value: "sometimes"`, "config", "validate")
	e.expect(t, codeFailed, "bring another by kubectl nodegate upgrade --config FILE", "status")
	e.expect(t, codeUnseen, `mode: Unsupported value: "sometimes"`, "version")
	e.expect(t, int(codeArmed), `mode: Unsupported value: "sometimes"`, "heartbeat", "node-1")
	e.setConfig(t, oneGate)
}

func (e *environment) seesVersions(t *testing.T) {
	e.expect(t, codeDone, "controller            nodegate-controller:dev", "version")
	e.expect(t, codeDone, "agent of gate agent   nodegate-agent:dev", "version")
	e.expect(t, codeUnseen, "API server", "version", "--as=nobody")
}

// seesLittle: with the right to read Nodes, and no other.
func (e *environment) seesLittle(t *testing.T) {
	const user = "reader"
	identity, err := e.cluster.User(user)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(identity, kubeconfig); err != nil {
		t.Fatal(err)
	}
	e.allow(t, user, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}})
	client, err := kubernetes.NewForConfig(identity)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil, err
	}); err != nil {
		t.Fatal(err)
	}
	reader := &environment{flags: []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + t.TempDir()}}
	s := reader.status(t, int(codeArmed))
	seen := map[report.Part]bool{}
	for _, u := range s.Unseen {
		seen[u.Part] = true
	}
	if len(seen) != 5 || len(s.Nodes) == 0 || len(s.Findings) > 0 || s.Nodes[0].Agent != nil {
		t.Errorf("unseen %+v, findings %+v, nodes %+v", s.Unseen, s.Findings, s.Nodes)
	}
	reader.expect(t, int(codeArmed), "The default gate is assumed", "status")
	reader.expect(t, int(codeArmed), "Absent: there is no heartbeat", "heartbeat", "node-1")
	if out, _, code := reader.run(t, "explain", "node-1"); code != codeUnseen || strings.Contains(out, "Events tell nothing") {
		t.Errorf("exit code %d, of Events that were not seen it says\n%s", code, out)
	}
	if s := reader.status(t, codeUnseen, "-l", "no=such"); len(s.Nodes) > 0 {
		t.Errorf("nodes %+v", s.Nodes)
	}
	e.expect(t, codeFailed, "run it as somebody who may", "status", "--as=nobody")
}

// seesWaitingAgent: a pod that no scheduler has bound yet is its node's all the same.
func (e *environment) seesWaitingAgent(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: gate.Namespace, Labels: map[string]string{gate.AgentLabel: gate.AgentLabelValue}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "agent", Image: "agent"}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}},
				}}},
			}},
		},
	}
	if _, err := e.admin.CoreV1().Pods(gate.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeDone, "describe pod waiting", "explain", "node-1")
	for _, row := range e.status(t, int(codeArmed)).Nodes {
		if of := row.Agent.Pod; (of == "waiting") != (row.Node == "node-1") {
			t.Errorf("the pod of %s is %q", row.Node, of)
		}
	}
}

// watches: a row that changes is shown, and one more is not.
func (e *environment) watches(t *testing.T) {
	read, write := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // of waiting in vain
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		args := append([]string{"status", "--watch", "-o", "name"}, e.flags...)
		ended <- Run(ctx, genericiooptions.IOStreams{In: strings.NewReader(""), Out: write, ErrOut: io.Discard}, args)
		_ = write.Close()
	}()
	lines := bufio.NewScanner(read)
	await := func(want string) {
		t.Helper()
		for lines.Scan() {
			if lines.Text() == want {
				return
			}
		}
		t.Fatalf("the watch has ended before it wrote %q", want)
	}
	await("node/node-2") // it is the last one
	e.patchNode(t, "beating", `{"metadata":{"annotations":null}}`)
	await("node/beating")
	e.createNode(t, "node-3")
	await("node/node-3")
	if err := e.admin.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("node/node-1")
	cancel()
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if code := <-ended; code != codeDone {
		t.Errorf("exit code %d", code)
	}
}

// shown is what a command that goes on has written.
type shown struct{ syncbuf.Buffer }

func (s *shown) has(text string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		return strings.Contains(s.String(), text), nil
	}
}

// watchesNothing: of a cluster that is out of sight, no heartbeat is called too old.
func (e *environment) watchesNothing(t *testing.T) {
	const ttl = 30 * time.Second
	node := e.createNode(t, "away")
	boot := []byte(`{"status":{"nodeInfo":{"bootID":"de2d9a80-35f2-44b5-bea4-72f10b303c45"}}}`)
	if _, err := e.admin.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, boot, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	hb := gate.Heartbeat{Ready: true, Time: time.Now().Truncate(time.Second), TTL: ttl, BootID: "de2d9a80-35f2-44b5-bea4-72f10b303c45", NodeUID: node.UID}
	value, err := hb.Format()
	if err != nil {
		t.Fatal(err)
	}
	e.patchNode(t, node.Name, `{"metadata":{"annotations":{"`+gate.HeartbeatPrefix+`agent":"`+value+`"}}}`)
	wire, err := cluster.NewWire(e.cluster.Admin)
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Cut()
	ctx, cancel := context.WithCancel(t.Context())
	rows, talk, ended := &shown{}, &shown{}, make(chan int, 1)
	go func() {
		args := append([]string{"status", "--watch", "--server=" + wire.Config(e.cluster.Admin).Host}, e.flags...)
		ended <- Run(ctx, genericiooptions.IOStreams{In: strings.NewReader(""), Out: rows, ErrOut: talk}, args)
	}()
	await := func(seen func(context.Context) (bool, error)) {
		t.Helper()
		if err := cluster.Await(t.Context(), seen); err != nil {
			t.Fatalf("%v; it shows\n%s%s", err, rows.String(), talk.String())
		}
	}
	await(rows.has("Fresh"))
	wire.Cut()
	await(talk.has("Lost sight of the cluster"))
	await(func(context.Context) (bool, error) { return time.Since(hb.Time) > ttl+3*rowsInterval, nil })
	if expired, _ := rows.has("Expired")(t.Context()); expired {
		t.Error("a heartbeat is called too old that nobody can see")
	}
	if err := wire.Mend(); err != nil {
		t.Fatal(err)
	}
	await(rows.has("Expired"))
	cancel()
	if code := <-ended; code != codeDone {
		t.Errorf("exit code %d", code)
	}
}

// TestOutput_Terminal: what comes from a cluster reaches no terminal as it is.
func TestOutput_Terminal(t *testing.T) {
	var out strings.Builder
	o := &options{IOStreams: genericiooptions.IOStreams{Out: &out}}
	columns := &table{}
	columns.write(o, [][]cell{cells("A", "B", "C"), {{text: "ü\x1b[2J"}, {colour: red}, {}}})
	columns.write(o, [][]cell{cells("x", "y", "z")})
	if want := "A          B   C\nü\\x1b[2J   -\nx          y   z\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestOutput_Unprintable: nothing of a cluster reaches a terminal's controls, or
// makes lines of its own: not what kubelets write, nor anybody's errors.
func TestOutput_Unprintable(t *testing.T) {
	const evil = "\x1b[31mno\u009b2J\r\nGate agent: open\u202e"
	const shown = `\x1b[31mno\u009b2J`
	var out, errOut bytes.Buffer
	o := &options{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &errOut}}
	(&explainOptions{options: o}).show(&report.Explanation{
		Node: "n", BootID: evil,
		Gates: []report.Explained{{
			Gate: "agent", Governed: true, State: report.Armed, Why: "Why: " + evil, Hint: evil,
			Row:    &report.Row{State: report.Armed, Agent: &report.Agent{Pod: "p", Problem: evil}},
			Events: []report.Event{{Reason: "Armed", Message: evil}},
			Next:   []report.Step{{Why: evil, Command: "kubectl describe node n"}},
		}},
		Findings: []report.Finding{{Message: evil, Do: evil}},
	})
	o.sayf("%s: %v", evil, errors.New(evil))
	text := out.String() + errOut.String()
	for line := range strings.Lines(text) {
		if line == "\n" {
			continue
		}
		if line = strings.TrimSuffix(line, "\n"); strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }) {
			t.Errorf("unprintable: %q", line)
		}
	}
	if strings.Contains(text, "\nGate agent: open") {
		t.Errorf("what a kubelet says is a line of its own:\n%s", text)
	}
	if got := strings.Count(text, shown); got < 5 {
		t.Errorf("only %d texts are shown for what they are:\n%s", got, text)
	}
}
