package manifests

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodegate/nodegate/gate"
)

const (
	nameLabel   = "app.kubernetes.io/name"
	partOfLabel = "app.kubernetes.io/part-of"

	// nonroot is the user of the images.
	nonroot = 65532

	configDir   = "/etc/nodegate"
	certDir     = "/etc/nodegate-webhook"
	webhookPort = 9443

	webhookArg   = "--webhook"
	certFilesArg = "--webhook-cert-source=files"

	// drainSeconds is how long a replica that ends goes on, until API servers call
	// the others.
	drainSeconds = 5
)

func controllerLabels() map[string]string {
	return map[string]string{nameLabel: gate.ControllerAccount}
}

func controllerObjects(cfg *gate.Configuration, mutation Mutation, image string) []noted {
	objects := append([]noted{{serviceAccount(gate.ControllerAccount), nil}}, roles(controllerRights(cfg))...)
	return append(objects, controllerDeployment(mutation, image), controllerBudget())
}

func controllerDeployment(mutation Mutation, image string) noted {
	return noted{&appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: namedMeta(gate.Namespace, gate.ControllerAccount),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: controllerLabels()},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))},
			},
			Template: controllerTemplate(mutation, image),
		},
	}, []note{
		{"spec.replicas", "One guards, and the other one takes over. Both serve the webhook, if there is one."},
		{"spec.template.spec.affinity", "Apart by node and by zone. Not by topology spread constraints: these do not\n" +
			"count the pod that cannot end on a dead node, which then looks the emptiest."},
		{"spec.template.spec.priorityClassName", "Without a guard no node is closed that a kubelet or the time must close."},
		{"spec.template.spec.tolerations", "Every gate is tolerated, or a cluster whose nodes are all closed would have no\n" +
			"controller. A node that does not answer is left after 30 s instead of 5 minutes."},
		{"spec.template.spec.containers.0.lifecycle", "A call that reaches nobody lets a write pass: the webhook serves until its\n" +
			"endpoint is gone."},
		{"spec.template.spec.containers.0.resources", "No limit of CPU: a guard that is held back is late."},
	}}
}

func controllerTemplate(mutation Mutation, image string) corev1.PodTemplateSpec {
	labels := controllerLabels()
	labels[partOfLabel] = "nodegate"
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			ServiceAccountName:           gate.ControllerAccount,
			AutomountServiceAccountToken: new(true),
			EnableServiceLinks:           new(false),
			PriorityClassName:            clusterCritical,
			NodeSelector:                 map[string]string{corev1.LabelOSStable: "linux"},
			Affinity:                     &corev1.Affinity{PodAntiAffinity: apart()},
			Tolerations:                  controllerTolerations(),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(nonroot)), RunAsGroup: new(int64(nonroot)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:            "controller",
				Image:           image,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Ports:           []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}, {Name: "health", ContainerPort: 8081}},
				LivenessProbe:   probe("/healthz", "", intstr.FromString("health")),
				ReadinessProbe:  probe("/readyz", "", intstr.FromString("health")),
				Lifecycle:       &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: drainSeconds}}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
				},
				SecurityContext: confined(),
				VolumeMounts:    []corev1.VolumeMount{{Name: "config", MountPath: configDir, ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{configVolume()},
		},
	}
	serveWebhook(&template.Spec, mutation)
	return template
}

// serveWebhook is what the components webhook and cert-manager change.
func serveWebhook(pod *corev1.PodSpec, mutation Mutation) {
	if mutation != ByWebhook && mutation != ByWebhookWithCertManager {
		return
	}
	container := &pod.Containers[0]
	container.Args = []string{webhookArg}
	container.Ports = append(container.Ports, corev1.ContainerPort{Name: "webhook", ContainerPort: webhookPort})
	if mutation == ByWebhookWithCertManager {
		container.Args = append(container.Args, certFilesArg, "--webhook-cert-dir="+certDir)
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "certificate", MountPath: certDir, ReadOnly: true})
		// The controller starts without it, and is ready when cert-manager has made it.
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "certificate", VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: WebhookCertManagerSecret, Optional: new(true)},
		}})
	}
}

// MutationOf is the form for which a controller runs.
func MutationOf(template *corev1.PodTemplateSpec) Mutation {
	var args []string
	if len(template.Spec.Containers) > 0 {
		args = template.Spec.Containers[0].Args
	}
	switch {
	case !slices.Contains(args, webhookArg):
		return ByPolicy
	case slices.Contains(args, certFilesArg):
		return ByWebhookWithCertManager
	}
	return ByWebhook
}

// controllerTolerations tolerate every gate of every cluster.
func controllerTolerations() []corev1.Toleration {
	tolerations := []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerations = append(tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(30)),
		})
	}
	return tolerations
}

// apart is a wish: a cluster of one node runs both replicas.
func apart() *corev1.PodAntiAffinity {
	by := func(topology string, weight int32) corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: corev1.PodAffinityTerm{
			TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: controllerLabels()},
		}}
	}
	return &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
		by(corev1.LabelHostname, 100), by(corev1.LabelTopologyZone, 50),
	}}
}

// confined is a container that can do nothing but its work.
func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func probe(path, host string, port intstr.IntOrString) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Host: host, Port: port}},
		TimeoutSeconds: 5,
	}
}

func configVolume() corev1.Volume {
	return corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: gate.ConfigMapName}},
	}}
}

func controllerBudget() noted {
	return noted{&policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: namedMeta(gate.Namespace, gate.ControllerAccount),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(1)),
			Selector:                   &metav1.LabelSelector{MatchLabels: controllerLabels()},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}, []note{{"spec.unhealthyPodEvictionPolicy", "A controller that does not work keeps no node from being drained."}}}
}

func controllerService() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   coreType("Service"),
		ObjectMeta: namedMeta(gate.Namespace, gate.ControllerService),
		Spec: corev1.ServiceSpec{
			Selector: controllerLabels(),
			Ports:    []corev1.ServicePort{{Name: "webhook", Port: 443, TargetPort: intstr.FromString("webhook")}},
		},
	}
}
