package manifests_test

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/golden"
)

// baseConfig is the configuration of the kustomize base.
func baseConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("base/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTree_Golden: what is committed is what is rendered.
func TestTree_Golden(t *testing.T) {
	files, err := manifests.Tree(baseConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for file, got := range files {
		golden.Expect(t, file, got)
	}
}

// TestTree_IsWhatIsInstalled: kustomize makes of the tree what Install renders.
func TestTree_IsWhatIsInstalled(t *testing.T) {
	observing := baseConfig(t)
	enforcing := strings.Replace(observing, "mode: observe", "mode: enforce", 1)
	holding := enforcing + "  - {name: hold, conflist: {pluginType: nodegate-cni}}\ncni: {}\n"
	chained := enforcing + "  - conflist: {pluginType: example-cni}\n"
	for name, tc := range map[string]struct {
		dir        string
		components []string
		o          manifests.Options
	}{
		"the overlay default": {dir: "overlays/default", o: manifests.Options{Config: observing}},
		"the overlay webhook": {dir: "overlays/webhook", o: manifests.Options{Config: observing, Mutation: manifests.ByWebhook}},
		"v1beta1":             {components: []string{"policy-v1beta1"}, o: manifests.Options{Config: enforcing, Version: manifests.MutationV1beta1}},
		"a chained plugin":    {components: []string{"policy", "cni"}, o: manifests.Options{Config: chained}},
		"the CNI plugin":      {components: []string{"policy", "cni", "cni-plugin"}, o: manifests.Options{Config: holding}},
		"cert-manager": {components: []string{"webhook", "cert-manager"},
			o: manifests.Options{Config: enforcing, Mutation: manifests.ByWebhookWithCertManager}},
		"cert-manager, observing": {components: []string{"webhook", "cert-manager", "observe"},
			o: manifests.Options{Config: observing, Mutation: manifests.ByWebhookWithCertManager}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tc.dir
			if dir == "" {
				dir = overlay(t, tc.o.Config, tc.components)
			}
			want, err := manifests.Install(tc.o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(byName(want), byName(kustomize(t, dir))); diff != "" {
				t.Errorf("-rendered +kustomize:\n%s", diff)
			}
		})
	}
}

// TestTree_OwnOverlay: the overlay in docs/install.md is what Install renders for
// the README's configuration, with its images.
func TestTree_OwnOverlay(t *testing.T) {
	config, kustomization := block(t, "../README.md"), block(t, "../docs/install.md")
	want, err := manifests.Install(manifests.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	got := kustomize(t, writeOverlay(t, config, func(up string) string {
		return strings.ReplaceAll(kustomization, "nodegate/manifests", up)
	}))
	text := func(objects []*unstructured.Unstructured) string {
		byName(objects)
		out, err := manifests.YAML(objects)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	images := strings.NewReplacer(
		manifests.DefaultImages().Controller, "registry.example.com/nodegate/nodegate-controller:v0.1.0",
		manifests.DefaultImages().Agent, "registry.example.com/nodegate/nodegate-agent:v0.1.0")
	if diff := gocmp.Diff(images.Replace(text(want)), text(got)); diff != "" {
		t.Errorf("-rendered +kustomize:\n%s", diff)
	}
}

// block is the first block of YAML in a document.
func block(t *testing.T, document string) string {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no block of YAML", document)
	}
	return string(found[1])
}

// overlay is an operator's own, with another configuration.
func overlay(t *testing.T, config string, components []string) string {
	t.Helper()
	return writeOverlay(t, config, func(up string) string {
		text := "resources: [" + up + "/base]\ncomponents:\n"
		for _, component := range components {
			text += "- " + up + "/components/" + component + "\n"
		}
		return text + "configMapGenerator: [{name: nodegate-config, namespace: nodegate-system, behavior: replace, files: [config.yaml]}]\n"
	})
}

// writeOverlay writes a kustomization, which asks for a relative path to here.
func writeOverlay(t *testing.T, config string, kustomization func(up string) string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{"kustomization.yaml": kustomization(up), "config.yaml": config} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// kubectl is the real one.
func kubectl(t *testing.T, args ...string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"), args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return output
}

func kustomize(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(kubectl(t, "kustomize", dir)), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

// byName brings objects into one order.
func byName(objects []*unstructured.Unstructured) []map[string]any {
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	content := make([]map[string]any, len(objects))
	for i := range objects {
		content[i] = objects[i].Object
	}
	return content
}
