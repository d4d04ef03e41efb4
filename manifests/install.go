package manifests

import (
	"cmp"
	_ "embed" // the example of a configuration
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

// Mutation is the form in which admission arms. A cluster installs one.
type Mutation string

const (
	// ByPolicy is for clusters that serve MutatingAdmissionPolicy.
	ByPolicy Mutation = "policy"
	// ByWebhook has the controller serve the mutation and make its certificate.
	ByWebhook Mutation = "webhook"
	// ByWebhookWithCertManager leaves the certificate to cert-manager.
	ByWebhookWithCertManager Mutation = "cert-manager"
)

// Options say what is installed.
type Options struct {
	// Config is the text of the configuration, which is installed as it is.
	Config string
	// Mutation is [ByPolicy] unless something else is said.
	Mutation Mutation
	// Version is that of the mutation policies. Default: [MutationV1].
	Version MutationVersion
	// Retired are gates that are not configured any more. As long as one is named, the
	// rules on who may write what let nodegate's agent write for it, too: agents are
	// rolled one after the other.
	Retired []gate.Retired
	// Images are those of the workloads. Default: [DefaultImages].
	Images Images
}

// Images of the workloads.
type Images struct{ Controller, Agent string }

// DefaultImages are what the kustomize tree names. There is no registry in them: an
// overlay says where its images are.
func DefaultImages() Images { return ImagesAt("", "dev") }

// ImagesAt are those that `make images PUSH=registry VERSION=tag` has pushed.
func ImagesAt(registry, tag string) Images {
	at := func(name string) string { return strings.TrimPrefix(path.Join(registry, name), "/") + ":" + tag }
	return Images{Controller: at(gate.ControllerAccount), Agent: at(gate.AgentAccount)}
}

//go:embed base/config.yaml
var exampleConfig string

// ExampleConfig is the configuration of the kustomize base, to be changed.
func ExampleConfig() string { return exampleConfig }

// Install renders all that an installation is, in the order of its [Layers]. The
// time of installation, which belongs into an annotation of the ConfigMap, is not
// rendered.
func Install(o Options) ([]*unstructured.Unstructured, error) {
	cfg, err := gate.ParseConfiguration([]byte(o.Config))
	if err != nil {
		return nil, err
	}
	workloads, err := Workloads(o)
	if err != nil {
		return nil, err
	}
	admission, err := o.admission(cfg)
	if err != nil {
		return nil, err
	}
	objects := append(workloads, admission...)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(slices.Index(Layers(), LayerOf(a)), slices.Index(Layers(), LayerOf(b)))
	})
	return objects, nil
}

// Workloads renders all but admission: the namespace, what runs in it, with which
// rights and by which configuration.
func Workloads(o Options) ([]*unstructured.Unstructured, error) {
	parts, err := o.parts()
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, p := range parts {
		rendered, err := p.render()
		if err != nil {
			return nil, err
		}
		objects = append(objects, rendered...)
	}
	return objects, nil
}

func (o Options) admission(cfg *gate.Configuration) ([]*unstructured.Unstructured, error) {
	if o.Mutation == ByPolicy || o.Mutation == "" {
		version := o.Version
		if version == "" {
			version = MutationV1
		}
		return policies(cfg, version, o.Retired)
	}
	objects, err := validationPolicies(cfg, o.Retired)
	if err != nil {
		return nil, err
	}
	if o.Mutation == ByWebhookWithCertManager {
		registration, err := WebhookWithCertManager(cfg)
		return append(objects, registration...), err
	}
	registration, err := list(Webhook(cfg, nil))
	return append(objects, registration...), err
}

// part is what stands in one file of the kustomize tree.
type part struct {
	file    string
	objects []noted
}

// parts are the files of the base, and those that a component adds. The ConfigMap
// has none: kustomize makes it of the configuration.
func (o Options) parts() ([]part, error) {
	cfg, err := gate.ParseConfiguration([]byte(o.Config))
	if err != nil {
		return nil, err
	}
	images := o.Images
	if images == (Images{}) {
		images = DefaultImages()
	}
	agent, err := agentObjects(cfg, images.Agent)
	if err != nil {
		return nil, err
	}
	parts := []part{
		{"base/namespace.yaml", namespaceObjects()},
		{"", []noted{{configMap(o.Config), nil}}},
		{"base/controller.yaml", controllerObjects(cfg, o.Mutation, images.Controller)},
		{"base/agent.yaml", agent},
		{"base/flowschema.yaml", []noted{flowSchema()}},
	}
	if o.Mutation == ByWebhook {
		parts = append(parts, part{"components/webhook/rights.yaml", roles(webhookRights())})
	}
	if o.Mutation == ByWebhook || o.Mutation == ByWebhookWithCertManager {
		parts = append(parts, part{"components/webhook/service.yaml", []noted{{controllerService(), nil}}})
	}
	if cfg.CNI != nil && runsAgent(cfg) {
		parts = append(parts, cniPart())
	}
	return parts, nil
}

func cniPart() part { return part{"components/cni-plugin/rights.yaml", roles(cniRights())} }

func (p part) render() ([]*unstructured.Unstructured, error) {
	objects := make([]runtime.Object, len(p.objects))
	for i := range p.objects {
		objects[i] = p.objects[i].Object
	}
	return toUnstructured(objects)
}

// yaml writes the file, each note above the line that it explains.
func (p part) yaml() ([]byte, error) {
	rendered, err := p.render()
	if err != nil {
		return nil, err
	}
	var out []byte
	for i, object := range rendered {
		document, err := YAML([]*unstructured.Unstructured{object})
		if err != nil {
			return nil, err
		}
		if document, err = annotate(document, p.objects[i].notes); err != nil {
			return nil, fmt.Errorf("explaining %s %q: %w", object.GetKind(), object.GetName(), err)
		}
		if i > 0 {
			out = append(out, "---\n"...)
		}
		out = append(out, document...)
	}
	return out, nil
}

// Tree renders those files of the kustomize tree that are rendered, by their paths
// in manifests/, but for what admits, in policy/ and webhook/.
func Tree(config string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, mutation := range []Mutation{ByPolicy, ByWebhook} {
		parts, err := Options{Config: config, Mutation: mutation}.parts()
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			if _, done := files[p.file]; done || p.file == "" {
				continue
			}
			if files[p.file], err = p.yaml(); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if cni := cniPart(); files[cni.file] == nil {
		if files[cni.file], err = cni.yaml(); err != nil {
			return nil, err
		}
	}
	certificates, err := Certificates()
	if err != nil {
		return nil, err
	}
	files["components/cert-manager/certificates.yaml"], err = YAML(certificates)
	return files, err
}

func list(object *unstructured.Unstructured, err error) ([]*unstructured.Unstructured, error) {
	return []*unstructured.Unstructured{object}, err
}
