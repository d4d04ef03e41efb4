package gate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Check is one thing that the agent tests. Exactly one of its kinds is set.
type Check struct {
	// Name tells the check from the gate's others, in the heartbeat, in logs and
	// in metrics. Default: its kind, in lower case.
	Name string `json:"name,omitempty"`
	// Dwell is how long the check must keep failing before it counts as failing.
	// It never delays opening. Default: 1s for conflist, 10s for the others.
	Dwell *metav1.Duration `json:"dwell,omitempty"`
	// Timeout bounds one answer. Default: 2s.
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	Socket   *SocketCheck   `json:"socket,omitempty"`
	Conflist *ConflistCheck `json:"conflist,omitempty"`
	HTTP     *HTTPCheck     `json:"http,omitempty"`
	GRPC     *GRPCCheck     `json:"grpc,omitempty"`
	File     *FileCheck     `json:"file,omitempty"`
	Pod      *PodCheck      `json:"pod,omitempty"`

	NodeCondition *NodeConditionCheck `json:"nodeCondition,omitempty"`
}

// SocketCheck passes while something accepts connections on a Unix socket and,
// if asked, answers there that it is healthy.
type SocketCheck struct {
	// Path is absolute and at most [MaxSocketPath] bytes.
	Path string `json:"path"`
	// HTTP or GRPC asks for health on the socket. Without either a connection that
	// is accepted is enough, even of a server that never answers.
	HTTP *HTTPHealth `json:"http,omitempty"`
	GRPC *GRPCHealth `json:"grpc,omitempty"`
}

// HTTPHealth is what is asked on a socket. See [HTTPCheck].
type HTTPHealth struct {
	// Path begins with a slash. Default: /.
	Path string `json:"path,omitempty"`
}

// GRPCHealth is what is asked on a socket. See [GRPCCheck].
type GRPCHealth struct {
	// Service is the service that is asked for. Default: the whole server.
	Service string `json:"service,omitempty"`
}

// HTTPCheck passes while an endpoint on the node answers a GET with a status from
// 200 to 299. A redirect is not followed and does not pass.
type HTTPCheck struct {
	// Host is a loopback address, or [HostInternalIP]. Default: 127.0.0.1.
	Host string `json:"host,omitempty"`
	Port int32  `json:"port"`
	// Path begins with a slash. Default: /.
	Path string `json:"path,omitempty"`
	// Scheme is HTTP or HTTPS, whose certificate is not verified, as by a kubelet's
	// probe. Default: HTTP.
	Scheme corev1.URIScheme `json:"scheme,omitempty"`
}

// GRPCCheck passes while an endpoint on the node answers by the standard health
// protocol, grpc.health.v1 without TLS, that it is SERVING.
type GRPCCheck struct {
	// Host is a loopback address, or [HostInternalIP]. Default: 127.0.0.1.
	Host string `json:"host,omitempty"`
	Port int32  `json:"port"`
	// Service is the service that is asked for. Default: the whole server.
	Service string `json:"service,omitempty"`
}

// FileCheck passes while a path exists, of whatever kind. A link must lead
// somewhere.
type FileCheck struct {
	// Path is absolute. What is not removed by a reboot proves nothing of this boot
	// unless MaxAge is set.
	Path string `json:"path"`
	// MaxAge is how long ago the file may have been changed, by the node's clock;
	// as far ahead is as old. Default: any age.
	MaxAge *metav1.Duration `json:"maxAge,omitempty"`
}

// PodCheck passes while a pod on the node is Ready and was reported to be so in
// this boot. The agent's account must be allowed to list and watch pods in the
// namespace.
type PodCheck struct {
	Namespace string `json:"namespace"`
	// Selector is not empty. Any pod that it selects will do.
	Selector *metav1.LabelSelector `json:"selector"`
}

// NodeConditionCheck passes while a condition of the own Node has a status and
// was reported to have it in this boot: the later of lastHeartbeatTime and
// lastTransitionTime lies in it, by the clocks of the node and of the API server
// alike.
type NodeConditionCheck struct {
	Type corev1.NodeConditionType `json:"type"`
	// Status is True, False or Unknown. Default: True.
	Status corev1.ConditionStatus `json:"status,omitempty"`
}

// HostInternalIP stands for the first internal address that the Node shows.
const HostInternalIP = string(corev1.NodeInternalIP)

// MaxSocketPath is the longest path of a Unix socket, in bytes (sun_path of
// unix(7) has 108 with its final NUL).
const MaxSocketPath = 107

// kind is a kind of check and whether it is set.
type kind struct {
	// field is its name in the configuration.
	field string
	set   bool
}

func (c *Check) kinds() []kind {
	return []kind{
		{"socket", c.Socket != nil},
		{"conflist", c.Conflist != nil},
		{"http", c.HTTP != nil},
		{"grpc", c.GRPC != nil},
		{"file", c.File != nil},
		{"pod", c.Pod != nil},
		{"nodeCondition", c.NodeCondition != nil},
	}
}

// Kind names what the check tests, as its field in the configuration does, or is
// empty where none is set.
func (c *Check) Kind() string {
	for _, k := range c.kinds() {
		if k.set {
			return k.field
		}
	}
	return ""
}
