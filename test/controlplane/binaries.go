package controlplane

import (
	"fmt"
	"strings"
	"time"
)

const (
	etcdModule       = "go.etcd.io/etcd/server/v3"
	kubernetesModule = "k8s.io/kubernetes"
)

// binary is one program of the control plane.
type binary struct {
	name    string
	module  string // whose pin is the program's version
	pkg     string
	version []string // arguments that make the program tell its version
	given   bool     // must be in a folder given through KUBEBUILDER_ASSETS
}

// binaries lists what is built, in this order.
func binaries(kubelet bool) []binary {
	list := []binary{
		{name: "etcd", module: etcdModule, pkg: etcdModule, version: []string{"--version"}, given: true},
		kubernetesBinary("kube-apiserver", true),
		kubernetesBinary("kube-scheduler", false),
		kubernetesBinary("kube-controller-manager", false),
		{
			name: "kubectl", module: kubernetesModule, pkg: kubernetesModule + "/cmd/kubectl",
			version: []string{"version", "--client"}, given: true,
		},
	}
	if kubelet {
		list = append(list, kubernetesBinary("kubelet", true))
	}
	return list
}

func kubernetesBinary(name string, given bool) binary {
	return binary{
		name: name, module: kubernetesModule, pkg: kubernetesModule + "/cmd/" + name,
		version: []string{"--version"}, given: given,
	}
}

// tellsVersion reports whether the output of a binary asked for its version
// names the wanted one. etcd leaves out the "v".
func tellsVersion(output, want string) bool {
	for word := range strings.FieldsSeq(output) {
		if word == want || "v"+word == want {
			return true
		}
	}
	return false
}

// buildFlags are the flags of every build. Kubernetes learns its version from
// the linker only, see hack/lib/version.sh in k8s.io/kubernetes.
func buildFlags(kubernetes string, built time.Time) []string {
	flags := []string{"-s", "-w"}
	for _, stamp := range stamps(kubernetes, built) {
		flags = append(flags,
			"-X k8s.io/component-base/version."+stamp,
			"-X k8s.io/client-go/pkg/version."+stamp)
	}
	return []string{"-trimpath", "-ldflags", strings.Join(flags, " ")}
}

// stamps are true of a build from a module: its tree is an archive of the
// tag, and it does not say which commit the tag stood for, so the commit is
// blanked rather than left at the placeholder of the source.
func stamps(kubernetes string, built time.Time) []string {
	major, minor := majorMinor(kubernetes)
	return []string{
		"gitVersion=" + kubernetes,
		"gitMajor=" + major,
		"gitMinor=" + minor,
		"gitCommit=",
		"gitTreeState=archive",
		"buildDate=" + built.UTC().Format(time.RFC3339),
	}
}

// majorMinor splits "v1.37.2" into "1" and "37". As in the releases of
// Kubernetes, a pre-release has a "+" after its minor.
func majorMinor(version string) (major, minor string) {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, rest, _ = strings.Cut(rest, ".")
	if strings.Contains(rest, "-") {
		minor += "+"
	}
	return major, minor
}

func (b binary) String() string { return fmt.Sprintf("%s (%s)", b.name, b.pkg) }
