package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// wanted is what a person says of an installation. What they do not say is empty.
type wanted struct {
	config   string
	profile  string
	mutation string
	registry string
	tag      string
}

func (w *wanted) addFlags(command *cobra.Command, config, mutation, image string) {
	w.addProfile(command)
	flags := command.Flags()
	flags.StringVar(&w.config, "config", "", "configuration `file`, - for standard input"+config)
	flags.StringVar(&w.mutation, "mutation", "", "what arms in admission, `policy`, webhook, or cert-manager for a webhook with its certificate"+mutation)
	flags.StringVar(&w.registry, "image-registry", "", "registry and `path` of the images, such as registry.example.com/nodegate"+image)
	flags.StringVar(&w.tag, "image-tag", "", "`tag` of the images"+image)
}

// addProfile is for commands that take a file, too.
func (w *wanted) addProfile(command *cobra.Command) {
	command.Flags().StringVar(&w.profile, "profile", "", "`name` of a ready configuration instead of a file: "+strings.Join(manifests.Profiles(), ", "))
	_ = command.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(manifests.Profiles(), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

func (w *wanted) validate() error {
	known := []string{"", string(manifests.ByPolicy), string(manifests.ByWebhook), string(manifests.ByWebhookWithCertManager)}
	if !slices.Contains(known, w.mutation) {
		return fmt.Errorf("--mutation is %q, it must be one of %s", w.mutation, strings.Join(known[1:], ", "))
	}
	if w.registry != "" && !registries.MatchString(w.registry) {
		return fmt.Errorf("--image-registry is %q, it must be a registry and a path, such as registry.example.com/nodegate, without a scheme, a tag or a digest", w.registry)
	}
	if w.tag != "" && !tags.MatchString(w.tag) {
		return fmt.Errorf("--image-tag is %q, it must be a tag, such as v0.1.0", w.tag)
	}
	return nil
}

// What an image's name may be made of, by the grammar of distribution/reference: all
// else is refused by each node's runtime only, when it is to run.
var (
	registries = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*/?$`)
	tags       = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

// configuration is the text of the file or the profile, or empty if none is named.
func (w *wanted) configuration(stdin io.Reader) (string, error) {
	switch {
	case w.config != "" && w.profile != "":
		return "", errTwoConfigurations
	case w.profile != "":
		return manifests.Profile(w.profile)
	case w.config == "":
		return "", nil
	}
	data, err := configurationAt(w.config, stdin)
	if err != nil {
		return "", fmt.Errorf("reading the configuration: %w", err)
	}
	if _, err := gate.ParseConfiguration(data); err != nil {
		return "", fmt.Errorf("configuration %s is not valid:\n%s", w.config, bullets(err))
	}
	return string(data), nil
}

var errTwoConfigurations = errors.New("a file and --profile are two configurations: name one")

// configurationAt reads a file, or standard input for -, and no more of it than shows
// that it is too long.
func configurationAt(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, gate.MaxConfigurationBytes+1))
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(file, gate.MaxConfigurationBytes+1))
}

// served are the versions of mutation policies that an API server serves, or may
// serve.
type served struct{ v1, v1beta1 bool }

// choose is the form of the mutation where one is wanted, or none in particular.
func (s served) choose(mutation string) (manifests.Mutation, manifests.MutationVersion, error) {
	switch {
	case mutation == "" && s.v1:
		return manifests.ByPolicy, manifests.MutationV1, nil
	case mutation == "" && !s.v1:
		return manifests.ByWebhook, "", nil
	case mutation != string(manifests.ByPolicy):
		return manifests.Mutation(mutation), "", nil
	case s.v1:
		return manifests.ByPolicy, manifests.MutationV1, nil
	case s.v1beta1:
		return manifests.ByPolicy, manifests.MutationV1beta1, nil
	}
	return "", "", fmt.Errorf("there is no MutatingAdmissionPolicy in this version of Kubernetes: it came in 1.34 and 1.35 as v1beta1, " +
		"to be switched on, and is there from 1.36 on; use --mutation=webhook")
}

// oldest is the first version of Kubernetes in which nodegate runs.
func oldest() *version.Version { return version.MajorMinor(1, 30) }

// supported refuses a version in which nodegate does not run.
func supported(v *version.Version) error {
	if v.LessThan(oldest()) {
		return fmt.Errorf("this is Kubernetes %s, which is too old: nodegate needs %s or newer, for its ValidatingAdmissionPolicy", v, oldest())
	}
	return nil
}

// servedBy is what a version of Kubernetes may serve.
func servedBy(v *version.Version) served {
	return served{v1: v.AtLeast(version.MajorMinor(1, 36)), v1beta1: v.AtLeast(version.MajorMinor(1, 34))}
}

type renderOptions struct {
	*options
	wanted
	version string
	only    []string
}

func newRenderCommand(o *options) *cobra.Command {
	r := &renderOptions{options: o}
	command := &cobra.Command{
		Use:   "render",
		Short: "Write the manifests of an installation, or some of them",
		Long: `Write the manifests of an installation, or some of them.

No cluster is asked. The time of installation is not in them: it belongs into the
ConfigMap's annotation nodegate.io/installed-at.

The parts are, in the order in which they are applied:
` + strings.Join(layerNames(), ", ") + `.`,
		Example: `  kubectl nodegate render --only admission
  kubectl nodegate render --config gates.yaml --kube-version 1.35 --only admission,rbac
  kubectl nodegate render --profile cilium --only config > gates.yaml`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return r.run() },
	}
	r.addFlags(command, " (default: an example)", " (default: by the version)", "")
	flags := command.Flags()
	flags.StringVar(&r.version, "kube-version", "", "the cluster's `version` (default: 1.36 or newer)")
	flags.StringSliceVar(&r.only, "only", nil, "the `parts` to write")
	return command
}

func (o *renderOptions) run() error {
	if err := o.validate(); err != nil {
		return err
	}
	for _, name := range o.only {
		if !slices.Contains(layerNames(), name) {
			return fmt.Errorf("--only names %q, which is none of %s", name, strings.Join(layerNames(), ", "))
		}
	}
	rendering := manifests.Options{Images: manifests.ImagesAt(o.registry, cmp.Or(o.tag, "dev"))}
	available := served{v1: true, v1beta1: true}
	if o.version != "" {
		v, err := version.ParseGeneric(o.version)
		if err != nil {
			return fmt.Errorf("--kube-version: %w", err)
		}
		if err := supported(v); err != nil {
			return err
		}
		available = servedBy(v)
	}
	var err error
	if rendering.Mutation, rendering.Version, err = available.choose(o.mutation); err != nil {
		return err
	}
	text, err := o.configuration(o.In)
	if err != nil {
		return err
	}
	rendering.Config = cmp.Or(text, manifests.ExampleConfig())
	objects, err := manifests.Install(rendering)
	if err != nil {
		return err
	}
	if len(o.only) > 0 {
		objects = slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
			return !slices.Contains(o.only, string(manifests.LayerOf(object)))
		})
	}
	out, err := manifests.YAML(objects)
	if err != nil {
		return err
	}
	_, err = o.Out.Write(out)
	return err
}

func layerNames() []string {
	var names []string
	for _, layer := range manifests.Layers() {
		names = append(names, string(layer))
	}
	return names
}
