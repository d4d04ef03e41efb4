package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/syncbuf"
)

const patience = 3 * time.Minute

// environment is an API server and the program as it is shipped.
type environment struct {
	admin   client.Client
	program string
	// account is the controller's, kubeconfig the file by which it is used.
	account    *rest.Config
	kubeconfig string
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nodegate-controller")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, output)
	}
	c := cluster.ForTest(t)
	admin, err := client.New(c.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &environment{admin: admin, program: program}
	account, err := c.AccountToken(t.Context(), gate.Namespace, gate.ControllerAccount)
	if err != nil {
		t.Fatal(err)
	}
	e.account, e.kubeconfig = account, kubeconfig(t, account)
	e.create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: gate.ConfigMapName, Namespace: gate.Namespace,
		Annotations: map[string]string{gate.InstalledAtAnnotation: "2026-01-01T00:00:00Z"},
	}})
	grant(t, c)
	// The authorizer learns of new bindings by a watch.
	controller, err := client.New(account, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the controller's rights", func(ctx context.Context) bool {
		return controller.List(ctx, &corev1.NodeList{}) == nil &&
			controller.List(ctx, &corev1.PodList{}, client.InNamespace(gate.Namespace)) == nil
	})
	return e
}

// grant gives the controller's account the rights that it is installed with, and
// nothing else.
func grant(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	objects, err := manifests.Workloads(manifests.Options{
		Config: "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n", Mutation: manifests.ByWebhook,
	})
	if err != nil {
		t.Fatal(err)
	}
	others := func(u *unstructured.Unstructured) bool {
		return u.GroupVersionKind().Group != rbacv1.GroupName
	}
	if err := c.Apply(t.Context(), slices.DeleteFunc(objects, others)); err != nil {
		t.Fatal(err)
	}
}

// kubeconfig writes the file of an identity.
func kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func (e *environment) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := e.admin.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

// replica is a running process.
type replica struct {
	health, metrics, webhook string
	log                      *syncbuf.Buffer
	exited                   chan error

	mu      sync.Mutex
	process *os.Process
	// asked: whoever ends it now wants it to end.
	asked bool
}

// start runs a replica until the test ends, or until it is ended before, and
// returns it when it is ready.
func (e *environment) start(t *testing.T, args ...string) *replica {
	t.Helper()
	for {
		r := e.launch(t, args...)
		if r.becomesReady(t) {
			return r
		}
		if !strings.Contains(r.log.String(), syscall.EADDRINUSE.Error()) {
			t.Fatalf("a replica has ended; its log:\n%s", r.log)
		}
	}
}

// launch runs a replica on addresses that were free a moment before.
func (e *environment) launch(t *testing.T, args ...string) *replica {
	t.Helper()
	r := &replica{health: freeAddress(t), metrics: freeAddress(t), webhook: freeAddress(t), log: &syncbuf.Buffer{}, exited: make(chan error, 1)}
	args = append([]string{
		"--kubeconfig", e.kubeconfig, "--config=", "--health-address", r.health, "--metrics-address", r.metrics, "--webhook-address", r.webhook,
	}, args...)
	command, err := r.run(e.program, args)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			ended := command.Wait()
			if !r.lostLease() {
				r.exited <- ended
				return
			}
			if command, err = r.run(e.program, args); err != nil {
				r.exited <- ended
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = r.signal(os.Kill)
		if err, open := <-r.exited; open {
			t.Logf("replica ended: %v", err)
		}
		if t.Failed() {
			t.Logf("its log:\n%s", r.log)
		}
	})
	return r
}

func (r *replica) run(program string, args []string) (*exec.Cmd, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked {
		return nil, errors.New("it was asked to end")
	}
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = r.log, r.log
	if err := command.Start(); err != nil {
		return nil, err
	}
	r.process = command.Process
	return command, nil
}

// lostLease reports whether the replica ended because it could not renew its Lease
// in time, as happens where the machine stalls. Its kubelet would start it again.
func (r *replica) lostLease() bool {
	return strings.HasSuffix(strings.TrimSpace(r.log.String()), "leader election lost")
}

func (r *replica) signal(signal os.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = true
	return r.process.Signal(signal)
}

// becomesReady is false if it ends instead.
func (r *replica) becomesReady(t *testing.T) bool {
	t.Helper()
	ended := false
	eventually(t, "the replica to be ready", func(ctx context.Context) bool {
		select {
		case <-r.exited:
			close(r.exited)
			ended = true
			return true
		default:
		}
		code, _ := get(ctx, "http://"+r.health+"/readyz")
		return code == http.StatusOK
	})
	return !ended
}

// end sends a signal and returns how the process ended.
func (r *replica) end(t *testing.T, signal os.Signal) error {
	t.Helper()
	if err := r.signal(signal); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.exited:
		close(r.exited)
		return err
	case <-time.After(patience):
		t.Fatalf("the process did not end; its log:\n%s", r.log)
	}
	return nil
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func get(ctx context.Context, url string) (int, string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

func eventually(t *testing.T, what string, condition func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) { return condition(ctx), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// expectGuarded creates a Node that must be armed and waits until it is.
func (e *environment) expectGuarded(t *testing.T, name string) {
	t.Helper()
	node := e.bareNode(t, name)
	eventually(t, "node "+name+" to be armed", func(ctx context.Context) bool {
		return e.admin.Get(ctx, client.ObjectKeyFromObject(node), node) == nil && gate.DefaultGate().Armed(node)
	})
}

// bareNode was created after installation and has no heartbeat.
func (e *environment) bareNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	e.create(t, node)
	return node
}

func (e *environment) holder(t *testing.T) string {
	t.Helper()
	var lease coordinationv1.Lease
	if err := e.admin.Get(t.Context(), client.ObjectKey{Namespace: gate.Namespace, Name: gate.ControllerLease}, &lease); err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func TestController(t *testing.T) {
	e := newEnvironment(t)
	t.Run("two replicas", e.twoReplicas)
	t.Run("mode", e.mode)
	t.Run("webhook", e.webhook)
	t.Run("self-managed certificate", e.selfManaged)
	t.Run("certificate of files", e.files)
}

func (e *environment) twoReplicas(t *testing.T) {
	first := e.start(t)
	e.expectGuarded(t, "both")
	second := e.start(t, "--log-format=json")
	holder := e.holder(t)

	if err := first.end(t, syscall.SIGKILL); err == nil {
		t.Error("a killed process ended well")
	}
	began := time.Now()
	e.expectGuarded(t, "after-a-kill")
	for _, complaint := range []string{"forbidden", "Forbidden"} {
		if strings.Contains(second.log.String(), complaint) {
			t.Errorf("a right is missing:\n%s", second.log)
		}
	}
	t.Logf("after a kill, %s until the other replica guards", time.Since(began))
	if e.holder(t) == holder {
		t.Error("the killed replica still holds the Lease")
	}

	third := e.start(t)
	if err := second.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("ended by SIGTERM: %v", err)
	}
	began = time.Now()
	e.expectGuarded(t, "after-a-term")
	t.Logf("after a SIGTERM, %s until the other replica guards", time.Since(began))
	if err := third.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("ended by SIGTERM: %v", err)
	}
	if holder := e.holder(t); holder != "" {
		t.Errorf("the Lease is held by %q", holder)
	}
}

func configFile(t *testing.T, path, text string) {
	t.Helper()
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte("apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, path); err != nil {
		t.Fatal(err)
	}
}

// mode: what is observed is armed as soon as the mode is enforce, without an
// event of the Node.
func (e *environment) mode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	configFile(t, path, "mode: observe\n")
	r := e.start(t, "--config", path, "--leader-elect=false")
	node := e.bareNode(t, "observed")
	counted := `nodegate_guard_would_arm_total{gate="agent",reason="Absent"} 1`
	eventually(t, "the Node to be counted", func(ctx context.Context) bool {
		_, metrics := get(ctx, "http://"+r.metrics+"/metrics")
		return strings.Contains(metrics, counted)
	})
	if err := e.admin.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil || gate.DefaultGate().Armed(node) {
		t.Errorf("armed in the mode observe (%v)", err)
	}
	configFile(t, path, "mode: sometimes\n")
	eventually(t, "the broken file to be reported", func(context.Context) bool {
		return strings.Contains(r.log.String(), "the last good one stays in force")
	})
	configFile(t, path, "mode: enforce\n")
	eventually(t, "the Node to be armed", func(ctx context.Context) bool {
		return e.admin.Get(ctx, client.ObjectKeyFromObject(node), node) == nil && gate.DefaultGate().Armed(node)
	})
	configFile(t, path, "mode: enforce\ngates: [{name: other, taint: {key: example.com/other}, agent: {namespace: elsewhere}}]\n")
	select {
	case err := <-r.exited:
		close(r.exited)
		if err == nil || !strings.Contains(r.log.String(), errAgentsMoved.Error()) {
			t.Errorf("ended with %v:\n%s", err, r.log)
		}
	case <-time.After(patience):
		t.Error("still runs, watching the wrong agents")
	}
}

// review asks for a Node to be created.
const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE",
	"resource":{"version":"v1","resource":"nodes"},"object":{"metadata":{"labels":{"kubernetes.io/os":"linux"}},"spec":{}}}}`

// ask calls a replica's webhook as an API server that trusts a bundle and calls
// it by a name, and returns the certificate that was shown.
func (r *replica) ask(t *testing.T, bundle []byte, name string) *x509.Certificate {
	t.Helper()
	body, shown := r.post(t, bundle, name, review)
	if !strings.Contains(body, `"patchType":"JSONPatch"`) {
		t.Errorf("answer %s, want a patch", body)
	}
	return shown
}

// post sends a review and returns the answer and the certificate that was shown.
func (r *replica) post(t *testing.T, bundle []byte, name, review string) (string, *x509.Certificate) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}}
	defer transport.CloseIdleConnections()
	caller := http.Client{Transport: transport, Timeout: patience}
	answer, err := caller.Post(fmt.Sprintf("https://%s%s", r.webhook, gate.WebhookPath), "application/json", strings.NewReader(review))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), answer.TLS.PeerCertificates[0]
}

func newPair(t *testing.T, now time.Time) certs.Pair {
	t.Helper()
	pair, err := certs.SelfSigned(now, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func (e *environment) webhook(t *testing.T) {
	dir := t.TempDir()
	pair := newPair(t, time.Now())
	if err := pair.Write(dir); err != nil {
		t.Fatal(err)
	}
	r := e.start(t, "--webhook", "--webhook-cert-source", "files", "--webhook-cert-dir", dir)
	r.ask(t, pair.CA, "127.0.0.1")
	if code, body := get(t.Context(), "http://"+r.health+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d %s", code, body)
	}
	_, metrics := get(t.Context(), "http://"+r.metrics+"/metrics")
	if want := `nodegate_webhook_decisions_total{cause="Created",gate="agent",verdict="None"} 1`; !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %s", want)
	}
}

// selfManaged: every replica serves the one certificate, leading or not, and the
// registration trusts it.
func (e *environment) selfManaged(t *testing.T) {
	registration, err := manifests.Webhook(gate.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	e.create(t, registration)
	t.Cleanup(func() {
		if err := e.admin.Delete(context.WithoutCancel(t.Context()), registration); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	replicas := []*replica{e.start(t, "--webhook"), e.start(t, "--webhook")}
	var secret corev1.Secret
	if err := e.admin.Get(t.Context(), client.ObjectKey{Namespace: gate.Namespace, Name: gate.WebhookSecret}, &secret); err != nil {
		t.Fatal(err)
	}
	var stored admissionregistrationv1.MutatingWebhookConfiguration
	if err := e.admin.Get(t.Context(), client.ObjectKeyFromObject(registration), &stored); err != nil {
		t.Fatal(err)
	}
	bundle := stored.Webhooks[0].ClientConfig.CABundle
	if len(bundle) == 0 || string(bundle) != string(secret.Data["ca.crt"]) {
		t.Errorf("the registration trusts %q, the Secret holds %q", bundle, secret.Data["ca.crt"])
	}
	name := gate.ControllerService + "." + gate.Namespace + ".svc"
	if first, second := replicas[0].ask(t, bundle, name), replicas[1].ask(t, bundle, name); !first.Equal(second) {
		t.Errorf("the replicas serve %x and %x", first.SerialNumber, second.SerialNumber)
	}
	for _, r := range replicas {
		r.expectNoSecrets(t, secret.Data["ca.key"], secret.Data[certs.KeyFile])
	}
}

// files: the certificate expires, and nothing is restarted for it.
func (e *environment) files(t *testing.T) {
	dir := t.TempDir()
	good, expired := newPair(t, time.Now()), newPair(t, time.Now().AddDate(-2, 0, 0))
	if err := good.Write(dir); err != nil {
		t.Fatal(err)
	}
	r := e.start(t, "--webhook", "--webhook-cert-source", "files", "--webhook-cert-dir", dir)
	ready := func(want int) func(context.Context) bool {
		return func(ctx context.Context) bool {
			code, body := get(ctx, "http://"+r.health+"/readyz")
			return code == want && (want == http.StatusOK || strings.Contains(body, "[-]certificate failed"))
		}
	}
	if err := expired.Write(dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica not to be ready", ready(http.StatusInternalServerError))
	if code, body := get(t.Context(), "http://"+r.health+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d %s", code, body)
	}
	e.expectGuarded(t, "while-expired")
	if err := good.Write(dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica to be ready again", ready(http.StatusOK))
	r.expectNoSecrets(t, good.Key, expired.Key)
}

// expectNoSecrets looks for the lines of keys in the log.
func (r *replica) expectNoSecrets(t *testing.T, keys ...[]byte) {
	t.Helper()
	for _, key := range keys {
		for line := range strings.Lines(string(key)) {
			if told := strings.TrimSpace(line); strings.Contains(r.log.String(), told) {
				t.Errorf("the log tells a key:\n%s", r.log)
			}
		}
	}
}
