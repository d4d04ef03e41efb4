// Package fake stands in for what the builder works on, in tests: a module
// that pins a Kubernetes and an etcd of a few lines each, which build in no
// time and without a network, and a go command that stops where a test wants.
package fake

import (
	"os"
	"path/filepath"
	"testing"
)

// The pinned versions.
const (
	Kubernetes = "v1.37.2"
	Etcd       = "v3.7.3"
)

// GoMod is the go.mod of the module that Module writes.
const GoMod = `module example.com/plane

go 1.26.0

require (
	go.etcd.io/etcd/server/v3 ` + Etcd + `
	k8s.io/client-go v0.37.2
	k8s.io/component-base v0.37.2
	k8s.io/kubernetes ` + Kubernetes + `
)

replace (
	go.etcd.io/etcd/server/v3 => ./etcd
	k8s.io/client-go => ./client-go
	k8s.io/component-base => ./component-base
	k8s.io/kubernetes => ./kubernetes
)
`

const etcdMain = `package main

import "os"

func main() { os.Stdout.WriteString("etcd Version: 3.7.3\nGit SHA: none\n") }
`

// The real programs tell one of the two stamps; these tell both.
const kubernetesMain = `package main

import (
	"os"

	client "k8s.io/client-go/pkg/version"
	base "k8s.io/component-base/version"
)

func main() {
	os.Stdout.WriteString("Kubernetes " + base.Get() + "\n")
	os.Stdout.WriteString("client " + client.Get() + "\n")
}
`

const versionPackage = `package version

var (
	gitVersion   = "v0.0.0-master+$Format:%H$"
	gitMajor     string
	gitMinor     string
	gitCommit    = "$Format:%H$"
	gitTreeState string
	buildDate    = "1970-01-01T00:00:00Z"
)

func Get() string {
	return gitVersion + " major=" + gitMajor + " minor=" + gitMinor + " commit=" + gitCommit +
		" tree=" + gitTreeState + " date=" + buildDate
}
`

// Module writes the module and returns its folder.
func Module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"go.mod":                                         GoMod,
		"etcd/go.mod":                                    "module go.etcd.io/etcd/server/v3\n",
		"etcd/main.go":                                   etcdMain,
		"client-go/go.mod":                               "module k8s.io/client-go\n",
		"client-go/pkg/version/version.go":               versionPackage,
		"component-base/go.mod":                          "module k8s.io/component-base\n",
		"component-base/version/version.go":              versionPackage,
		"kubernetes/go.mod":                              "module k8s.io/kubernetes\n",
		"kubernetes/cmd/kube-apiserver/main.go":          kubernetesMain,
		"kubernetes/cmd/kube-controller-manager/main.go": kubernetesMain,
		"kubernetes/cmd/kube-scheduler/main.go":          kubernetesMain,
		"kubernetes/cmd/kubectl/main.go":                 kubernetesMain,
		"kubernetes/cmd/kubelet/main.go":                 kubernetesMain,
	}
	for name, content := range files {
		Write(t, filepath.Join(dir, name), content, 0o644)
	}
	return dir
}

// Write writes a file and the folders above it.
func Write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
