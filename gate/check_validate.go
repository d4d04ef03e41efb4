package gate

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *Check) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	faults = append(faults, invalid(path.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))...)
	if c.Dwell.Duration < 0 {
		faults = append(faults, field.Invalid(path.Child("dwell"), c.Dwell.Duration.String(), "must not be negative"))
	}
	if c.Timeout.Duration <= 0 {
		faults = append(faults, field.Invalid(path.Child("timeout"), c.Timeout.Duration.String(), "must be positive"))
	}
	faults = append(faults, c.validateKind(path)...)
	if c.Socket != nil {
		faults = append(faults, c.Socket.validate(path.Child("socket"))...)
	}
	if c.Conflist != nil {
		faults = append(faults, c.Conflist.validate(path.Child("conflist"))...)
	}
	if c.HTTP != nil {
		faults = append(faults, c.HTTP.validate(path.Child("http"))...)
	}
	if c.GRPC != nil {
		faults = append(faults, validateEndpoint(c.GRPC.Host, c.GRPC.Port, path.Child("grpc"))...)
	}
	if c.File != nil {
		faults = append(faults, c.File.validate(path.Child("file"))...)
	}
	if c.Pod != nil {
		faults = append(faults, c.Pod.validate(path.Child("pod"))...)
	}
	if c.NodeCondition != nil {
		faults = append(faults, c.NodeCondition.validate(path.Child("nodeCondition"))...)
	}
	return faults
}

// validateKind: exactly one is set.
func (c *Check) validateKind(path *field.Path) field.ErrorList {
	var all, set []string
	for _, k := range c.kinds() {
		all = append(all, k.field)
		if k.set {
			set = append(set, k.field)
		}
	}
	switch len(set) {
	case 0:
		return field.ErrorList{field.Required(path, "one of "+strings.Join(all, ", "))}
	case 1:
		return nil
	}
	return field.ErrorList{field.Invalid(path, c.Name, "only one of "+strings.Join(set, ", ")+" may be set")}
}

func (c *SocketCheck) validate(path *field.Path) field.ErrorList {
	faults := validateSocketPath(c.Path, path.Child("path"))
	if c.HTTP != nil {
		faults = append(faults, validateURLPath(c.HTTP.Path, path.Child("http", "path"))...)
	}
	if c.HTTP != nil && c.GRPC != nil {
		faults = append(faults, field.Invalid(path, c.Path, "only one of http, grpc may be set"))
	}
	return faults
}

func (c *HTTPCheck) validate(path *field.Path) field.ErrorList {
	faults := validateEndpoint(c.Host, c.Port, path)
	faults = append(faults, validateURLPath(c.Path, path.Child("path"))...)
	if c.Scheme != corev1.URISchemeHTTP && c.Scheme != corev1.URISchemeHTTPS {
		faults = append(faults, field.NotSupported(path.Child("scheme"), c.Scheme,
			[]corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}))
	}
	return faults
}

func (c *FileCheck) validate(path *field.Path) field.ErrorList {
	faults := validatePath(c.Path, path.Child("path"))
	if c.MaxAge != nil && c.MaxAge.Duration <= 0 {
		faults = append(faults, field.Invalid(path.Child("maxAge"), c.MaxAge.Duration.String(), "must be positive"))
	}
	return faults
}

func (c *PodCheck) validate(path *field.Path) field.ErrorList {
	faults := invalid(path.Child("namespace"), c.Namespace, validation.IsDNS1123Label(c.Namespace))
	if c.Selector == nil || len(c.Selector.MatchLabels)+len(c.Selector.MatchExpressions) == 0 {
		return append(faults, field.Required(path.Child("selector"), "without one any pod would do"))
	}
	return append(faults, metav1validation.ValidateLabelSelector(c.Selector,
		metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
}

func (c *NodeConditionCheck) validate(path *field.Path) field.ErrorList {
	faults := invalid(path.Child("type"), c.Type, validation.IsQualifiedName(string(c.Type)))
	statuses := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	if !slices.Contains(statuses, c.Status) {
		faults = append(faults, field.NotSupported(path.Child("status"), c.Status, statuses))
	}
	return faults
}

// validateEndpoint: a check tells something of its own node and of no other. A
// name is not allowed, for what it stands for is up to a resolver.
func validateEndpoint(host string, port int32, path *field.Path) field.ErrorList {
	faults := invalid(path.Child("port"), port, validation.IsValidPortNum(int(port)))
	if ip, err := netip.ParseAddr(host); host != HostInternalIP && (err != nil || !ip.IsLoopback() || ip.Zone() != "") {
		faults = append(faults, field.Invalid(path.Child("host"), host,
			"must be a loopback address, such as 127.0.0.1 or ::1, or "+HostInternalIP))
	}
	return faults
}

func validateURLPath(p string, path *field.Path) field.ErrorList {
	if !strings.HasPrefix(p, "/") {
		return field.ErrorList{field.Invalid(path, p, "must begin with a slash")}
	}
	if _, err := url.ParseRequestURI(p); err != nil {
		return field.ErrorList{field.Invalid(path, p, "is not the path of a URL")}
	}
	return nil
}

func validateSocketPath(p string, path *field.Path) field.ErrorList {
	faults := validatePath(p, path)
	if len(p) > MaxSocketPath {
		faults = append(faults, field.Invalid(path, p,
			fmt.Sprintf("has %d bytes; the path of a Unix socket has at most %d", len(p), MaxSocketPath)))
	}
	return faults
}

func validatePath(p string, path *field.Path) field.ErrorList {
	switch {
	case p == "":
		return field.ErrorList{field.Required(path, "an absolute path")}
	case !filepath.IsAbs(p):
		return field.ErrorList{field.Invalid(path, p, "must be an absolute path")}
	case strings.ContainsRune(p, 0):
		return field.ErrorList{field.Invalid(path, p, "must not contain a NUL")}
	}
	return nil
}
