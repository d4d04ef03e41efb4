package gate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// reservedTaintDomains belong to Kubernetes' own controllers, which would add
// and remove a gate's taint as they see fit.
func reservedTaintDomains() []string {
	return []string{"node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"}
}

// Validate returns every fault of a configuration with defaults, each with the
// path of its field.
func (c *Configuration) Validate() field.ErrorList {
	var faults field.ErrorList
	if c.APIVersion != APIVersion {
		faults = append(faults, field.NotSupported(field.NewPath("apiVersion"), c.APIVersion, []string{APIVersion}))
	}
	if c.Kind != Kind {
		faults = append(faults, field.NotSupported(field.NewPath("kind"), c.Kind, []string{Kind}))
	}
	if !slices.Contains(Modes(), c.Mode) {
		faults = append(faults, field.NotSupported(field.NewPath("mode"), c.Mode, Modes()))
	}
	for i, prefix := range c.ToleratedPrefixes {
		at := field.NewPath("toleratedPrefixes").Index(i)
		faults = append(faults, validatePrefix(prefix, at)...)
		faults = append(faults, c.validateReach(prefix, at)...)
	}
	gates := field.NewPath("gates")
	for i := range c.Gates {
		faults = append(faults, c.Gates[i].validate(gates.Index(i))...)
	}
	faults = append(faults, c.validateUnique(gates)...)
	if c.CNI != nil {
		faults = append(faults, c.CNI.validate(field.NewPath("cni"))...)
	}
	return append(faults, c.validateAsked(gates)...)
}

// validateAsked: where the plugin is chained and nobody answers it, no pod starts.
func (c *Configuration) validateAsked(gates *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i := range c.Gates {
		for j, check := range c.Gates[i].Checks {
			if c.CNI == nil && check.Conflist != nil && check.Conflist.PluginType == CNIPlugin {
				faults = append(faults, field.Invalid(gates.Index(i).Child("checks").Index(j).Child("conflist", "pluginType"), CNIPlugin,
					"asks the agent, which answers only where cni is set: cni: {}"))
			}
		}
	}
	return faults
}

// validateReach: nodegate's own agent may change what has a tolerated prefix, and
// must not take its Node out of a gate's reach by that.
func (c *Configuration) validateReach(prefix string, path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for i := range c.Gates {
		for _, key := range selectorKeys(c.Gates[i].NodeSelector) {
			if prefix != "" && strings.HasPrefix(key, prefix) {
				faults = append(faults, field.Invalid(path, prefix,
					fmt.Sprintf("must not be that of the label %s, by which gate %q selects Nodes", key, c.Gates[i].Name)))
			}
		}
	}
	return faults
}

// validateUnique: a taint or an annotation that two gates share would have them
// open and arm against each other.
func (c *Configuration) validateUnique(gates *field.Path) field.ErrorList {
	var faults field.ErrorList
	names, taints := map[string]bool{}, map[string]bool{}
	for i := range c.Gates {
		g := &c.Gates[i]
		if names[g.Name] {
			faults = append(faults, field.Duplicate(gates.Index(i).Child("name"), g.Name))
		}
		if taints[g.Taint.Key] {
			faults = append(faults, field.Duplicate(gates.Index(i).Child("taint", "key"), g.Taint.Key))
		}
		names[g.Name], taints[g.Taint.Key] = true, true
	}
	return faults
}

// Validate returns every fault of a gate with defaults.
func (g *Gate) Validate() field.ErrorList { return g.validate(nil) }

func (g *Gate) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	faults = append(faults, invalid(path.Child("name"), g.Name, validation.IsDNS1123Label(g.Name))...)
	faults = append(faults, g.Taint.validate(path.Child("taint"))...)
	faults = append(faults, metav1validation.ValidateLabelSelector(g.NodeSelector,
		metav1validation.LabelSelectorValidationOptions{}, path.Child("nodeSelector"))...)
	faults = append(faults, g.Agent.validate(path.Child("agent"))...)
	if g.FinalObject != FinalObjectAudit && g.FinalObject != FinalObjectDeny {
		faults = append(faults, field.NotSupported(path.Child("finalObject"), g.FinalObject,
			[]FinalObjectAction{FinalObjectAudit, FinalObjectDeny}))
	}
	names := map[string]bool{}
	for i := range g.Checks {
		check, at := &g.Checks[i], path.Child("checks").Index(i)
		faults = append(faults, check.validate(at)...)
		if names[check.Name] {
			faults = append(faults, field.Duplicate(at.Child("name"), check.Name))
		}
		names[check.Name] = true
	}
	return faults
}

func (t Taint) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	faults = append(faults, invalid(path.Child("key"), t.Key, validation.IsQualifiedName(t.Key))...)
	faults = append(faults, invalid(path.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	for _, domain := range reservedTaintDomains() {
		if strings.HasPrefix(t.Key, domain) {
			faults = append(faults, field.Invalid(path.Child("key"), t.Key, "belongs to Kubernetes' own controllers"))
		}
	}
	if t.Effect != corev1.TaintEffectNoSchedule {
		faults = append(faults, field.NotSupported(path.Child("effect"), t.Effect,
			[]corev1.TaintEffect{corev1.TaintEffectNoSchedule}))
	}
	return faults
}

func (a Agent) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	faults = append(faults, invalid(path.Child("namespace"), a.Namespace, validation.IsDNS1123Label(a.Namespace))...)
	faults = append(faults, invalid(path.Child("serviceAccount"), a.ServiceAccount,
		validation.IsDNS1123Subdomain(a.ServiceAccount))...)
	return append(faults, metav1validation.ValidateLabels(a.PodLabels, path.Child("podLabels"))...)
}

// validatePrefix: an empty prefix, or one of nodegate's own, would take the
// confinement away.
func validatePrefix(prefix string, path *field.Path) field.ErrorList {
	domain, _, ok := strings.Cut(prefix, "/")
	switch {
	case !ok || domain == "":
		return field.ErrorList{field.Invalid(path, prefix, "must begin with a domain and a slash, such as example.com/")}
	case domain == Group || strings.HasSuffix(domain, "."+Group):
		return field.ErrorList{field.Invalid(path, prefix, "must not be in a domain of "+Group)}
	}
	return invalid(path, prefix, validation.IsQualifiedName(prefix+"x"))
}

func invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var faults field.ErrorList
	for _, message := range messages {
		faults = append(faults, field.Invalid(path, value, message))
	}
	return faults
}
