package manifests

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodegate/nodegate/gate"
)

// ownGates are those that nodegate's own agent runs.
func ownGates(cfg *gate.Configuration) []*gate.Gate {
	var own []*gate.Gate
	for i := range cfg.Gates {
		if g := &cfg.Gates[i]; g.Agent.Own() && len(g.Checks) > 0 {
			own = append(own, g)
		}
	}
	return own
}

// agentObjects are none where every gate has an agent of its own.
func agentObjects(cfg *gate.Configuration, image string) ([]noted, error) {
	gates := ownGates(cfg)
	if len(gates) == 0 {
		return nil, nil
	}
	objects := append([]noted{{serviceAccount(gate.AgentAccount), nil}}, roles(agentRights(cfg))...)
	daemonSet, err := agentDaemonSet(cfg, image)
	return append(objects, daemonSet), err
}

func agentDaemonSet(cfg *gate.Configuration, image string) (noted, error) {
	mounts, err := hostMounts(cfg)
	if err != nil {
		return noted{}, err
	}
	template, notes := agentTemplate(ownGates(cfg), mounts, image)
	return noted{&appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet"},
		ObjectMeta: namedMeta(gate.Namespace, gate.AgentAccount),
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{gate.AgentLabel: gate.AgentLabelValue}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("10%"))},
			},
			Template: template,
		},
	}, append([]note{
		{"spec.updateStrategy", "An agent is Ready only while its node serves, so that an agent or a configuration\n" +
			"under which nodes do not serve stops here."},
	}, notes...)}, nil
}

func agentTemplate(gates []*gate.Gate, mounts []hostMount, image string) (corev1.PodTemplateSpec, []note) {
	container := corev1.Container{
		Name:            "agent",
		Image:           image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Env:             []corev1.EnvVar{fieldEnv("NODE_NAME", "spec.nodeName"), fieldEnv("POD_UID", "metadata.uid")},
		Ports:           []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9809, HostPort: 9809}},
		LivenessProbe:   probe("/healthz", "127.0.0.1", intstr.FromInt32(9808)),
		ReadinessProbe:  probe("/readyz", "127.0.0.1", intstr.FromInt32(9808)),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		SecurityContext: confined(),
		VolumeMounts:    []corev1.VolumeMount{{Name: "config", MountPath: configDir, ReadOnly: true}},
	}
	container.SecurityContext.RunAsUser, container.SecurityContext.RunAsGroup = new(int64(0)), new(int64(0))
	volumes := []corev1.Volume{configVolume()}
	notes := agentNotes()
	for _, m := range mounts {
		notes = append(notes, note{"spec.template.spec.volumes." + strconv.Itoa(len(volumes)), m.why})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: m.path, ReadOnly: !m.written})
		volumes = append(volumes, corev1.Volume{Name: m.name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: m.path, Type: new(corev1.HostPathDirectoryOrCreate)},
		}})
	}
	var installers []corev1.Container
	if installer := installer(container, mounts); installer != nil {
		installers = append(installers, *installer)
		notes = append(notes, note{"spec.template.spec.initContainers.0", "The binary that is run for every pod of the node, and what stands for it in the list."})
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{gate.AgentLabel: gate.AgentLabelValue, partOfLabel: "nodegate"}},
		Spec: corev1.PodSpec{
			ServiceAccountName:           gate.AgentAccount,
			AutomountServiceAccountToken: new(true),
			EnableServiceLinks:           new(false),
			PriorityClassName:            nodeCritical,
			HostNetwork:                  true,
			Affinity:                     &corev1.Affinity{NodeAffinity: governedNodes(gates)},
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			TerminationGracePeriodSeconds: new(int64(10)),
			InitContainers:                installers,
			Containers:                    []corev1.Container{container},
			Volumes:                       volumes,
		},
	}, notes
}

// installer puts nodegate-cni onto the node before the agent starts, with the
// agent's image and rights; nil where no check chains it.
func installer(agent corev1.Container, mounts []hostMount) *corev1.Container {
	installer := corev1.Container{
		Name: "install-cni", Image: agent.Image, ImagePullPolicy: agent.ImagePullPolicy, Args: []string{"install-cni"},
		Resources: agent.Resources, SecurityContext: agent.SecurityContext,
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: configDir, ReadOnly: true}},
	}
	for _, m := range mounts {
		if m.installed {
			installer.VolumeMounts = append(installer.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: m.path})
		}
	}
	if len(installer.VolumeMounts) == 1 {
		return nil
	}
	return &installer
}

// agentNotes explain what the agent needs that other pods do not.
func agentNotes() []note {
	pod := "spec.template.spec."
	container := pod + "containers.0."
	return []note{
		{pod + "affinity", "Where the gates govern, and nowhere else."},
		{pod + "automountServiceAccountToken", "Its token names its pod and its node: admission goes by that."},
		{pod + "hostNetwork", "It must run before pods have a network, and say that they have one."},
		{pod + "priorityClassName", "Evicted, it would close its node."},
		{pod + "tolerations", "It opens the node, so no taint may keep it away."},
		{container + "env", "Its own Node is the only one that it asks for."},
		{container + "ports.0", "On the host's network, as that of every agent. Health is asked for at 127.0.0.1."},
		{container + "securityContext.capabilities", "None: as the owner of the files it needs none to pass their permissions."},
		{container + "securityContext.runAsUser", "The sockets and the CNI configuration belong to root, and may be for root alone."},
		{pod + "volumes", "Of the host no more than the checks look into. The id of the boot, in /proc, is the\n" +
			"host's in every container."},
	}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
	}}
}

// governedNodes says in the terms of node affinity what the gates' selectors do:
// one term for each gate, of which one must hold.
func governedNodes(gates []*gate.Gate) *corev1.NodeAffinity {
	var terms []corev1.NodeSelectorTerm
	for _, g := range gates {
		var term corev1.NodeSelectorTerm
		for _, key := range sortedKeys(g.NodeSelector.MatchLabels) {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{g.NodeSelector.MatchLabels[key]},
			})
		}
		for _, r := range g.NodeSelector.MatchExpressions {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: r.Key, Operator: corev1.NodeSelectorOperator(r.Operator), Values: r.Values,
			})
		}
		if len(term.MatchExpressions) == 0 {
			return nil // every Node is governed; an empty term would match none
		}
		terms = append(terms, term)
	}
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}

// hostMount is a directory of the host, at its own path.
type hostMount struct {
	name, path, why string
	// written: the agent mends a list in it, or makes its socket.
	written bool
	// installed: what is installed with the agent goes into it.
	installed bool
}

// hostMounts are the directories that the checks look into, and that of the agent's
// own socket, and no others.
func hostMounts(cfg *gate.Configuration) ([]hostMount, error) {
	gates := ownGates(cfg)
	var mounts []hostMount
	seen, named := map[string]bool{}, map[string]int{}
	add := func(name, path, why string) {
		if path = filepath.Clean(path); seen[path] {
			return
		}
		seen[path] = true
		if named[name]++; named[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, named[name])
		}
		mounts = append(mounts, hostMount{name: name, path: path, why: why})
	}
	for _, g := range gates {
		for i := range g.Checks {
			check := &g.Checks[i]
			if check.Socket != nil {
				add("socket", filepath.Dir(check.Socket.Path),
					"To connect to a socket in it, which takes no right to write. Not the socket\nitself: that is another one when its owner restarts.")
			}
			if check.File != nil {
				add("file", filepath.Dir(check.File.Path), "To see a file in it, which may come and go.")
			}
			if check.Conflist != nil {
				add("net-d", check.Conflist.Dir, "To see which configuration the runtime loads, and to put the plugin back into it.")
				add("cni-bin", check.Conflist.BinDir, "To see that the plugin is there.")
			}
		}
	}
	answers := ""
	if cfg.CNI != nil {
		answers = filepath.Dir(filepath.Clean(cfg.CNI.Socket))
		add("nodegate", answers, "For the socket on which the CNI plugin asks whether a pod may start.")
	}
	for i, m := range mounts {
		mounts[i].written = m.path == answers || slices.ContainsFunc(gates, func(g *gate.Gate) bool { return mends(g, m.path) })
		mounts[i].installed = slices.ContainsFunc(gates, func(g *gate.Gate) bool { return holdsPods(g, m.path) })
	}
	if seen["/"] {
		return nil, errors.New("a check looks into the root directory, which cannot be mounted at its own path")
	}
	return mounts, nil
}

// runsAgent reports whether there is anything for nodegate's own agent to do.
func runsAgent(cfg *gate.Configuration) bool { return len(ownGates(cfg)) > 0 }

// holdsPods reports whether a check of the gate keeps nodegate's own plugin chained,
// and looks into the directory for that.
func holdsPods(g *gate.Gate, path string) bool {
	return slices.ContainsFunc(g.Checks, func(c gate.Check) bool {
		return c.Conflist != nil && c.Conflist.PluginType == gate.CNIPlugin &&
			(filepath.Clean(c.Conflist.Dir) == path || filepath.Clean(c.Conflist.BinDir) == path)
	})
}

// mends reports whether a check of the gate writes to the directory.
func mends(g *gate.Gate, path string) bool {
	return slices.ContainsFunc(g.Checks, func(c gate.Check) bool {
		return c.Conflist != nil && filepath.Clean(c.Conflist.Dir) == path
	})
}
