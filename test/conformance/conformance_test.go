package conformance

import (
	stdcmp "cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/cluster"
)

// policyFile holds the default gate's policies; the file that users apply, unless
// a mutant of it is tried.
var policyFile = flag.String("policies", "../../manifests/policy/default.yaml", "the default gate's policies")

func TestConformance(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Conformance")
}

// suite is what all rows share.
var suite struct {
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	ids     *identities
	webhook webhookForm
	entered setting
	nodes   int
	// predating are the Nodes that were stored before the rules were installed, by
	// the row's id. Each is used once by each form of the mutation.
	predating map[string][]*corev1.Node
}

var _ = BeforeSuite(func(ctx context.Context) {
	c, err := cluster.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(c.Stop)
	suite.cluster = c
	suite.ids, err = newIdentities(ctx, c)
	Expect(err).NotTo(HaveOccurred())
	suite.admin = suite.ids.people[cases.Admin]
	_, err = suite.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: elsewhere}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	foreign, err := foreignPolicies()
	Expect(err).NotTo(HaveOccurred())
	Expect(c.Apply(ctx, foreign)).To(Succeed())
	stop, err := startForeignWebhooks(ctx, suite.admin)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(stop)
	DeferCleanup(suite.webhook.stop)
	suite.predating = map[string][]*corev1.Node{}
	for _, tc := range cases.Table() {
		if tc.Predates {
			suite.predating[tc.ID] = []*corev1.Node{store(ctx, &tc), store(ctx, &tc)}
		}
	}
})

// enter installs what the setting says and waits until it is in force.
func enter(ctx context.Context, want setting) {
	GinkgoHelper()
	if suite.entered == want {
		return
	}
	cfg := cases.Config()
	cfg.Mode = want.mode
	if want.tolerating {
		cfg.ToleratedPrefixes = []string{cases.ToleratedPrefix}
	}
	if want.form == byWebhook && suite.webhook.server == nil {
		pausePolicies(ctx)
	}
	objects, err := installed(cfg, want.form)
	Expect(err).NotTo(HaveOccurred())
	Expect(suite.cluster.Apply(ctx, objects)).To(Succeed())
	if want.form == byWebhook {
		Expect(suite.webhook.serve(ctx, suite.cluster.Admin, cfg)).To(Succeed())
	} else {
		Expect(suite.webhook.stop(ctx)).To(Succeed())
	}
	Expect(active(ctx, suite.ids, cfg, want.form)).To(Succeed())
	suite.entered = want
}

// pausePolicies waits until the mutation policies do nothing any more. Else they
// would decide the webhook's first rows.
func pausePolicies(ctx context.Context) {
	GinkgoHelper()
	cfg := cases.Config()
	cfg.Mode = gate.ModePaused
	objects, err := installed(cfg, byPolicy)
	Expect(err).NotTo(HaveOccurred())
	Expect(suite.cluster.Apply(ctx, objects)).To(Succeed())
	Expect(suite.cluster.AwaitPolicies(ctx, cfg)).To(Succeed())
}

// installed are the policies of the configuration. Those of the default gate are
// the ones in the file that users apply; only what depends on the setting is
// rendered. With the webhook, the mutation policies stay and select nothing.
func installed(cfg *gate.Configuration, form form) ([]*unstructured.Unstructured, error) {
	mutating := *cfg
	if form == byWebhook {
		mutating.Mode = gate.ModePaused
	}
	rendered, err := manifests.MutationPolicies(&mutating, manifests.MutationV1)
	if err != nil {
		return nil, err
	}
	validation, err := manifests.ValidationPolicies(cfg)
	if err != nil {
		return nil, err
	}
	rendered = append(rendered, validation...)
	data, err := os.ReadFile(*policyFile)
	if err != nil {
		return nil, err
	}
	file, err := decode(data)
	if err != nil {
		return nil, err
	}
	committed := map[string]*unstructured.Unstructured{}
	for _, object := range file {
		committed[object.GetKind()+"/"+object.GetName()] = object
	}
	writers := manifests.PolicyName(&cfg.Gates[0], "writers")
	for i, object := range rendered {
		setting := strings.HasSuffix(object.GetKind(), "Binding") || (object.GetName() == writers && len(cfg.ToleratedPrefixes) > 0)
		if from, ok := committed[object.GetKind()+"/"+object.GetName()]; ok && !setting {
			rendered[i] = from
		}
	}
	return rendered, nil
}

var _ = Describe("The gate", Ordered, ContinueOnFailure, func() {
	Describe("by policy", func() { rows(byPolicy) })
	Describe("by webhook", func() { rows(byWebhook) })

	It("namespace-deleted: The policies MUST hold while nodegate's namespace is being deleted.", func(ctx context.Context) {
		enter(ctx, setting{form: byPolicy, mode: gate.ModeEnforce})
		Expect(suite.admin.CoreV1().Namespaces().Delete(ctx, gate.Namespace, metav1.DeleteOptions{})).To(Succeed())
		for _, tc := range cases.Table() {
			if tc.ID == "remove-strategic" || tc.ID == "create-kubelet" || tc.ID == "heartbeat-by-editor" {
				runRow(ctx, &tc)
			}
		}
	})
})

func rows(form form) {
	for _, tc := range cases.Table() {
		if form == byWebhook && tc.Clocked != "" {
			tc.Want = tc.Clocked
		}
		It(tc.ID+": "+tc.Must, func(ctx context.Context) {
			enter(ctx, setting{form: form, mode: stdcmp.Or(tc.Mode, gate.ModeEnforce), tolerating: tc.Tolerating})
			for range max(1, tc.Rounds) {
				runRow(ctx, &tc)
			}
		})
	}

	It("remove-again: The taint MUST be put back as often as it is removed, though the first removal takes its setter's stamp away.", func(ctx context.Context) {
		enter(ctx, setting{form: form, mode: gate.ModeEnforce})
		nodes := suite.admin.CoreV1().Nodes()
		node := store(ctx, row("remove-strategic"))
		heartbeat, err := gate.ParseHeartbeat(node.Annotations[gate.HeartbeatPrefix+gate.DefaultName])
		Expect(err).NotTo(HaveOccurred())
		now := time.Now().UTC().Truncate(time.Second)
		suite.webhook.clock.SetTime(now)
		owner := func(manager, fields string, at time.Time) metav1.ManagedFieldsEntry {
			return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
				Time: &metav1.Time{Time: at}, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
		}
		node.ManagedFields = []metav1.ManagedFieldsEntry{
			owner("agent", `{"f:metadata":{"f:annotations":{".":{}}}}`, heartbeat.Time),
			owner("armer", `{"f:spec":{"f:taints":{}}}`, now),
		}
		node, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(gate.LatestStamp(node)).To(Equal(now))
		editor, err := suite.ids.client(ctx, cases.Editor, node.Name)
		Expect(err).NotTo(HaveOccurred())
		for range 3 {
			node, err = editor.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
			Expect(err).NotTo(HaveOccurred())
			Expect(cases.Config().Gates[0].Armed(node)).To(BeTrue())
			Expect(gate.LatestStamp(node)).To(Equal(heartbeat.Time), "the armer's stamp is gone")
		}
	})

	It("foreign-last-word: Where other admission has the last word, the final object MUST be reported, or refused.", func(ctx context.Context) {
		enter(ctx, setting{form: form, mode: gate.ModeEnforce})
		warnings := &warningRecorder{}
		config := rest.CopyConfig(suite.cluster.Admin)
		config.WarningHandlerWithContext = warnings
		nodes := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes()
		cfg := cases.Config()
		node := cases.Blank(newName(), "", time.Now())
		node.ManagedFields = nil
		node.Labels[cases.StripLabel] = stripAgain
		created, err := nodes.Create(ctx, node.DeepCopy(), metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		node.Name, node.Labels[cases.StorageLabel] = newName(), "true"
		second, err := nodes.Create(ctx, node, metav1.CreateOptions{})
		if form == byWebhook {
			// Of two webhooks that are invoked again, the later by name has it: ours.
			Expect(err).NotTo(HaveOccurred())
			Expect(cfg.Gates[0].Armed(created)).To(BeTrue())
			Expect(cfg.Gates[1].Armed(second)).To(BeTrue())
			return
		}
		Expect(cfg.Gates[0].Armed(created)).To(BeFalse())
		Expect(warnings.texts).To(ContainElement(ContainSubstring("was taken away by other admission")))
		Expect(err).To(MatchError(And(ContainSubstring("'final.storage.nodegate.io'"), ContainSubstring("denied request"))))
	})
}

// row is the row of this id.
func row(id string) *cases.Case {
	GinkgoHelper()
	for _, tc := range cases.Table() {
		if tc.ID == id {
			return &tc
		}
	}
	Fail("there is no row " + id)
	return nil
}

// runRow stores what the row stores, sends what it sends, and looks at what came
// of it.
func runRow(ctx context.Context, tc *cases.Case) {
	GinkgoHelper()
	var stored *corev1.Node
	name, now := newName(), time.Now().UTC().Truncate(time.Second)
	if tc.Verb != cases.Create {
		stored = predating(tc)
		if stored == nil {
			stored = store(ctx, tc)
		}
		name = stored.Name
		if stamp := gate.LatestStamp(stored); !stamp.IsZero() {
			now = stamp
		}
	}
	w := tc.Write(stored, name, now)
	if tc.Verb == cases.Create {
		w.New.ManagedFields = nil
	}
	suite.webhook.clock.SetTime(now)
	writer, err := suite.ids.client(ctx, tc.As, name)
	Expect(err).NotTo(HaveOccurred())

	err = send(ctx, writer, tc, stored, w.New)

	if tc.Want == cases.Denied {
		expectDenied(ctx, tc, stored, name, err)
		return
	}
	Expect(err).NotTo(HaveOccurred())
	result, err := suite.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	expectResult(tc, stored, w.New, result)
}

// predating takes the next Node that was stored for the row before the rules were
// installed, if the row wants one.
func predating(tc *cases.Case) *corev1.Node {
	nodes := suite.predating[tc.ID]
	if len(nodes) == 0 {
		return nil
	}
	suite.predating[tc.ID] = nodes[1:]
	return nodes[0]
}

func newName() string {
	suite.nodes++
	return fmt.Sprintf("node-%d", suite.nodes)
}

// store brings a Node into the state of the row. Its latest stamp is the row's
// now: where the second ended meanwhile, it is done again.
func store(ctx context.Context, tc *cases.Case) *corev1.Node {
	GinkgoHelper()
	for range 10 {
		now := time.Now().UTC().Truncate(time.Second)
		node := storeAt(ctx, tc, newName(), now)
		if stamp := gate.LatestStamp(node); stamp.Equal(now) || stamp.IsZero() {
			return node
		}
	}
	Fail("a Node could not be stored within one second, in 10 tries")
	return nil
}

// storeAt does so by the API alone: the Node is created exempt, and gets labels,
// annotations and boot id through the status, where nothing is mutated.
func storeAt(ctx context.Context, tc *cases.Case, name string, now time.Time) *corev1.Node {
	GinkgoHelper()
	nodes := suite.admin.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{gate.ExemptLabel: "true"},
	}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	want := cases.Blank(name, node.UID, now)
	tc.Stored(want, now)

	node.Spec = want.Spec
	if untracked := gate.LatestStamp(want).IsZero(); untracked {
		node.ManagedFields = want.ManagedFields
	}
	node, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())
	node.Labels, node.Annotations, node.Status = want.Labels, want.Annotations, want.Status
	node, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	Expect(err).NotTo(HaveOccurred())

	Expect(cmp.Diff(want.Labels, node.Labels, cmpopts.EquateEmpty())).To(BeEmpty(), "the row's labels could not be stored")
	Expect(cmp.Diff(want.Annotations, node.Annotations, cmpopts.EquateEmpty())).To(BeEmpty(), "the row's annotations could not be stored")
	Expect(cmp.Diff(want.Spec.Taints, node.Spec.Taints, cmpopts.EquateEmpty())).To(BeEmpty(), "the row's taints could not be stored")
	return node
}

func expectDenied(ctx context.Context, tc *cases.Case, stored *corev1.Node, name string, err error) {
	GinkgoHelper()
	Expect(apierrors.IsForbidden(err)).To(BeTrue(), "want the write refused as forbidden, got: %v", err)
	cfg := cases.Config()
	switch {
	case tc.ByKubernetes:
		Expect(err.Error()).To(ContainSubstring("is not allowed to modify taints"))
	default:
		Expect(err.Error()).To(Or(
			ContainSubstring("denied request: "+cfg.Gates[0].Message(tc.Rule)),
			And(Not(BeEmpty()), ContainSubstring("denied request: "+orNothing(cfg.Gates[1].Message(tc.StorageRule)))),
		))
	}
	current, err := suite.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if tc.Verb == cases.Create {
		Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the refused Node is there, or: %v", err)
		return
	}
	Expect(err).NotTo(HaveOccurred())
	Expect(current.ResourceVersion).To(Equal(stored.ResourceVersion), "the refused write changed the Node")
}

// orNothing is the message, or what no error contains.
func orNothing(message string) string {
	if message == "" {
		return "\x00"
	}
	return message
}

func expectResult(tc *cases.Case, stored, sent, result *corev1.Node) {
	GinkgoHelper()
	cfg := cases.Config()
	outcome := []cases.Outcome{tc.Want, tc.Storage}
	base := sent
	if tc.Status {
		base = stored // taints cannot change through the status
	}
	var foreign []corev1.Taint
	for _, t := range result.Spec.Taints {
		if !cfg.Gates[0].IsTaint(t) && !cfg.Gates[1].IsTaint(t) && !byCondition(tc, t) {
			foreign = append(foreign, t)
		}
	}
	wantForeign := cfg.Gates[0].WithoutTaint(cfg.Gates[1].WithoutTaint(base.Spec.Taints))
	Expect(cmp.Diff(wantForeign, foreign, cmpopts.EquateEmpty())).To(BeEmpty(), "foreign taints, -want +got")
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		Expect(g.Armed(result)).To(Equal(outcome[i] == cases.Armed || g.Armed(base)), "gate %q armed; taints: %v", g.Name, result.Spec.Taints)
		if outcome[i] != cases.Armed {
			continue
		}
		Expect(g.Armed(base)).To(BeFalse(), "the row says armed, but sends the taint")
		Expect(valueOf(g, result)).To(Equal(wantValue(g, stored)), "value of the taint of gate %q", g.Name)
		if !tc.Foreign {
			Expect(cfg.Gates[0].IsTaint(last(result)) || cfg.Gates[1].IsTaint(last(result))).To(BeTrue(),
				"the taint is not at the end: %v", result.Spec.Taints)
		}
	}
	Expect(result.Labels).To(Equal(sent.Labels), "the write's other changes")
	Expect(nonNil(result.Annotations)).To(Equal(nonNil(sent.Annotations)), "the write's other changes")
	Expect(result.Spec.Unschedulable).To(Equal(base.Spec.Unschedulable), "the write's other changes")
}

// byCondition: at CREATE Kubernetes itself adds the taint not-ready.
func byCondition(tc *cases.Case, t corev1.Taint) bool {
	return tc.Verb == cases.Create && t.Key == corev1.TaintNodeNotReady
}

func wantValue(g *gate.Gate, stored *corev1.Node) string {
	if stored != nil && g.Armed(stored) {
		return valueOf(g, stored)
	}
	return g.Taint.Value
}

func valueOf(g *gate.Gate, node *corev1.Node) string {
	for _, t := range node.Spec.Taints {
		if g.IsTaint(t) {
			return t.Value
		}
	}
	return ""
}

func last(node *corev1.Node) corev1.Taint { return node.Spec.Taints[len(node.Spec.Taints)-1] }

func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// warningRecorder keeps the warnings that the API server sent.
type warningRecorder struct{ texts []string }

func (w *warningRecorder) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.texts = append(w.texts, text)
}
