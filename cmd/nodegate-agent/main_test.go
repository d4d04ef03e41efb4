package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/golden"
	"github.com/nodegate/nodegate/test/syncbuf"
)

func noEnvironment(string) string { return "" }

// run runs the command in this process and returns its output.
func run(ctx context.Context, getenv func(string) string, args ...string) (string, error) {
	var output bytes.Buffer
	command := newCommand(getenv, io.Discard)
	command.SetOut(&output)
	command.SetErr(&output)
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	return output.String(), err
}

func TestHelp(t *testing.T) {
	for file, command := range map[string][]string{
		"help.txt": nil, "help-conflist.txt": {"conflist"}, "help-chain.txt": {"chain"}, "help-unchain.txt": {"unchain"}, "help-install-cni.txt": {"install-cni"},
	} {
		// What the environment says must not show.
		got, err := run(t.Context(), func(string) string { return "from-the-environment" }, append(command, "--help")...)
		if err != nil {
			t.Fatal(err)
		}
		golden.Expect(t, filepath.Join("testdata", file), []byte(got))
	}
}

const serving = `
apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - socket: {path: %s}
`

func TestRefuses(t *testing.T) {
	const others = `
apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: unchecked
  taint: {key: example.com/a}
- name: foreign
  taint: {key: example.com/b}
  agent: {serviceAccount: mesh}
  checks: [{socket: {path: /s}}]
`
	for name, tc := range map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"an argument":     {args: []string{"x"}, want: []string{`unknown command "x"`}},
		"an unknown flag": {args: []string{"--nodename=n"}, want: []string{"unknown flag: --nodename"}},
		"no node name":    {args: []string{"--node-name="}, want: []string{"--node-name is empty, and so is NODE_NAME"}},
		"all flags at fault": {
			args: []string{"--node-name=", "--boot-id-path=", "--health-address=x", "--metrics-address=1.2.3.4", "--log-format=xml", "--log-level=loud"},
			want: []string{"--node-name", "--boot-id-path", `--health-address is "x"`, `--metrics-address is "1.2.3.4"`, `--log-format is "xml"`, `--log-level is "loud"`},
		},
		"no configuration":        {args: []string{"--config=/nowhere/config.yaml"}, want: []string{"/nowhere/config.yaml: no such file"}},
		"a broken configuration":  {config: "gates: [{nam: x}]", want: []string{"config.yaml: ", `unknown field "gates[0].nam"`}},
		"nothing to do":           {config: others, want: []string{"config.yaml: there is nothing to do: none of the gates (unchecked, foreign) has checks"}},
		"a socket path too long":  {config: fmt.Sprintf(serving, "/"+strings.Repeat("s", 107)), want: []string{"gates[0].checks[0].socket.path", "has 108 bytes", "at most 107"}},
		"outside a pod":           {config: fmt.Sprintf(serving, "/s"), want: []string{"give --kubeconfig"}},
		"a kubeconfig not there":  {config: fmt.Sprintf(serving, "/s"), args: []string{"--kubeconfig=/nowhere"}, want: []string{"reading --kubeconfig", "/nowhere"}},
		"a pod UID that is none":  {config: fmt.Sprintf(serving, "/s"), args: []string{"--pod-uid=a b", "--kubeconfig=testdata/kubeconfig.yaml"}, want: []string{`pod UID "a b"`}},
		"an address of elsewhere": {config: fmt.Sprintf(serving, "/s"), args: []string{"--health-address=192.0.2.1:1", "--kubeconfig=testdata/kubeconfig.yaml"}, want: []string{"listening for health", "192.0.2.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(path, []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"--config=" + path, "--node-name=n", "--health-address=0", "--metrics-address=0"}, tc.args...)
			_, err := run(t.Context(), noEnvironment, args...)
			if err == nil {
				t.Fatal("it is accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// TestBinary runs the real program against a real API server: it opens the gate,
// shows why, and leaves quietly when it is told to.
func TestBinary(t *testing.T) {
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	c := cluster.ForTest(t)
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	nodes := admin.CoreV1().Nodes()
	g := gate.DefaultGate()
	_, err = nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: corev1.NodeSpec{Taints: g.WithTaint(nil)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.PatchStatus(t.Context(), "node-a", fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, boot)); err != nil {
		t.Fatal(err)
	}

	p := start(t, c, c.Admin, boot)
	eventually(t, func() string {
		if status, body := p.get("health", "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "check socket: failing: ") {
			return fmt.Sprintf("/readyz answers %d %s", status, body)
		}
		return ""
	})
	if status, body := p.get("health", "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz answers %d %s", status, body)
	}
	p.listen()
	eventually(t, func() string {
		node, err := nodes.Get(t.Context(), "node-a", metav1.GetOptions{})
		if err != nil || gate.Judge(node, g, time.Now()) != gate.Fresh || g.Armed(node) {
			return fmt.Sprintf("the Node is not open: %v %v %v", node.Annotations, node.Spec.Taints, err)
		}
		return ""
	})
	eventually(t, func() string {
		if status, body := p.get("health", "/readyz"); status != http.StatusOK || !strings.Contains(body, "gate agent: ready\n  check socket: passing\n") {
			return fmt.Sprintf("/readyz answers %d %s", status, body)
		}
		return ""
	})
	_, metrics := p.get("metrics", "/metrics")
	for _, want := range []string{
		`nodegate_agent_openings_total{gate="agent",result="opened"} 1`,
		`nodegate_agent_check_state{check="socket",gate="agent",state="passing"} 1`,
		"nodegate_agent_clock_offset_seconds ",
		"process_resident_memory_bytes",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}

	before, err := nodes.Get(t.Context(), "node-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.terminate(); err != nil {
		t.Errorf("exit: %v", err)
	}
	after, err := nodes.Get(t.Context(), "node-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before.ResourceVersion != after.ResourceVersion {
		t.Errorf("it wrote a farewell: %v", after.Annotations)
	}
	if !strings.Contains(p.logs.String(), `"msg":"Opened the gate"`) || !strings.Contains(p.logs.String(), `"msg":"Agent stopped"`) {
		t.Errorf("log:\n%s", p.logs.String())
	}
}

// TestBinary_SwitchesOff: a check that keeps an agent from being ready, and with it
// a roll of its DaemonSet from going on, is switched off by the configuration that
// the agent has mounted, and on again.
func TestBinary_SwitchesOff(t *testing.T) {
	c := cluster.ForTest(t)
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	nodes := admin.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	info := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q,"containerRuntimeVersion":"containerd://2.2.0"}}}`, boot)
	if _, err := nodes.PatchStatus(t.Context(), "node-a", info); err != nil {
		t.Fatal(err)
	}
	netDir := t.TempDir()
	conflist := func(disabled bool) string {
		return fmt.Sprintf("  - conflist: {pluginType: x, dir: %s, disabled: %t}\n", netDir, disabled)
	}
	p := start(t, c, c.Admin, boot, conflist(false))
	p.listen()
	switched := func(disabled bool) {
		t.Helper()
		folder := filepath.Dir(p.socket)
		config := fmt.Sprintf(serving, p.socket) + conflist(disabled)
		if err := os.WriteFile(filepath.Join(folder, "new"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(folder, "new"), filepath.Join(folder, "config.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	readiness := func(status int, reason string) {
		t.Helper()
		eventually(t, func() string {
			if got, body := p.get("health", "/readyz"); got != status || !strings.Contains(body, reason) {
				return fmt.Sprintf("/readyz answers %d %s", got, body)
			}
			return ""
		})
	}
	readiness(http.StatusServiceUnavailable, "check conflist: failing: no CNI configuration in "+netDir)
	switched(true)
	readiness(http.StatusOK, "check conflist: passing")
	switched(false)
	readiness(http.StatusServiceUnavailable, "check conflist: failing: no CNI configuration in "+netDir)
}

// TestBinary_HoldsPods: the real plugin asks the real agent about a pod of its node.
func TestBinary_HoldsPods(t *testing.T) {
	c := cluster.ForTest(t)
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	nodes := admin.CoreV1().Nodes()
	governed := metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"kubernetes.io/os": "linux"}}
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: governed}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.PatchStatus(t.Context(), "node-a", fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, boot)); err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(t.TempDir(), "nodegate-cni")
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, "../nodegate-cni").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, said)
	}
	folder, err := os.MkdirTemp("", "ng")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := filepath.Join(folder, "run", "cni.sock")
	cni := fmt.Sprintf("cni: {socket: %s}\n", socket)
	p := start(t, c, c.Admin, boot, cni)
	add := func(timeout string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), plugin)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c0ffee", "CNI_NETNS=/run/netns/none", "CNI_IFNAME=eth0", "CNI_PATH=/",
			"CNI_ARGS=K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"}
		cmd.Stdin = strings.NewReader(fmt.Sprintf(
			`{"cniVersion":"1.0.0","name":"net","type":"nodegate-cni","socket":%q,"timeout":%q,"prevResult":{"cniVersion":"1.0.0"}}`, socket, timeout))
		said, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(said)
	}
	eventually(t, func() string {
		if said := add("1s"); !strings.Contains(said, `"code": 11`) || !strings.Contains(said, `gate \"agent\" is closed: check socket: socket `+p.socket+": absent") {
			return said
		}
		return ""
	})
	const result = `{"cniVersion":"1.0.0"}` + "\n"
	switched := func(mode string) {
		t.Helper()
		config := fmt.Sprintf(serving, p.socket) + cni + "mode: " + mode + "\n"
		if err := os.WriteFile(filepath.Join(filepath.Dir(p.socket), "config.yaml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	switched("paused")
	if said := add("60s"); said != result {
		t.Errorf("paused: %s", said)
	}
	switched("enforce")
	eventually(t, func() string {
		if said := add("1s"); !strings.Contains(said, `"code": 11`) {
			return said
		}
		return ""
	})
	p.listen()
	if said := add("60s"); said != result {
		t.Errorf("open: %s", said)
	}
	if err := p.terminate(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("the agent took its socket along: %v", err)
	}
}

// TestBinary_ExitCode: what is refused ends the program with a code and one line.
func TestBinary_ExitCode(t *testing.T) {
	command := exec.CommandContext(t.Context(), build(t), "--config=/nowhere", "--node-name=n")
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("exit: %v, want code 1", err)
	}
	if string(output) != "Error: reading configuration: open /nowhere: no such file or directory\n" {
		t.Errorf("output %q", output)
	}
}

// process is a running agent and the socket that its check asks for.
type process struct {
	testing.TB
	command *exec.Cmd
	socket  string
	logs    *syncbuf.Buffer
}

// start runs the agent, which reaches the API server as a configuration says, with
// the check of a socket and others as the configuration file has them.
func start(t testing.TB, c *cluster.Cluster, by *rest.Config, boot string, checks ...string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "ng") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &process{TB: t, socket: filepath.Join(dir, "s"), logs: &syncbuf.Buffer{}}
	kubeconfig, err := c.Kubeconfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	bare := func(host string) []byte { return []byte(strings.Trim(strings.TrimPrefix(host, "https://"), "/")) }
	admin = bytes.ReplaceAll(admin, bare(c.Admin.Host), bare(by.Host))
	if err := os.WriteFile(kubeconfig, admin, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"config.yaml": fmt.Sprintf(serving, p.socket) + strings.Join(checks, ""), "boot_id": boot + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.command = exec.CommandContext(t.Context(), build(t), "--config="+filepath.Join(dir, "config.yaml"), "--kubeconfig="+kubeconfig,
		"--boot-id-path="+filepath.Join(dir, "boot_id"), "--health-address=127.0.0.1:0", "--metrics-address=127.0.0.1:0", "--log-format=json")
	p.command.Env = []string{"NODE_NAME=node-a", "POD_UID=8125c226-9568-48d0-bda1-f5a076bdacb9"}
	p.command.Stderr = p.logs
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.command.Process.Kill() })
	return p
}

func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nodegate-agent")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, output)
	}
	return path
}

func (p *process) listen() {
	p.Helper()
	server := http.Server{ReadHeaderTimeout: time.Second}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		p.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	p.Cleanup(func() { _ = server.Close() })
}

// get asks an endpoint, whose address is in the log; status 0 if it does not
// answer.
func (p *process) get(name, path string) (int, string) {
	p.Helper()
	answer, err := http.Get("http://" + p.address(name) + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		p.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func (p *process) address(name string) string {
	for line := range strings.Lines(p.logs.String()) {
		var entry struct{ Msg, For, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "Listening" && entry.For == name {
			return entry.Address
		}
	}
	return "not-listening-yet.invalid"
}

// terminate sends SIGTERM and waits for the end.
func (p *process) terminate() error {
	p.Helper()
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.command.Wait()
}

func eventually(t testing.TB, complaint func() string) {
	t.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
		last = complaint()
		return last == "", nil
	})
	if err != nil {
		t.Fatal(last)
	}
}
