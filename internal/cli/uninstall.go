package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/remnant"
	"github.com/nodegate/nodegate/manifests"
)

// errRemains is returned where something is left, and was said.
var errRemains = errors.New("not everything could be removed; what remains, and how to remove it, is said above. Run this again when that is mended")

type uninstallOptions struct {
	*options
	wanted
	yes     bool
	keep    bool
	dryRun  string
	timeout time.Duration
}

func newUninstallCommand(o *options) *cobra.Command {
	u := &uninstallOptions{options: o}
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove nodegate from the cluster, and every trace of it from its Nodes",
		Long: `Remove nodegate from the cluster, and every trace of it from its Nodes.

First goes what arms in admission, for it would put taints back; then the controller.
Then the agents take the gates' plugins out of the nodes' CNI lists and go; with
--keep-conflist only nodegate-cni is taken out, under which no pod could start without
an agent. Then the gates' taints, heartbeats and bypasses are removed from all Nodes, and
at last rights, policies and the namespace. Events stay until they expire.

It works in whatever state the installation is, and can be run again. The gates are
those of the configuration in the cluster, now or formerly, or of the policies that are
left; where neither is there, name the configuration by --config. What could not be
removed is listed, with the command that does it.`,
		Example: "  kubectl nodegate uninstall --yes",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if u.dryRun != "none" && u.dryRun != dryRunServer {
				return fmt.Errorf(`--dry-run is %q, it must be "none" or %q`, u.dryRun, dryRunServer)
			}
			return u.run(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringVar(&u.config, "config", "", "configuration `file`, - for standard input (default: what is installed)")
	flags.BoolVar(&u.keep, "keep-conflist", false, "leave the plugins in the nodes' CNI lists, except nodegate-cni")
	flags.StringVar(&u.dryRun, "dry-run", "none", `"server" prints what would be removed, and changes nothing; or "none"`)
	flags.BoolVarP(&u.yes, "yes", "y", false, "do not ask")
	flags.DurationVar(&u.timeout, "timeout", 5*time.Minute, "how long to wait for each part to be gone")
	return command
}

// removal is an uninstallation that is under way.
type removal struct {
	*uninstallOptions
	c     *connection
	cfg   *gate.Configuration // nil where nobody knows it
	nodes []corev1.Node
	image string
	// known are all gates, as far as anything tells: none is to be there any more.
	known remnant.Known
	// silent are the nodes whose kubelets do not answer: what they would have to do is
	// not waited for.
	silent map[string]bool
	// remains says what is left, and what to do.
	remains []string
}

func (o *uninstallOptions) run(ctx context.Context) error {
	given, err := o.configuration(o.In)
	if err != nil {
		return err
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	if _, err := o.serverVersion(); err != nil {
		return err
	}
	if err := o.may(ctx, c, "uninstall"); err != nil {
		return err
	}
	r := &removal{uninstallOptions: o, c: c}
	if err := r.look(ctx, given); err != nil {
		return err
	}
	if err := r.agreed(ctx); err != nil || o.dryRun == dryRunServer {
		return err
	}
	if len(r.silent) > 0 {
		o.sayf("Nodes whose kubelets do not answer are not waited for: %s", few(sortedNames(r.silent)))
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"what arms in admission", r.admission},
		{"the controller", r.controller},
		{"the plugins in the nodes' CNI lists", r.unchain},
		{"the agents", r.agents},
		{"the gates' traces on Nodes", r.clean},
		{"rights, policies and namespace", r.rest},
		{"what was written meanwhile", r.clean},
	} {
		o.sayf("Removing %s ...", step.name)
		if err := r.persist(ctx, step.do); err != nil {
			return fmt.Errorf("removing %s: %w\nRun this again; what was removed before stays removed", step.name, err)
		}
	}
	if err := r.verify(ctx); err != nil {
		return err
	}
	for _, line := range r.remains {
		o.sayf("Remains: %s", line)
	}
	if len(r.remains) > 0 {
		return errRemains
	}
	o.didf("nodegate is uninstalled; nothing of it is left")
	return nil
}

// look finds out which gates there are, as far as anything in the cluster tells.
func (r *removal) look(ctx context.Context, given string) error {
	var s state
	object, err := r.c.find(ctx, configMap())
	if err != nil {
		return err
	}
	if object != nil {
		// One that cannot be read is no reason to keep the rest.
		_, r.cfg, _ = parsed(object)
	}
	if err := s.readImages(ctx, r.c); err != nil {
		return err
	}
	if err := s.readNodes(ctx, r.c); err != nil {
		return err
	}
	r.nodes, r.image = s.nodes, s.images.Agent
	r.silent = silent(s.nodes)
	gates := []gate.Retired{{Name: gate.DefaultName, TaintKey: gate.DefaultTaintKey}}
	if object != nil {
		gates = append(gates, gate.ParseRetired(object.GetAnnotations()[gate.RetiredAnnotation])...)
	}
	if given != "" {
		if r.cfg, err = gate.ParseConfiguration([]byte(given)); err != nil {
			return err
		}
	}
	if r.cfg != nil {
		for i := range r.cfg.Gates {
			gates = append(gates, gate.Retired{Name: r.cfg.Gates[i].Name, TaintKey: r.cfg.Gates[i].Taint.Key})
		}
	}
	policies, err := r.c.ours(ctx, admissionKind("ValidatingAdmissionPolicy"))
	if err != nil {
		return err
	}
	for _, policy := range policies {
		if name, key := manifests.GateOf(policy); key != "" {
			gates = append(gates, gate.Retired{Name: name, TaintKey: key})
		}
	}
	r.known = remnant.Known{Config: &gate.Configuration{}, Retired: gates}
	return nil
}

// keys are those of the gates' taints.
func (r *removal) keys() []string {
	set := map[string]bool{}
	for _, g := range r.known.Retired {
		set[g.TaintKey] = true
	}
	return sortedNames(set)
}

// silent are the nodes of which the control plane says so.
func silent(nodes []corev1.Node) map[string]bool {
	found := map[string]bool{}
	for i := range nodes {
		if slices.ContainsFunc(nodes[i].Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable }) {
			found[nodes[i].Name] = true
		}
	}
	return found
}

// agreed shows what is to be removed, and asks.
func (r *removal) agreed(ctx context.Context) error {
	if r.cfg == nil {
		r.sayf("There is no configuration in the cluster that can be read. Taints are known of: %s; for others, name the configuration by --config.", strings.Join(r.keys(), ", "))
	}
	if r.yes && r.dryRun != dryRunServer {
		return nil
	}
	objects, err := r.c.allOurs(ctx)
	if err != nil {
		return err
	}
	var marked []string
	for i := range r.nodes {
		if !r.traces(&r.nodes[i], false).None() {
			marked = append(marked, r.nodes[i].Name)
		}
	}
	if r.dryRun == dryRunServer {
		for _, object := range objects {
			r.didf("%s removed (server dry run)", describe(object))
		}
		for _, name := range marked {
			r.didf("Node %s cleaned (server dry run)", name)
		}
		return nil
	}
	fmt.Fprintf(r.ErrOut, "This removes %d objects of nodegate, among them the namespace %s with all that is in it, and cleans %d Nodes of %s. Go on? (y/N): ",
		len(objects), gate.Namespace, len(marked), r.c.config.Host)
	answer, err := bufio.NewReader(r.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was removed: that was no yes; --yes says it for scripts")
	}
	return nil
}

// persist does a step again for as long as the API server does not answer.
func (r *removal) persist(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*r.timeout)
	defer cancel()
	said := false
	for {
		err := do(ctx)
		if err == nil || !passing(err) || ctx.Err() != nil {
			return err
		}
		if !said {
			r.sayf("The API server does not answer, this is tried again: %v", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// passing reports whether an error is of the kind that goes by, as when an API server
// starts again.
func passing(err error) bool {
	return net.IsConnectionRefused(err) || net.IsConnectionReset(err) || net.IsProbableEOF(err) || net.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err)
}

func admissionKind(kind string) []schema.GroupVersionKind {
	group := admissionregistrationv1.GroupName
	return []schema.GroupVersionKind{{Group: group, Version: "v1", Kind: kind}, {Group: group, Version: "v1beta1", Kind: kind}}
}

// armingKinds are what changes Nodes.
func armingKinds() [][]schema.GroupVersionKind {
	return [][]schema.GroupVersionKind{
		admissionKind("MutatingWebhookConfiguration"), admissionKind("MutatingAdmissionPolicyBinding"), admissionKind("MutatingAdmissionPolicy"),
	}
}

// otherKinds are the rest of what is outside of the namespace. Bindings of roles come
// first: an account without rights does nothing more.
func otherKinds() [][]schema.GroupVersionKind {
	rbac := func(kind string) []schema.GroupVersionKind {
		return []schema.GroupVersionKind{rbacv1.SchemeGroupVersion.WithKind(kind)}
	}
	return [][]schema.GroupVersionKind{
		rbac("ClusterRoleBinding"), rbac("RoleBinding"),
		admissionKind("ValidatingAdmissionPolicyBinding"), admissionKind("ValidatingAdmissionPolicy"),
		{flowcontrolv1.SchemeGroupVersion.WithKind("FlowSchema")},
		rbac("ClusterRole"), rbac("Role"),
	}
}

func namespace() *unstructured.Unstructured {
	return newObject(corev1.SchemeGroupVersion.WithKind("Namespace"), "", gate.Namespace)
}

// allOurs lists what is outside of the namespace, and the namespace.
func (c *connection) allOurs(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, kinds := range slices.Concat(armingKinds(), otherKinds()) {
		found, err := c.ours(ctx, kinds)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	found, err := c.find(ctx, namespace())
	if err == nil && found != nil {
		all = append(all, found)
	}
	return all, err
}

// remove removes an object; one that is gone is no mistake.
func (o *options) remove(ctx context.Context, c *connection, object *unstructured.Unstructured) error {
	err := c.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) || isNotServed(err) {
		return nil
	}
	if err == nil {
		o.didf("%s removed", describe(object))
	}
	return explain(err, object)
}

// removeOurs removes what of the kinds is nodegate's, those that choose says.
func (r *removal) removeOurs(ctx context.Context, kinds [][]schema.GroupVersionKind, choose func(*unstructured.Unstructured) bool) error {
	for _, versions := range kinds {
		objects, err := r.c.ours(ctx, versions)
		if err != nil {
			return err
		}
		createLast(objects) // which is what is asked about, to see that all is gone
		for _, object := range objects {
			if !choose(object) {
				continue
			}
			if err := r.remove(ctx, r.c, object); err != nil {
				return err
			}
		}
	}
	return nil
}

// admission removes what arms, and what may refuse a Node for not being armed. The
// rules on who may write what stay for as long as an agent's account has its rights.
func (r *removal) admission(ctx context.Context) error {
	all := func(*unstructured.Unstructured) bool { return true }
	if err := r.removeOurs(ctx, armingKinds(), all); err != nil {
		return err
	}
	final := func(object *unstructured.Unstructured) bool { return strings.HasPrefix(object.GetName(), "final.") }
	if err := r.removeOurs(ctx, [][]schema.GroupVersionKind{admissionKind("ValidatingAdmissionPolicyBinding")}, final); err != nil {
		return err
	}
	if r.cfg == nil {
		return nil
	}
	m := &modeOptions{options: r.options, mode: gate.ModePaused, timeout: r.timeout}
	r.wait(ctx, m.admissionSeen(r.c, r.cfg))
	return nil
}

// wait waits for something to be gone, and goes on when it is not.
func (r *removal) wait(ctx context.Context, seen func(context.Context) (bool, error)) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := poll(ctx, r.telling(seen)); err != nil {
		r.sayf("It was not seen: %v", err)
	}
}

// controller goes before the agents: a guard would close Nodes for their absence.
func (r *removal) controller(ctx context.Context) error {
	if err := r.remove(ctx, r.c, newObject(appsv1.SchemeGroupVersion.WithKind("Deployment"), gate.Namespace, gate.ControllerAccount)); err != nil {
		return err
	}
	r.wait(ctx, r.noPods(gate.ControllerAccount))
	return nil
}

func (r *removal) agents(ctx context.Context) error {
	if err := r.remove(ctx, r.c, agentDaemonSet()); err != nil {
		return err
	}
	r.wait(ctx, r.noPods(gate.AgentLabelValue))
	return nil
}

func agentDaemonSet() *unstructured.Unstructured {
	return newObject(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), gate.Namespace, gate.AgentAccount)
}

// noPods sees that the pods of a program are gone.
func (r *removal) noPods(name string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := r.c.List(ctx, &pods, client.InNamespace(gate.Namespace), client.MatchingLabels{gate.AgentLabel: name}); err != nil {
			return false, err
		}
		where := r.waitingFor(pods.Items)
		if len(where) == 0 {
			return true, nil
		}
		return false, fmt.Errorf("pods are still there: %s", few(where))
	}
}

// waitingFor are those of the pods that a kubelet will end.
func (r *removal) waitingFor(pods []corev1.Pod) []string {
	var where []string
	for i := range pods {
		if node := pods[i].Spec.NodeName; !r.silent[node] {
			where = append(where, pods[i].Name+" on "+node)
		}
	}
	return where
}

// rest removes everything else.
func (r *removal) rest(ctx context.Context) error {
	all := func(*unstructured.Unstructured) bool { return true }
	if err := r.removeOurs(ctx, otherKinds(), all); err != nil {
		return err
	}
	if err := r.remove(ctx, r.c, namespace()); err != nil {
		return err
	}
	r.wait(ctx, func(ctx context.Context) (bool, error) {
		found, err := r.c.find(ctx, namespace())
		if err != nil || found == nil {
			return err == nil, err
		}
		var pods corev1.PodList
		if err := r.c.List(ctx, &pods, client.InNamespace(gate.Namespace)); err != nil {
			return false, err
		}
		if len(pods.Items) > 0 && len(r.waitingFor(pods.Items)) == 0 {
			return true, nil // they hold it up for as long as their nodes are off
		}
		return false, fmt.Errorf("namespace %s is still there%s", gate.Namespace, namespaceTrouble(found))
	})
	return nil
}

// namespaceTrouble is why a namespace does not go.
func namespaceTrouble(object *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, ok := condition.(map[string]any)
		if ok && fields["status"] == "True" {
			return fmt.Sprintf(": %v", fields["message"])
		}
	}
	return ""
}

// verify looks whether anything is left.
func (r *removal) verify(ctx context.Context) error {
	var objects []*unstructured.Unstructured
	err := r.persist(ctx, func(ctx context.Context) (err error) {
		objects, err = r.c.allOurs(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetKind() == "Namespace" && object.GetDeletionTimestamp() != nil {
			if err := r.ending(ctx, object); err != nil {
				return err
			}
			continue
		}
		in := ""
		if object.GetNamespace() != "" {
			in = " -n " + object.GetNamespace()
		}
		r.remains = append(r.remains, fmt.Sprintf("%s; kubectl delete%s %s %s", describe(object), in, strings.ToLower(object.GetKind()), object.GetName()))
	}
	for _, g := range r.foreign() {
		r.sayf("The agent of gate %q is %s/%s, which goes on writing its heartbeat until its own configuration says otherwise.",
			g.Name, g.Agent.Namespace, g.Agent.ServiceAccount)
	}
	return r.verifyNodes(ctx)
}

// ending says what holds up the namespace that was deleted: pods on nodes that are off,
// mostly.
func (r *removal) ending(ctx context.Context, object *unstructured.Unstructured) error {
	var pods corev1.PodList
	err := r.persist(ctx, func(ctx context.Context) error { return r.c.List(ctx, &pods, client.InNamespace(gate.Namespace)) })
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		r.remains = append(r.remains, fmt.Sprintf("Pod %s/%s, which the kubelet of node %s does not end; if that node is off for good: kubectl delete -n %s pod %s --force",
			pod.Namespace, pod.Name, pod.Spec.NodeName, pod.Namespace, pod.Name))
	}
	why := namespaceTrouble(object)
	if len(pods.Items) > 0 {
		why = ", until these pods are gone"
	}
	r.remains = append(r.remains, fmt.Sprintf("%s, which is being deleted%s; see kubectl describe namespace %s", describe(object), why, object.GetName()))
	return nil
}

// foreign are the gates that others' agents open.
func (r *removal) foreign() []*gate.Gate {
	var gates []*gate.Gate
	for i := 0; r.cfg != nil && i < len(r.cfg.Gates); i++ {
		if g := &r.cfg.Gates[i]; !g.Agent.Own() {
			gates = append(gates, g)
		}
	}
	return gates
}
