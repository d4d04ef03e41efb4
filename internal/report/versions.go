package report

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VersionsKind is the kind of [Versions].
const VersionsKind = "Versions"

// Versions are those of the command line and of a cluster.
type Versions struct {
	metav1.TypeMeta `json:",inline"`
	Client          string   `json:"client"`
	APIServer       string   `json:"apiServer,omitempty"`
	Images          []Image  `json:"images,omitempty"`
	Unseen          []Unseen `json:"unseen,omitempty"`
}

// Image is that of a container which is installed.
type Image struct {
	// Of is the controller, or the agent of a gate.
	Of        string `json:"of"`
	Container string `json:"container"`
	Image     string `json:"image"`
}

// DeepCopyObject implements [runtime.Object], for kubectl's printers, which change
// nothing.
func (v *Versions) DeepCopyObject() runtime.Object { c := *v; return &c }
