package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// checksAnnotation on the agents' pods is a digest of what an agent reads when it
// starts, so that they are rolled when that changes.
const checksAnnotation = gate.Group + "/checks"

// state is what is there before a command changes anything.
type state struct {
	served served
	// config is the text of the configuration that is installed, with what is made of
	// it; empty if none is.
	config string
	parsed *gate.Configuration
	// fault is why nothing is made of it, which another configuration mends.
	fault error
	// installedAt is recorded with it, or empty; retired and added are gates.
	installedAt string
	retired     []gate.Retired
	added       map[string]time.Time
	images      manifests.Images
	// serves is the form for which the controller runs.
	serves manifests.Mutation
	// mutation is the form in which admission arms, empty if it does not. enforcing:
	// something of it selects Nodes.
	mutation  manifests.Mutation
	enforcing bool
	nodes     []corev1.Node
}

// gitVersion is the API server's version, as it says it.
func (o *options) gitVersion() (string, error) {
	discovery, err := o.flags.ToDiscoveryClient()
	if err != nil {
		return "", fmt.Errorf("connecting: %w", err)
	}
	info, err := discovery.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("asking the API server for its version: %w", err)
	}
	return info.GitVersion, nil
}

// serverVersion is the API server's, which is new enough.
func (o *options) serverVersion() (*version.Version, error) {
	text, err := o.gitVersion()
	if err != nil {
		return nil, err
	}
	v, err := version.ParseGeneric(text)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's version: %w", err)
	}
	return v, supported(v)
}

// look reads the state.
func (c *connection) look(ctx context.Context) (state, error) {
	var s state
	s.served = served{v1: c.serves(mutatingPolicy.WithVersion("v1")), v1beta1: c.serves(mutatingPolicy.WithVersion("v1beta1"))}
	for _, read := range []func(context.Context, *connection) error{s.readConfig, s.readImages, s.readAdmission, s.readNodes} {
		if err := read(ctx, c); err != nil {
			return s, err
		}
	}
	return s, nil
}

var mutatingPolicy = schema.GroupKind{Group: admissionregistrationv1.GroupName, Kind: "MutatingAdmissionPolicy"}

func (c *connection) serves(kind schema.GroupVersionKind) bool {
	_, err := c.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	return err == nil
}

func (s *state) readConfig(ctx context.Context, c *connection) error {
	object, err := c.find(ctx, configMap())
	if err != nil || object == nil {
		return err
	}
	noted := object.GetAnnotations()
	s.installedAt, s.retired, s.added = noted[gate.InstalledAtAnnotation], gate.ParseRetired(noted[gate.RetiredAnnotation]), gate.ParseAdded(noted[gate.AddedAnnotation])
	s.config, s.parsed, s.fault = parsed(object)
	return nil
}

func (s *state) readImages(ctx context.Context, c *connection) error {
	deployment, daemonSet := &appsv1.Deployment{}, &appsv1.DaemonSet{}
	for object, read := range map[client.Object]func(){
		deployment: func() {
			s.images.Controller, s.serves = imageOf(deployment.Spec.Template), manifests.MutationOf(&deployment.Spec.Template)
		},
		daemonSet: func() { s.images.Agent = imageOf(daemonSet.Spec.Template) },
	} {
		name := gate.ControllerAccount
		if object == daemonSet {
			name = gate.AgentAccount
		}
		err := c.Get(ctx, client.ObjectKey{Namespace: gate.Namespace, Name: name}, object)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return fmt.Errorf("reading what runs: %w", err)
		}
		read()
	}
	return nil
}

func imageOf(template corev1.PodTemplateSpec) string {
	if len(template.Spec.Containers) == 0 {
		return ""
	}
	return template.Spec.Containers[0].Image
}

func (s *state) readAdmission(ctx context.Context, c *connection) error {
	objects, err := installed(ctx, c, "ValidatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration")
	if err != nil {
		return err
	}
	for _, object := range objects {
		form := manifests.ByPolicy
		switch object.GetKind() {
		case "ValidatingAdmissionPolicy":
			if name, key := manifests.GateOf(object); key != "" {
				s.retired = append(s.retired, gate.Retired{Name: name, TaintKey: key}) // unless it is configured
			}
			continue
		case "MutatingWebhookConfiguration":
			form = manifests.ByWebhook
			if object.GetAnnotations()[certmanagerv1.WantInjectAnnotation] != "" {
				form = manifests.ByWebhookWithCertManager
			}
		}
		if s.mutation == "" || form == s.serves { // of two, the one that was chosen
			s.mutation = form
		}
		enforced, follows, err := manifests.ModeOf(object)
		if err != nil {
			return explain(err, object)
		}
		s.enforcing = s.enforcing || enforced && follows
	}
	return nil
}

func (s *state) readNodes(ctx context.Context, c *connection) error {
	err := eachOf(ctx, c, &corev1.NodeList{}, client.ListOptions{}, func(object runtime.Object) {
		s.nodes = append(s.nodes, *trimNode(object.(*corev1.Node)))
	})
	return explain(err, newObject(nodeKind, "", "(list)"))
}

// plan is what a cluster is to be.
type plan struct {
	options manifests.Options
	cfg     *gate.Configuration
	mode    gate.Mode
	// why says where the mode comes from, if that needs to be said.
	why         string
	installedAt string
	// added and retired are gates: when those that came later did, and which were once.
	added   map[string]time.Time
	retired []gate.Retired
}

// decide works out what is to be from what is there and what is wanted. now is the
// API server's time. given is the text of the configuration that was named, if any.
func decide(s state, w wanted, mode gate.Mode, given string, now time.Time) (plan, error) {
	text := cmp.Or(given, s.config)
	if given == "" && s.fault != nil {
		return plan{}, s.fault
	}
	if text == "" {
		return plan{}, errors.New("there is no configuration in the cluster: name a file by --config, or a ready one by --profile; " +
			"`kubectl nodegate render --only config` shows an example")
	}
	p := plan{installedAt: cmp.Or(s.installedAt, now.UTC().Format(gate.TimeLayout))}
	var err error
	if p.cfg, err = gate.ParseConfiguration([]byte(text)); err != nil {
		return plan{}, err
	}
	p.mode, p.why = startingMode(s, p.cfg, mode)
	if p.options.Config, err = setMode(text, p.mode); err != nil {
		return plan{}, fmt.Errorf("the mode is to be %s, and cannot be changed in the configuration's text; set it there by hand: %w", p.mode, err)
	}
	p.cfg.Mode = p.mode
	p.added, p.retired = added(s.added, s.parsed, p.cfg, now), retire(s.retired, s.parsed, p.cfg)
	p.options.Mutation, p.options.Version, err = s.served.choose(cmp.Or(w.mutation, string(s.mutation)))
	p.options.Images = manifests.Images{
		Controller: image(manifests.ImagesAt(w.registry, cmp.Or(w.tag, "dev")).Controller, s.images.Controller, w),
		Agent:      image(manifests.ImagesAt(w.registry, cmp.Or(w.tag, "dev")).Agent, s.images.Agent, w),
	}
	return p, err
}

// startingMode is the mode that was told, or the one that is installed. A cluster
// that has Nodes begins by observing, for nobody knows yet what would be closed.
func startingMode(s state, cfg *gate.Configuration, told gate.Mode) (mode gate.Mode, why string) {
	switch {
	case told != "":
		return told, ""
	case s.parsed != nil && s.parsed.Mode != cfg.Mode:
		return s.parsed.Mode, fmt.Sprintf("The file says mode %s, but what is installed is in mode %s, which stays; --mode changes it.", cfg.Mode, s.parsed.Mode)
	case s.parsed != nil:
		return s.parsed.Mode, ""
	case s.enforcing && cfg.Mode == gate.ModeEnforce:
		return cfg.Mode, ""
	case s.enforcing:
		return gate.ModeEnforce, fmt.Sprintf("The file says mode %s, but what admits enforces, which stays; --mode changes it.", cfg.Mode)
	case cfg.Mode == gate.ModeEnforce && governed(cfg, s.nodes) > 0:
		return gate.ModeObserve, fmt.Sprintf("The cluster has %d Nodes that are to be governed, so this begins in mode observe, in which no Node is changed. "+
			"`kubectl nodegate resume` enforces, and so does --mode=enforce.", governed(cfg, s.nodes))
	}
	return cfg.Mode, ""
}

// governed counts the Nodes that a gate governs.
func governed(cfg *gate.Configuration, nodes []corev1.Node) int {
	count := 0
	for i := range nodes {
		for j := range cfg.Gates {
			if cfg.Gates[j].Governs(&nodes[i]) {
				count++
				break
			}
		}
	}
	return count
}

// image is the one that is wanted, as far as that was said, and otherwise the one
// that is installed.
func image(wantedImage, installed string, w wanted) string {
	if installed == "" || w.registry != "" && w.tag != "" {
		return wantedImage
	}
	dir, name := path.Split(installed)
	name, _, _ = strings.Cut(name, "@")
	name, tag, _ := strings.Cut(name, ":")
	switch {
	case w.registry != "":
		return path.Join(w.registry, name) + ":" + cmp.Or(tag, "latest")
	case w.tag != "":
		return dir + name + ":" + w.tag
	}
	return installed
}

// notes are what an installation records of itself.
func (p plan) notes() map[string]string {
	notes := map[string]string{gate.InstalledAtAnnotation: p.installedAt}
	if len(p.added) > 0 {
		notes[gate.AddedAnnotation] = gate.FormatAdded(p.added)
	}
	if len(p.retired) > 0 {
		notes[gate.RetiredAnnotation] = gate.FormatRetired(p.retired)
	}
	return notes
}

// objects renders the plan in a mode, with what only a cluster's installation has. By
// their rules nodegate's agent may write for the gates that are named, besides those
// that are configured.
func (p plan) objects(mode gate.Mode, retired ...gate.Retired) ([]*unstructured.Unstructured, error) {
	options := p.options
	options.Retired = retired
	var err error
	if options.Config, err = setMode(options.Config, mode); err != nil {
		return nil, err
	}
	objects, err := manifests.Install(options)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "ConfigMap":
			object.SetAnnotations(p.notes())
		case "DaemonSet":
			err = unstructured.SetNestedField(object.Object, checksDigest(options.Config), "spec", "template", "metadata", "annotations", checksAnnotation)
		}
		if err != nil {
			return nil, err
		}
	}
	createLast(objects)
	return objects, nil
}

// checksDigest is of what an agent does not read anew: its plugin's entry, and all of
// its gates but the switches of conflist checks.
func checksDigest(text string) string {
	cfg, err := gate.ParseConfiguration([]byte(text))
	if err != nil {
		return "" // it has been parsed before
	}
	for i := range cfg.Gates {
		for j := range cfg.Gates[i].Checks {
			if c := cfg.Gates[i].Checks[j].Conflist; c != nil {
				c.Disabled = false
			}
		}
	}
	data, err := json.Marshal([]any{cfg.CNI, cfg.Gates})
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))[:16]
}
