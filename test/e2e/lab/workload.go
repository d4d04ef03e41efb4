//go:build linux

package lab

import (
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/test/e2e/machine"
	"github.com/nodegate/nodegate/test/e2e/record"
)

// Namespace is that of workloads.
const Namespace = "default"

// Workload creates a pod of an ordinary user for a node, which the scheduler binds.
func (l *Lab) Workload(ctx context.Context, name, node string) (*corev1.Pod, error) {
	return l.Client.CoreV1().Pods(Namespace).Create(ctx, workload(name, node, "standin:"+l.Kit.Revision), metav1.CreateOptions{})
}

func workload(name, node, image string) *corev1.Pod {
	env := func(name, field string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "work", Image: image, Args: []string{"work"},
				Env:             []corev1.EnvVar{env("POD_NAMESPACE", "metadata.namespace"), env("POD_NAME", "metadata.name"), env("POD_UID", "metadata.uid")},
				SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))},
				VolumeMounts:    []corev1.VolumeMount{{Name: "record", MountPath: path.Dir(record.StartsFile)}},
			}},
			Volumes: []corev1.Volume{{Name: "record", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: path.Dir(record.StartsFile), Type: new(corev1.HostPathDirectoryOrCreate)},
			}}},
		},
	}
}

// streamInterval is the time between two pods of a stream, and streamLimit how many of
// them may wait or run at a time.
const (
	streamInterval = 500 * time.Millisecond
	streamLimit    = 8
)

// Stream creates pods for a node, one after another, and deletes each once it has
// run. The function that it returns ends that and waits until all are gone.
func (l *Lab) Stream(ctx context.Context, name, node string) (end func(context.Context) error) {
	streaming, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		l.stream(streaming, name, node)
	})
	return func(ctx context.Context) error {
		cancel()
		group.Wait()
		return l.Clear(ctx, node)
	}
}

func (l *Lab) stream(ctx context.Context, name, node string) {
	alive := map[types.UID]string{}
	for ticker := time.NewTicker(streamInterval); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		for uid, name := range alive {
			if seen, ok := l.Seen.Pod(uid); ok && !seen.Running.IsZero() {
				// If the API server is away, another time.
				if l.Client.CoreV1().Pods(Namespace).Delete(ctx, name, metav1.DeleteOptions{}) == nil {
					delete(alive, uid)
				}
			}
		}
		if len(alive) < streamLimit {
			if pod, err := l.Workload(ctx, name, node); err == nil {
				alive[pod.UID] = pod.Name
			}
		}
	}
}

// Clear deletes all workloads of a node and waits until they are gone.
func (l *Lab) Clear(ctx context.Context, node string) error {
	pods := l.Client.CoreV1().Pods(Namespace)
	return l.Await(ctx, "the workloads to be gone", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		left := 0
		for i := range list.Items {
			p := &list.Items[i]
			if p.Spec.NodeSelector[corev1.LabelHostname] != node {
				continue
			}
			left++
			if p.DeletionTimestamp == nil {
				if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
					return false, err
				}
			}
		}
		return left == 0, nil
	})
}

// Started is the start of a workload on a machine.
type Started struct {
	record.Start

	// Seen is what watches showed of the pod.
	Seen PodSeen
	// Meshed says whether the mesh's plugin was called for the pod's network, and its
	// mesh took it in. A pod that is not is the harm that nodegate prevents.
	Meshed bool
	// Again: it was bound before the boot in which it starts. No taint holds that back.
	Again bool
}

// Starts returns all starts of workloads on a machine since a time.
func (l *Lab) Starts(m *machine.Machine, since time.Time) ([]Started, error) {
	adds, err := record.Read[record.Add](m.Disk(record.AddsFile))
	if err != nil {
		return nil, err
	}
	// Numbers of namespaces begin anew with every boot, where bound pods are the same.
	type network struct {
		boot   int
		uid    string
		number uint64
	}
	meshed := map[network]bool{}
	for _, add := range adds {
		meshed[network{m.Boot(add.Time), add.UID, add.Network}] = add.Served
	}
	starts, err := record.Read[record.Start](m.Disk(record.StartsFile))
	if err != nil {
		return nil, err
	}
	var all []Started
	for _, start := range starts {
		if start.Time.Before(since) {
			continue
		}
		seen, ok := l.Seen.Pod(types.UID(start.UID))
		if !ok {
			return nil, fmt.Errorf("the pod %s has started, and no watch has shown it", start.Pod)
		}
		boot := m.Boot(start.Time)
		all = append(all, Started{
			Start: start, Seen: seen, Meshed: meshed[network{boot, start.UID, start.Network}], Again: m.Boot(seen.Bound) < boot,
		})
	}
	return all, nil
}
