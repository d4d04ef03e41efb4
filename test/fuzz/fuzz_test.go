package fuzz

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/gen"
	"github.com/nodegate/nodegate/test/webhookserver"
)

var (
	writes = flag.Int("writes", 400, "how many writes to send, by each form of the mutation")
	seed   = flag.Int("seed", 1, "the first write's; the others' follow")
)

// Groups whose members have a verb on every gate.
const (
	administrators = "fuzz:administrators"
	bypassers      = "fuzz:bypassers"
)

// TestAdmission_ByPolicy and its sibling send the same stream.
func TestAdmission_ByPolicy(t *testing.T) {
	f := newFuzzer(t)
	if err := f.cluster.InstallPolicies(t.Context(), f.cfg); err != nil {
		t.Fatal(err)
	}
	f.run(t, func(g *gate.Gate, w *gate.Write) time.Time { return g.LatestTime(w.Old, w.New) })
}

func TestAdmission_ByWebhook(t *testing.T) {
	f := newFuzzer(t)
	policies, err := manifests.ValidationPolicies(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cluster.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	frozen := clocktesting.NewFakePassiveClock(gen.Now)
	server, err := webhookserver.Start(t.Context(), func() *gate.Configuration { return f.cfg }, f.cluster.Admin, frozen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := f.cluster.AwaitPolicies(t.Context(), f.cfg); err != nil {
		t.Fatal(err)
	}
	f.run(t, func(*gate.Gate, *gate.Write) time.Time { return gen.Now })
}

// fuzzer sends writes and compares.
type fuzzer struct {
	cfg      *gate.Configuration
	cluster  *cluster.Cluster
	admin    kubernetes.Interface
	recorder *recorder
	clients  map[string]kubernetes.Interface
	// outcomes counts what became of the writes.
	outcomes map[string]int
}

func newFuzzer(t *testing.T) *fuzzer {
	t.Helper()
	c := cluster.ForTest(t)
	f := &fuzzer{cfg: cases.Config(), cluster: c, clients: map[string]kubernetes.Interface{}, outcomes: map[string]int{}}
	var err error
	if f.admin, err = kubernetes.NewForConfig(c.Admin); err != nil {
		t.Fatal(err)
	}
	f.grant(t)
	if f.recorder, err = startRecorder(t.Context(), f.admin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.recorder.server.Close)
	return f
}

// grant lets everybody write Nodes, so that what is refused is refused by
// admission.
func (f *fuzzer) grant(t *testing.T) {
	t.Helper()
	group := func(name string) rbacv1.Subject {
		return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
	}
	gates := func(verb string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{gate.Group}, Resources: []string{gate.ResourceGates}, Verbs: []string{verb}}
	}
	for name, grant := range map[string]struct {
		rule    rbacv1.PolicyRule
		subject rbacv1.Subject
	}{
		"fuzz-nodes": {rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"},
			Verbs: []string{"get", "create", "update"}}, group("system:authenticated")},
		"fuzz-administer": {gates(gate.VerbAdminister), group(administrators)},
		"fuzz-bypass":     {gates(gate.VerbBypass), group(bypassers)},
	} {
		meta := metav1.ObjectMeta{Name: name}
		_, err := f.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{grant.rule}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{grant.subject},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// clock is the judge's for a gate and a write.
type clock func(*gate.Gate, *gate.Write) time.Time

// run sends the stream; now is the judge's clock for a write as admission saw it.
func (f *fuzzer) run(t *testing.T, now clock) {
	generator := gen.Write(f.cfg)
	for i := range *writes {
		w := generator.Example(*seed + i)
		if w.User.Username == "" {
			w.User.Username = "nameless" // nobody without a name can be impersonated
		}
		w.User.Groups = append(slices.Clone(w.User.Groups), [][]string{
			{"system:authenticated"}, {administrators}, {administrators, bypassers},
		}[i%3]...)
		if problem := f.try(t, w, now); problem != "" {
			t.Errorf("write of seed %d: %s\n%s", *seed+i, problem, describe(w))
		}
		if t.Context().Err() != nil {
			return
		}
	}
	t.Logf("%d writes: %v", *writes, f.outcomes)
	for _, outcome := range []string{"armed", "untouched", "denied"} {
		if f.outcomes[outcome] == 0 {
			t.Errorf("no write was %s: the stream shows nothing", outcome)
		}
	}
	f.expectNoErrors(t)
}

// try sends one write and returns what is wrong with what became of it.
func (f *fuzzer) try(t *testing.T, w gate.Write, now clock) string {
	t.Helper()
	client := f.client(t, w.User)
	err := f.send(t, client, w)
	saw, recordErr := f.recorder.take()
	switch {
	case recordErr != nil:
		return recordErr.Error()
	case saw == nil && refusedByKubernetes(err):
		f.outcomes["refused by Kubernetes"]++
		return ""
	case saw == nil:
		return fmt.Sprintf("it never came through the mutation: %v", err)
	}
	armed, problem := f.compareTaints(w, saw, now)
	if problem != "" {
		return problem
	}
	return f.compareAnswer(w, saw, armed, err)
}

// send stores the old Node and sends the new one as a dry run.
func (f *fuzzer) send(t *testing.T, client kubernetes.Interface, w gate.Write) error {
	t.Helper()
	sent, nodes := w.New.DeepCopy(), client.CoreV1().Nodes()
	dryRun := []string{metav1.DryRunAll}
	if w.Operation == admissionv1.Create {
		sent.Name += "-new"
		_, err := nodes.Create(t.Context(), sent, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	// Without a UID the API server takes a stored object for none.
	if w.Old.UID == "" {
		w.Old.UID = "a-uid"
	}
	if err := f.cluster.PutNode(t.Context(), w.Old); err != nil {
		t.Fatal(err)
	}
	// Another UID is a conflict, and the CIDR cannot change: Kubernetes refuses both.
	if sent.UID != "" {
		sent.UID = w.Old.UID
	}
	sent.Spec.PodCIDR = w.Old.Spec.PodCIDR
	var err error
	if w.Subresource == "status" {
		_, err = nodes.UpdateStatus(t.Context(), sent, metav1.UpdateOptions{DryRun: dryRun})
	} else {
		_, err = nodes.Update(t.Context(), sent, metav1.UpdateOptions{DryRun: dryRun})
	}
	return err
}

// compareTaints holds what the mutation made of the Node against the functions.
// It leaves in saw the Node with the taints that were sent.
func (f *fuzzer) compareTaints(w gate.Write, saw *gate.Write, now clock) (armed bool, problem string) {
	mutated := saw.New.Spec.Taints
	if saw.Subresource == "" {
		saw.New.Spec.Taints = w.New.Spec.Taints
	}
	want := saw.New.DeepCopy()
	for i := range f.cfg.Gates {
		g := &f.cfg.Gates[i]
		decision := g.Admit(*saw, now(g, saw))
		want.Spec.Taints = g.Apply(decision, want.Spec.Taints)
		armed = armed || decision.Arm
	}
	saw.New.Spec.Taints = mutated
	for i := range f.cfg.Gates {
		g := &f.cfg.Gates[i]
		got := &corev1.Node{Spec: corev1.NodeSpec{Taints: mutated}}
		if g.Armed(want) != g.Armed(got) || value(g, want.Spec.Taints) != value(g, mutated) {
			return armed, fmt.Sprintf("gate %q: taints %v, want %v", g.Name, mutated, want.Spec.Taints)
		}
	}
	return armed, ""
}

// compareAnswer holds the API server's answer against the functions.
func (f *fuzzer) compareAnswer(w gate.Write, saw *gate.Write, armed bool, err error) string {
	var messages []string
	restore(saw)
	for i := range f.cfg.Gates {
		if rule := f.cfg.Permit(i, *saw, func(verb string) bool { return granted(w.User, verb) }); rule != "" {
			messages = append(messages, f.cfg.Gates[i].Message(rule))
		}
		if f.finallyRefused(&f.cfg.Gates[i], saw) {
			messages = append(messages, f.cfg.Gates[i].FinalMessage())
		}
	}
	switch {
	case apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err):
		f.outcomes["invalid"]++
		if strings.Contains(err.Error(), "AdmissionPolicy") {
			return fmt.Sprintf("a policy raised an error: %v", err)
		}
	case err == nil && len(messages) > 0:
		return fmt.Sprintf("allowed, must be refused: %s", messages)
	case err == nil && armed:
		f.outcomes["armed"]++
	case err == nil:
		f.outcomes["untouched"]++
	case !slices.ContainsFunc(messages, func(m string) bool { return strings.HasSuffix(err.Error(), "denied request: "+m) }):
		return fmt.Sprintf("refused for another reason than %q: %v", messages, err)
	default:
		f.outcomes["denied"]++
	}
	return ""
}

// finallyRefused: the policy on the final object has no clock but the stamps, and
// may refuse what the webhook, which has one, has let pass.
func (f *fuzzer) finallyRefused(g *gate.Gate, saw *gate.Write) bool {
	return g.FinalObject == gate.FinalObjectDeny && g.Admit(*saw, g.LatestTime(saw.Old, saw.New)).Arm
}

// restore does what the API server does between mutation and validation: an update
// cannot change a Node's identity, and one of the status nothing of the spec.
func restore(w *gate.Write) {
	if w.Old == nil {
		return
	}
	w.New.UID, w.New.CreationTimestamp = w.Old.UID, w.Old.CreationTimestamp
	if w.Subresource == "status" {
		w.New.Spec = w.Old.Spec
	}
}

// refusedByKubernetes: NodeRestriction comes before every policy, and confines
// kubelets.
func refusedByKubernetes(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "is not allowed to") && !strings.Contains(err.Error(), "AdmissionPolicy")
}

func granted(u authenticationv1.UserInfo, verb string) bool {
	return verb == gate.VerbAdminister && slices.Contains(u.Groups, administrators) ||
		verb == gate.VerbBypass && slices.Contains(u.Groups, bypassers)
}

func value(g *gate.Gate, taints []corev1.Taint) string {
	for _, t := range taints {
		if g.IsTaint(t) {
			return t.Value
		}
	}
	return ""
}

// client impersonates the caller.
func (f *fuzzer) client(t *testing.T, u authenticationv1.UserInfo) kubernetes.Interface {
	t.Helper()
	key := fmt.Sprint(u)
	if client, ok := f.clients[key]; ok {
		return client
	}
	config := rest.CopyConfig(f.cluster.Admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: u.Username, Groups: u.Groups, Extra: map[string][]string{}}
	for name, values := range u.Extra {
		config.Impersonate.Extra[name] = values
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f.clients[key] = client
	return client
}

// checks counts the API server's evaluations of policies. A plain refusal of a
// validation is an invalid_error to it; what is an error otherwise, the answer to
// the write has shown.
var checks = regexp.MustCompile(`(?m)^apiserver_(mutating|validating)_admission_policy_check_total\{.*error_type="([a-z_]*)".*\} \d+`)

// expectNoErrors reads the API server's own counters.
func (f *fuzzer) expectNoErrors(t *testing.T) {
	t.Helper()
	metrics, err := f.admin.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := checks.FindAllStringSubmatch(string(metrics), -1)
	if len(found) == 0 {
		t.Error("the API server counts no evaluation of a policy")
	}
	for _, match := range found {
		plain := match[1] == "validating" && match[2] == "invalid_error"
		if !plain && !strings.HasPrefix(match[2], "no_error") {
			t.Errorf("the API server counts errors: %s", match[0])
		}
	}
}

func describe(w gate.Write) string {
	text := fmt.Sprintf("%s %q by %+v\nsent:   %+v %+v\n        %+v", w.Operation, w.Subresource, w.User, w.New.ObjectMeta, w.New.Spec, w.New.Status.NodeInfo)
	if w.Old != nil {
		text += fmt.Sprintf("\nstored: %+v %+v\n        %+v", w.Old.ObjectMeta, w.Old.Spec, w.Old.Status.NodeInfo)
	}
	return text[:min(len(text), 1500)]
}
