package controlplane

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nodegate/nodegate/test/controlplane/internal/fake"
)

func folderOf(t *testing.T, goMod string) string {
	t.Helper()
	dir := t.TempDir()
	fake.Write(t, filepath.Join(dir, "go.mod"), goMod, 0o644)
	p, err := readPins(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return p.folder()
}

const someMod = `module m

go 1.26.0

require (
	go.etcd.io/etcd/server/v3 v3.7.3
	google.golang.org/grpc v1.83.2 // indirect
	k8s.io/kubernetes v1.37.2
)

replace k8s.io/api => k8s.io/api v0.37.2
`

func TestPins_Folder(t *testing.T) {
	folder := folderOf(t, someMod)
	want := regexp.MustCompile(`^kubernetes-v1\.37\.2-etcd-v3\.7\.3-` + runtime.GOOS + `-` + runtime.GOARCH + `-[0-9a-f]{12}$`)
	if !want.MatchString(folder) {
		t.Errorf("folder %q does not match %s", folder, want)
	}

	tests := map[string]struct {
		from, to string
		want     bool // the folder stays
	}{
		"another Kubernetes":         {from: "kubernetes v1.37.2", to: "kubernetes v1.37.3"},
		"another etcd":               {from: "v3.7.3", to: "v3.7.4"},
		"another dependency":         {from: "grpc v1.83.2", to: "grpc v1.83.3"},
		"another replacement":        {from: "k8s.io/api v0.37.2", to: "k8s.io/api v0.37.3"},
		"a replaced Kubernetes":      {from: "replace", to: "replace k8s.io/kubernetes => k8s.io/kubernetes v1.38.0\n\nreplace"},
		"an excluded version":        {from: "replace", to: "exclude k8s.io/utils v1.0.0\n\nreplace"},
		"another comment":            {from: "// indirect", to: "// indirect; kept", want: true},
		"another name of the module": {from: "module m", to: "module n", want: true},
		"another order": {
			from: "\tk8s.io/kubernetes v1.37.2\n)", to: ")\n\nrequire k8s.io/kubernetes v1.37.2\n", want: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(someMod, tc.from, tc.to, 1)
			if changed == someMod {
				t.Fatal("the case changes nothing")
			}
			if got := folderOf(t, changed) == folder; got != tc.want {
				t.Errorf("same folder: got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestPins_VersionOfAReplacedModule(t *testing.T) {
	folder := folderOf(t, someMod+"\nreplace k8s.io/kubernetes => k8s.io/kubernetes v1.38.0\n")
	if !strings.HasPrefix(folder, "kubernetes-v1.38.0-") {
		t.Errorf("folder %q does not have the version that is built", folder)
	}
}

// The real go.mod must hold what the builder looks for.
func TestPins_OfThisModule(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readPins(t.Context(), dir); err != nil {
		t.Error(err)
	}
}
