package manifests

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodegate/nodegate/gate"
)

// unchainPrefix starts the names of the containers that take a plugin out.
const unchainPrefix = "unchain-"

// Unchaining renders the agents' DaemonSet as it is before the agents go: a pod takes
// the plugins of its node's gates out of the lists, is initialized when that is done,
// and waits for its end. It has no token. nil is returned where nothing is chained.
func Unchaining(cfg *gate.Configuration, image string) (*unstructured.Unstructured, error) {
	gates := ownGates(cfg)
	commands := UnchainCommands(cfg)
	if len(commands) == 0 {
		return nil, nil
	}
	mounts, err := hostMounts(cfg)
	if err != nil {
		return nil, err
	}
	mounts = slices.DeleteFunc(mounts, func(m hostMount) bool {
		return !slices.ContainsFunc(gates, func(g *gate.Gate) bool { return mends(g, m.path) })
	})
	set, err := agentDaemonSet(cfg, image)
	if err != nil {
		return nil, err
	}
	daemonSet, ok := set.Object.(*appsv1.DaemonSet)
	if !ok {
		return nil, fmt.Errorf("the agents are a %T", set.Object)
	}
	daemonSet.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromString("100%"))
	pod := &daemonSet.Spec.Template.Spec
	pod.AutomountServiceAccountToken = new(false)
	pod.Volumes, pod.InitContainers = nil, nil
	container := corev1.Container{
		Image: image, ImagePullPolicy: corev1.PullIfNotPresent, SecurityContext: pod.Containers[0].SecurityContext,
		Resources: pod.Containers[0].Resources,
	}
	for _, m := range mounts {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: m.path})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: m.name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: m.path, Type: new(corev1.HostPathDirectoryOrCreate)},
		}})
	}
	for i, args := range commands {
		one := *container.DeepCopy()
		one.Name, one.Args = fmt.Sprintf("%s%d", unchainPrefix, i), args
		pod.InitContainers = append(pod.InitContainers, one)
	}
	container.Name, container.Args = "agent", append(slices.Clone(commands[0]), "--stay")
	pod.Containers = []corev1.Container{container}
	objects, err := toUnstructured([]runtime.Object{daemonSet})
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

// UnchainCommands are the arguments of nodegate-agent that take the plugins out of the
// lists of a node, one for each plugin and directory.
func UnchainCommands(cfg *gate.Configuration) [][]string {
	var commands [][]string
	seen := map[string]bool{}
	for _, g := range ownGates(cfg) {
		for i := range g.Checks {
			c := g.Checks[i].Conflist
			if c == nil {
				continue
			}
			args := []string{"unchain", "--plugin-type=" + c.PluginType, "--dir=" + c.Dir}
			if c.EntryFile != gate.DefaultEntryFile(c.Dir, c.PluginType) {
				args = append(args, "--entry-file="+c.EntryFile)
			}
			if key := strings.Join(args, " "); !seen[key] {
				seen[key] = true
				commands = append(commands, args)
			}
		}
	}
	return commands
}

// OwnPlugin is the configuration without the conflist checks of any plugin but
// [gate.CNIPlugin], which must not stay in a list: without an agent it lets no pod
// start.
func OwnPlugin(cfg *gate.Configuration) *gate.Configuration {
	own := *cfg
	own.Gates = slices.Clone(cfg.Gates)
	for i := range own.Gates {
		g := &own.Gates[i]
		g.Checks = slices.DeleteFunc(slices.Clone(g.Checks), func(c gate.Check) bool {
			return c.Conflist != nil && c.Conflist.PluginType != gate.CNIPlugin
		})
	}
	return &own
}

// Unchained reports whether a pod is one of [Unchaining] that has done its work.
func Unchained(pod *corev1.Pod) bool {
	if !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return strings.HasPrefix(c.Name, unchainPrefix) }) {
		return false
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodInitialized && c.Status == corev1.ConditionTrue
	})
}

// Unchains reports whether a gate has a plugin chained on the Node.
func Unchains(cfg *gate.Configuration, node *corev1.Node) bool {
	return slices.ContainsFunc(ownGates(cfg), func(g *gate.Gate) bool {
		return g.Governs(node) && slices.ContainsFunc(g.Checks, func(c gate.Check) bool { return c.Conflist != nil })
	})
}

// GateOf is the gate of a policy that was rendered here: its name and, where the
// policy is about this gate alone, the key of its taint.
func GateOf(object *unstructured.Unstructured) (name, taintKey string) {
	name = object.GetLabels()[gate.Group+"/gate"]
	if !strings.HasPrefix(object.GetName(), "final.") || object.GetKind() != "ValidatingAdmissionPolicy" {
		return name, ""
	}
	variables, _, _ := unstructured.NestedSlice(object.Object, "spec", "variables")
	for _, variable := range variables {
		fields, ok := variable.(map[string]any)
		if !ok {
			continue
		}
		expression, _ := fields["expression"].(string)
		if match := taintKeyExpression.FindStringSubmatch(expression); match != nil {
			return name, match[1]
		}
	}
	return name, ""
}

// taintKeyExpression finds the key in what isTaint writes. A key has no quotes.
var taintKeyExpression = regexp.MustCompile(`t\.key == '([^']+)'`)
