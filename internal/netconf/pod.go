package netconf

import "strings"

// Pod is what a runtime tells plugins of the pod that they are run for. It is
// empty where the runtime is not Kubernetes'.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// ParseArgs finds the pod in CNI_ARGS, the semicolon-separated list of key=value
// that containerd and CRI-O pass. It is total: whatever else stands there is for
// other plugins.
func ParseArgs(args string) Pod {
	var pod Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		case "K8S_POD_UID":
			pod.UID = value
		}
	}
	return pod
}
