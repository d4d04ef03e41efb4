package cli

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/golden"
)

// decode reads a stream of objects, by kind and name.
func decode(t *testing.T, text []byte) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[describe(object)] = object.Object
	}
}

func render(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	out, errOut, code := run(t, append([]string{"render"}, args...)...)
	if code != codeDone || errOut != "" {
		t.Fatalf("render %v: exit code %d, %s", args, code, errOut)
	}
	return decode(t, []byte(out))
}

// TestRender_IsTheTree: by default it writes what the committed kustomize tree
// makes.
func TestRender_IsTheTree(t *testing.T) {
	for overlay, args := range map[string][]string{"default": nil, "webhook": {"--mutation=webhook"}} {
		made, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"),
			"kustomize", "../../manifests/overlays/"+overlay).Output()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(decode(t, made), render(t, args...)); diff != "" {
			t.Errorf("overlay %s, -kustomize +render:\n%s", overlay, diff)
		}
	}
}

// TestRender_ByVersion: what arms is of a kind that the cluster has.
func TestRender_ByVersion(t *testing.T) {
	const v1, v1beta1 = "admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1"
	for _, tc := range []struct {
		args []string
		want string // the version of the policies; empty for the webhook
	}{
		{nil, v1},
		{[]string{"--kube-version=1.36"}, v1},
		{[]string{"--kube-version=v1.37.2-gke.1"}, v1},
		{[]string{"--kube-version=1.35.4"}, ""},
		{[]string{"--kube-version=1.30"}, ""},
		{[]string{"--kube-version=1.34", "--mutation=policy"}, v1beta1},
		{[]string{"--kube-version=1.37", "--mutation=webhook"}, ""},
		{[]string{"--mutation=cert-manager"}, ""},
	} {
		objects := render(t, tc.args...)
		policy, registration := objects["MutatingAdmissionPolicy update.agent.nodegate.io"], objects["MutatingWebhookConfiguration mutate-node.nodegate.io"]
		version, _ := policy["apiVersion"].(string)
		if version != tc.want || (registration == nil) != (tc.want != "") {
			t.Errorf("%v: policies of version %q, want %q; a webhook: %t", tc.args, version, tc.want, registration != nil)
		}
	}
}

// TestRender_Parts: together they are the whole, and each is what it says.
func TestRender_Parts(t *testing.T) {
	for _, mutation := range []string{"policy", "webhook", "cert-manager"} {
		together := map[string]map[string]any{}
		for _, layer := range layerNames() {
			part := render(t, "--mutation="+mutation, "--only="+layer)
			if len(part) == 0 {
				t.Errorf("%s: part %s is empty", mutation, layer)
			}
			maps.Copy(together, part)
		}
		if diff := cmp.Diff(render(t, "--mutation="+mutation), together); diff != "" {
			t.Errorf("%s: -whole +parts:\n%s", mutation, diff)
		}
	}
	two := slices.Sorted(maps.Keys(render(t, "--only=namespace,config")))
	if diff := cmp.Diff([]string{"ConfigMap nodegate-system/nodegate-config", "Namespace nodegate-system"}, two); diff != "" {
		t.Errorf("two parts, -want +got:\n%s", diff)
	}
}

// TestRender_ForAConfiguration: gates, mounts and images are those that were asked
// for.
func TestRender_ForAConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gates.yaml")
	const text = head + "gates: [{name: mesh, taint: {key: example.com/mesh}, checks: [{conflist: {pluginType: mesh-cni}}]}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := run(t, "render", "--config="+file, "--image-registry=registry.example.com/n", "--image-tag=v1.2.3")
	if code != codeDone {
		t.Fatal(errOut)
	}
	for _, want := range []string{
		"name: update.mesh.nodegate.io", "image: registry.example.com/n/nodegate-agent:v1.2.3",
		"image: registry.example.com/n/nodegate-controller:v1.2.3", "path: /etc/cni/net.d",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if strings.Contains(out, manifests.DefaultImages().Agent) {
		t.Error("the default image is there")
	}
}

// TestRender_Profile: whoever has nothing but the program has each of them, and what is
// written for it is reviewed.
func TestRender_Profile(t *testing.T) {
	for _, name := range manifests.Profiles() {
		out, errOut, code := run(t, "render", "--profile="+name, "--only=rbac,config,agent")
		if code != codeDone || errOut != "" {
			t.Fatalf("%s: exit code %d, %s", name, code, errOut)
		}
		golden.Expect(t, "testdata/profile-"+name+".yaml", []byte(out))
		out, errOut, code = run(t, "config", "validate", "--profile="+name)
		if want := "profile " + name + " is valid: mode observe, gates " + name + "\n"; code != codeDone || out != want {
			t.Errorf("%s: exit code %d, %q, want %q\n%s", name, code, out, want, errOut)
		}
	}
	for _, command := range []string{"render", "install", "upgrade", "config validate"} {
		out, _, _ := run(t, append([]string{"__complete"}, append(strings.Fields(command), "--profile", "")...)...)
		if want := strings.Join(manifests.Profiles(), "\n") + "\n:4"; strings.TrimSpace(out) != want {
			t.Errorf("%s --profile completes to %q, want %q", command, out, want)
		}
	}
}

func TestRender_Refuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte(head+"mode: sometimes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an old cluster":       {[]string{"--kube-version=1.29.14"}, "this is Kubernetes 1.29.14, which is too old: nodegate needs 1.30"},
		"no policies":          {[]string{"--kube-version=1.33", "--mutation=policy"}, "use --mutation=webhook"},
		"an odd version":       {[]string{"--kube-version=new"}, "--kube-version"},
		"a registry by URL":    {[]string{"--image-registry=https://registry.example.com/x"}, "without a scheme"},
		"a registry and a tag": {[]string{"--image-registry=registry.example.com/x:v1"}, "without a scheme, a tag"},
		"two tags":             {[]string{"--image-tag=v1 v2"}, `--image-tag is "v1 v2"`},
		"an unknown part":      {[]string{"--only=crds"}, "none of namespace, rbac, config, controller, agent, admission"},
		"an unknown mutation":  {[]string{"--mutation=magic"}, "policy, webhook, cert-manager"},
		"a faulty file":        {[]string{"--config=" + bad}, `mode: Unsupported value: "sometimes"`},
		"a missing file":       {[]string{"--config=/nonexistent"}, "/nonexistent"},
		"a missing profile":    {[]string{"--profile=calico"}, `there is no profile "calico"; there are: aether, cilium`},
		"two of them":          {[]string{"--profile=cilium", "--config=" + bad}, "name one"},
		"an argument too many": {[]string{"all"}, `unknown command "all"`},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := run(t, append([]string{"render"}, tc.args...)...)
			if code != codeFailed || out != "" || !strings.Contains(errOut, tc.want) {
				t.Errorf("exit code %d, out %q, err %q, want an error of %q", code, out, errOut, tc.want)
			}
		})
	}
}
