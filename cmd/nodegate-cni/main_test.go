package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
)

// binDir holds the real plugin, and a stand-in for those around it.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "ng")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binDir = dir
		for name, source := range map[string]string{netconf.PluginType: ".", "bridge": "./testdata/stand-in", "mesh-cni": "./testdata/stand-in"} {
			if said, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), source).CombinedOutput(); err != nil {
				panic(fmt.Sprintf("%v\n%s", err, said))
			}
		}
		return m.Run()
	}())
}

// node is one whose runtime loads a list with the plugin between two others.
type node struct {
	*testing.T
	dir, log, socket, netns string
	gate                    *gate
}

// gate is opened and closed by hand. Pods whose names begin with "tolerant" do not
// wait for it.
type gate struct {
	mu      sync.Mutex
	open    bool
	changed chan struct{}
	// since is when the attempts began which it lets go.
	since time.Time
}

func (g *gate) Holds(_ context.Context, pod netconf.Pod, began time.Time) (again bool, reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if began.Before(g.since) {
		return true, errors.New("gate \"agent\" is closed: it was too early")
	}
	if g.open || strings.HasPrefix(pod.Name, "tolerant") {
		return false, nil
	}
	return false, errors.New(`gate "agent" is closed: check socket: refused`)
}

func (g *gate) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	close(g.changed)
	g.changed = make(chan struct{})
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "ng") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &node{T: t, dir: dir, log: filepath.Join(dir, "log"), socket: filepath.Join(dir, "run", "cni.sock"), netns: "/run/netns/none", gate: &gate{changed: make(chan struct{})}}
}

// serve starts the agent's part, until it is stopped.
func (n *node) serve() (stop func()) {
	n.Helper()
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&hold.Server{Path: n.socket, Keeper: n.gate, Log: slog.New(slog.DiscardHandler)}).Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	n.Cleanup(stop)
	return stop
}

// result is what the main plugin makes, in a version's form.
func result(version string) string {
	form := ""
	if version < "1" {
		form = `"version":"4",`
	}
	return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/x"}],`+
		`"ips":[{%s"interface":0,"address":"10.244.1.7/24","gateway":"10.244.1.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.244.1.1"}],`+
		`"dns":{"nameservers":["10.96.0.10"],"search":["cluster.local"]}}`, version, form)
}

// list is the plugin between two others, with settings of its own.
func (n *node) list(version, settings string) *libcni.NetworkConfigList {
	n.Helper()
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"net","plugins":[{"type":"bridge","log":%q,"result":%s},`+
		`{"type":"nodegate-cni","socket":%q%s},{"type":"mesh-cni","log":%q}]}`, version, n.log, result(version), n.socket, settings, n.log)
	list, err := libcni.ConfListFromBytes([]byte(text))
	if err != nil {
		n.Fatal(err)
	}
	return list
}

// runtime is libcni, as containerd and CRI-O call it, for a pod.
func (n *node) runtime(pod netconf.Pod) (*libcni.CNIConfig, *libcni.RuntimeConf) {
	return libcni.NewCNIConfigWithCacheDir([]string{binDir}, filepath.Join(n.dir, "cache"), nil), &libcni.RuntimeConf{
		ContainerID: "c0ffee", NetNS: n.netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", "c0ffee"}, {"K8S_POD_UID", pod.UID}},
	}
}

func (n *node) add(list *libcni.NetworkConfigList, pod netconf.Pod) (types.Result, error) {
	cni, rt := n.runtime(pod)
	return cni.AddNetworkList(n.Context(), list, rt)
}

// calls are those of the plugins around ours.
func (n *node) calls() []string {
	n.Helper()
	text, err := os.ReadFile(n.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.Fatal(err)
	}
	var calls []string
	for line := range strings.Lines(string(text)) {
		var call struct{ Command, Type string }
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			n.Fatal(err)
		}
		calls = append(calls, call.Command+" "+call.Type)
	}
	return calls
}

func (n *node) expectCalls(want ...string) {
	n.Helper()
	if diff := cmp.Diff(want, n.calls()); diff != "" {
		n.Errorf("calls of others, -want +got:\n%s", diff)
	}
}

var pod = netconf.Pod{Namespace: "shop", Name: "cart-0", UID: "0deb1067-949c-4b9d-8907-4eaeaea221b2"}

func versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// TestPlugin_InAChain: a runtime runs the real binary in a list of each version. A
// pod waits before the next plugin has done anything, goes when the gate opens, and
// has the main plugin's result.
func TestPlugin_InAChain(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			n := newNode(t)
			n.serve()
			list := n.list(version, `,"timeout":"60s"`)
			type outcome struct {
				result types.Result
				err    error
			}
			done := make(chan outcome, 1)
			go func() {
				result, err := n.add(list, pod)
				done <- outcome{result, err}
			}()
			eventually(t, func() bool { return len(n.calls()) > 0 })
			n.expectCalls("ADD bridge")
			n.gate.set(true)
			got := <-done
			if got.err != nil {
				t.Fatal(got.err)
			}
			text, err := json.Marshal(got.result)
			if err != nil {
				t.Fatal(err)
			}
			expectJSON(t, "the result", string(text), result(version))
			n.expectCalls("ADD bridge", "ADD mesh-cni")
			seen, err := os.ReadFile(n.log)
			if err != nil {
				t.Fatal(err)
			}
			var call struct{ PrevResult json.RawMessage }
			if err := json.Unmarshal([]byte(strings.Split(string(seen), "\n")[1]), &call); err != nil {
				t.Fatal(err)
			}
			expectJSON(t, "the next plugin's prevResult", string(call.PrevResult), result(version))
			n.gate.set(false)
			n.expectLife(list, version)
		})
	}
}

// expectLife goes on with the pod while the gate is closed: nothing waits.
func (n *node) expectLife(list *libcni.NetworkConfigList, version string) {
	n.Helper()
	cni, rt := n.runtime(pod)
	if version != "0.3.1" {
		if err := cni.CheckNetworkList(n.Context(), list, rt); err != nil {
			n.Errorf("CHECK: %v", err)
		}
	}
	if version == "1.1.0" {
		if err := cni.GCNetworkList(n.Context(), list, &libcni.GCArgs{}); err != nil {
			n.Errorf("GC: %v", err)
		}
		if err := cni.GetStatusNetworkList(n.Context(), list); err != nil {
			n.Errorf("STATUS: %v", err)
		}
	}
	if err := cni.DelNetworkList(n.Context(), list, rt); err != nil {
		n.Errorf("DEL: %v", err)
	}
	if err := cni.DelNetworkList(n.Context(), list, rt); err != nil {
		n.Errorf("DEL again: %v", err)
	}
	if _, err := cni.ValidateNetworkList(n.Context(), list); err != nil {
		n.Errorf("VERSION: %v", err)
	}
}

// TestPlugin_Outcomes is the table of what becomes of an ADD while the gate is
// closed.
func TestPlugin_Outcomes(t *testing.T) {
	closed := `this node is not ready for pods: gate "agent" is closed: check socket: refused; waited 8s, and the kubelet tries again`
	silent := "this node's nodegate-agent does not say whether it is ready for pods: connecting to SOCKET: no such file or directory; waited 8s, and the kubelet tries again"
	for name, tc := range map[string]struct {
		pod      netconf.Pod
		settings string
		// away: no agent answers.
		away bool
		code uint
		want string
	}{
		"an ordinary pod":                    {pod: pod, code: types.ErrTryAgainLater, want: closed},
		"an ordinary pod, the agent is away": {pod: pod, away: true, code: types.ErrTryAgainLater, want: silent},
		"a pod that tolerates the gate":      {pod: netconf.Pod{Namespace: "shop", Name: "tolerant-0"}},
		"the same, the agent is away":        {pod: netconf.Pod{Namespace: "shop", Name: "tolerant-0"}, away: true, code: types.ErrTryAgainLater, want: silent},
		"a pod of an exempt namespace":       {pod: netconf.Pod{Namespace: "kube-system", Name: "dns"}, away: true},
		"nodegate's own, whatever is said":   {pod: netconf.Pod{Namespace: "nodegate-system", Name: "c"}, settings: `,"exempt":[]`, away: true},
		"another list of namespaces":         {pod: netconf.Pod{Namespace: "kube-system", Name: "dns"}, settings: `,"exempt":["a"]`, code: types.ErrTryAgainLater, want: closed},
		"the gated agent, by its name":       {pod: netconf.Pod{Namespace: "mesh", Name: "mesh-agent-x7k2p"}, settings: `,"exempt":["mesh/mesh-agent-*"]`, away: true},
		"its neighbour":                      {pod: netconf.Pod{Namespace: "mesh", Name: "shop-0"}, settings: `,"exempt":["mesh/mesh-agent-*"]`, code: types.ErrTryAgainLater, want: closed},
		"no pod is named":                    {code: types.ErrTryAgainLater, want: closed},
		"wrong settings":                     {pod: pod, settings: `,"timeout":"soon","socket":"/run/x/y"`, code: types.ErrInvalidNetworkConfig, want: `nodegate-cni: timeout is "soon": must be a duration such as 20s`},
		"a time beyond the runtime's":        {pod: pod, settings: `,"timeout":"2m"`, code: types.ErrInvalidNetworkConfig, want: `nodegate-cni: timeout is "2m0s": must be more than zero and at most 1m0s`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if !tc.away {
				n.serve()
			}
			settings := tc.settings
			if !strings.Contains(settings, "timeout") {
				settings += `,"timeout":"8s"`
			}
			_, err := n.add(n.list("1.0.0", settings), tc.pod)
			if tc.code == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var said *types.Error
			if !errors.As(err, &said) {
				t.Fatalf("error %v, want one of CNI", err)
			}
			want := types.Error{Code: tc.code, Msg: strings.ReplaceAll(tc.want, "SOCKET", n.socket)}
			if diff := cmp.Diff(want, *said); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			n.expectCalls("ADD bridge") // the next plugin has done nothing
			cni, rt := n.runtime(tc.pod)
			if err := cni.DelNetworkList(t.Context(), n.list("1.0.0", settings), rt); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// TestPlugin_Status: where it is asked for, a closed gate and an agent that is away
// make STATUS fail, and nothing waits.
func TestPlugin_Status(t *testing.T) {
	n := newNode(t)
	cni, _ := n.runtime(pod)
	expect := func(want string) {
		t.Helper()
		eventually(t, func() bool { // a busy machine may not answer in time
			err := cni.GetStatusNetworkList(t.Context(), n.list("1.1.0", `,"status":true`))
			var said *types.Error
			return want == "" && err == nil || want != "" && errors.As(err, &said) && said.Code == types.ErrPluginNotAvailable && strings.Contains(said.Msg, want)
		})
	}
	expect("does not say whether it is ready for pods")
	stop := n.serve()
	eventually(t, func() bool { _, err := os.Stat(n.socket); return err == nil })
	expect(`this node is not ready for pods: gate "agent" is closed`)
	n.gate.set(true)
	expect("")
	stop()
	expect("connection refused")
}

// TestPlugin_Overtaken: a pod with which the runtime began before the gate's plugin
// was chained fails at once, however long the plugin before this one took; what the
// runtime begins with since may go.
func TestPlugin_Overtaken(t *testing.T) {
	n := newNode(t)
	n.gate.set(true)
	n.gate.since = time.Now().Add(-time.Minute)
	n.serve()
	n.netns = filepath.Join(n.dir, "netns")
	if err := os.WriteFile(n.netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list := n.list("1.0.0", `,"timeout":"60s"`)
	for age, want := range map[time.Duration]string{0: "", -time.Hour: "", 90 * time.Second: "it was too early", 90 * time.Hour: "it was too early"} {
		made := time.Now().Add(-age)
		if err := os.Chtimes(n.netns, made, made); err != nil {
			t.Fatal(err)
		}
		_, err := n.add(list, pod)
		var said *types.Error
		if want == "" && err != nil || want != "" && (!errors.As(err, &said) || said.Code != types.ErrTryAgainLater || !strings.Contains(said.Msg, want)) {
			t.Errorf("made %s ago: error %v, want %q", age, err, want)
		}
	}
}

// TestPlugin_AgentRolls: the agent that the pod asked ends, and the next one lets
// it go.
func TestPlugin_AgentRolls(t *testing.T) {
	n := newNode(t)
	stop := n.serve()
	done := make(chan error, 1)
	go func() {
		_, err := n.add(n.list("1.1.0", `,"timeout":"60s"`), pod)
		done <- err
	}()
	eventually(t, func() bool { return len(n.calls()) > 0 })
	n.serve()
	stop()
	n.gate.set(true)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// run starts the binary as a runtime does, and returns all that it prints.
func run(t *testing.T, command, input string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, netconf.PluginType))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c0ffee", "CNI_NETNS=/run/netns/none", "CNI_IFNAME=eth0", "CNI_PATH=" + binDir,
		"CNI_ARGS=K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=a"}
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestPlugin_PassesOnToTheByte: what stands in prevResult comes out as it was
// spelled, with keys that no version has.
func TestPlugin_PassesOnToTheByte(t *testing.T) {
	for _, version := range versions() {
		previous := strings.Replace(result(version), "{", "{ \"vendor.example\" : [1.50e3, \"\\u003c\"],\n", 1)
		stdout, stderr, code := run(t, "ADD", fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"nodegate-cni","prevResult":%s}`, version, previous))
		if stdout != previous+"\n" || stderr != "" || code != 0 {
			t.Errorf("%s: exit %d, stdout\n%s\nwant\n%s\nstderr %q", version, code, stdout, previous, stderr)
		}
	}
	// In another version than what is asked for, it is converted.
	stdout, _, code := run(t, "ADD", `{"cniVersion":"0.4.0","name":"net","type":"nodegate-cni","prevResult":`+result("1.0.0")+`}`)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stdout)
	}
	expectJSON(t, "the converted result", stdout, result("0.4.0"))
}

// TestPlugin_OnlyTheResultOnStdout: whatever it is called with, stdout holds one
// JSON document or nothing, and stderr nothing.
func TestPlugin_OnlyTheResultOnStdout(t *testing.T) {
	head := `{"cniVersion":"1.1.0","name":"net","type":"nodegate-cni"`
	for name, tc := range map[string]struct {
		command, input string
		// code is the error's; 0: it ends well.
		code uint
	}{
		"ADD without prevResult":      {"ADD", head + `}`, types.ErrInvalidNetworkConfig},
		"ADD with an empty one":       {"ADD", head + `,"prevResult":null}`, types.ErrInvalidNetworkConfig},
		"ADD with a broken one":       {"ADD", head + `,"prevResult":{"ips":7}}`, types.ErrDecodingFailure},
		"ADD with one of no version":  {"ADD", head + `,"prevResult":{"cniVersion":"9.0.0"}}`, types.ErrDecodingFailure},
		"ADD with a list for one":     {"ADD", head + `,"prevResult":[]}`, types.ErrDecodingFailure},
		"ADD with no JSON":            {"ADD", "{", types.ErrDecodingFailure},
		"ADD with nothing":            {"ADD", "", types.ErrDecodingFailure},
		"ADD of a version to come":    {"ADD", `{"cniVersion":"9.0.0","name":"net"}`, types.ErrIncompatibleCNIVersion},
		"CHECK without prevResult":    {"CHECK", head + `}`, types.ErrInvalidNetworkConfig},
		"CHECK":                       {"CHECK", head + `,"prevResult":` + result("1.1.0") + `}`, 0},
		"DEL":                         {"DEL", head + `}`, 0},
		"DEL with settings of no use": {"DEL", head + `,"socket":7,"prevResult":{"ips":7}}`, 0},
		"DEL of a version to come":    {"DEL", `{"cniVersion":"9.0.0","name":"net"}`, 0},
		"DEL of no version":           {"DEL", `{"cniVersion":7,"name":"net"}`, 0},
		"DEL with no name":            {"DEL", `{"cniVersion":"1.1.0"}`, 0},
		"DEL with no JSON":            {"DEL", "{", 0},
		"DEL with nothing":            {"DEL", "", 0},
		"GC of a version to come":     {"GC", `{"cniVersion":"9.0.0","name":"net"}`, 0},
		"GC of an older version":      {"GC", `{"cniVersion":"1.0.0","name":"net"}`, 0},
		"GC":                          {"GC", head + `,"cni.dev/valid-attachments":[]}`, 0},
		"STATUS":                      {"STATUS", head + `}`, 0},
		"STATUS with wrong settings":  {"STATUS", head + `,"timeout":"x"}`, types.ErrInvalidNetworkConfig},
		"another command":             {"DANCE", head + `}`, types.ErrInvalidEnvironmentVariables},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, tc.command, tc.input)
			if stderr != "" {
				t.Errorf("stderr: %s", stderr)
			}
			if tc.code == 0 {
				if stdout != "" || code != 0 {
					t.Errorf("exit %d, stdout %q", code, stdout)
				}
				return
			}
			var said types.Error
			if err := json.Unmarshal([]byte(stdout), &said); err != nil || said.Code != tc.code || code != 1 {
				t.Errorf("exit %d, stdout %s (%v), want code %d", code, stdout, err, tc.code)
			}
		})
	}
}

func expectJSON(t *testing.T, what, got, want string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Fatalf("%s: %v in %s", what, err, got)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("%s, -want +got:\n%s", what, diff)
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatal("waited in vain")
		case <-time.After(5 * time.Millisecond):
		}
	}
}
