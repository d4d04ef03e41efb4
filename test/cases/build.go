package cases

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// Names and values that the table uses.
const (
	// Boot is the stored Node's boot id, OtherBoot another one.
	Boot      = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	OtherBoot = "0f3c9c54-7d0e-4a53-9d0b-6a2f7a1b5e11"
	zeroBoot  = "00000000-0000-0000-0000-000000000000"
	otherUID  = "8f14e45f-ceea-467f-a9d4-3f2f1b6d2c10"

	// StorageLabel set to "true" makes a Node governed by the storage gate too.
	StorageLabel = "example.com/storage"
	// StripLabel set to "true" makes the foreign policies of the suite take the
	// default gate's taint away.
	StripLabel = "example.com/strip"

	// StripByWebhook as the value of StripLabel has a webhook of somebody else do
	// so, after all policies.
	StripByWebhook = "webhook"
	// ToleratedPrefix is tolerated where a row says so.
	ToleratedPrefix = "mesh.example.com/"

	// ttl of a heartbeat that the table does not say otherwise about.
	ttl = 60 * time.Second
)

// Config is the configuration that the table is about: the default gate, and a
// second one whose agent embeds the library.
func Config() *gate.Configuration {
	cfg, err := gate.ParseConfiguration([]byte(`
apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
- name: storage
  taint: {key: storage.example.com/not-ready, value: startup}
  nodeSelector: {matchLabels: {example.com/storage: "true"}}
  finalObject: Deny
  agent: {namespace: storage-system, serviceAccount: storage-node}
`))
	if err != nil {
		panic(err) // the text above is wrong
	}
	return cfg
}

// Edit changes a Node of which the UID is set. now is the row's clock.
type Edit func(n *corev1.Node, now time.Time)

// edits applies several in order.
func edits(all ...Edit) Edit {
	return func(n *corev1.Node, now time.Time) {
		for _, edit := range all {
			edit(n, now)
		}
	}
}

// Blank is the Node that every row starts from: governed by the default gate,
// open, without heartbeat, booted, last stamped at now.
func Blank(name string, uid types.UID, now time.Time) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:          name,
			UID:           uid,
			Labels:        map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name},
			ManagedFields: []metav1.ManagedFieldsEntry{stamp(now)},
		},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: Boot}},
	}
}

func stamp(at time.Time) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: "stamp", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
		Time: &metav1.Time{Time: at}, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{}}}}`),
	}
}

func gateTaint() corev1.Taint {
	return corev1.Taint{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoSchedule}
}

func storageTaint() corev1.Taint {
	return corev1.Taint{Key: "storage.example.com/not-ready", Value: "startup", Effect: corev1.TaintEffectNoSchedule}
}

func taint(key, value string, effect corev1.TaintEffect) Edit {
	return add(corev1.Taint{Key: key, Value: value, Effect: effect})
}

func add(taints ...corev1.Taint) Edit {
	return func(n *corev1.Node, _ time.Time) { n.Spec.Taints = append(n.Spec.Taints, taints...) }
}

// armed adds the default gate's taint.
func armed(n *corev1.Node, _ time.Time) { n.Spec.Taints = append(n.Spec.Taints, gateTaint()) }

// armedAt adds it with a time this long after now.
func armedAt(d time.Duration) Edit {
	return func(n *corev1.Node, now time.Time) {
		taint := gateTaint()
		taint.TimeAdded = &metav1.Time{Time: now.Add(d)}
		add(taint)(n, now)
	}
}

// storageArmed adds the storage gate's taint.
func storageArmed(n *corev1.Node, _ time.Time) { n.Spec.Taints = append(n.Spec.Taints, storageTaint()) }

// foreign is a taint of somebody else, before or behind ours.
func foreign(key string) Edit { return taint(key, "", corev1.TaintEffectNoSchedule) }

// remove takes every taint of this key away, of whatever effect.
func remove(key string) Edit {
	return func(n *corev1.Node, _ time.Time) {
		var rest []corev1.Taint
		for _, t := range n.Spec.Taints {
			if t.Key != key {
				rest = append(rest, t)
			}
		}
		n.Spec.Taints = rest
	}
}

// opened takes the default gate's taint away.
func opened(n *corev1.Node, now time.Time) { remove(gate.DefaultTaintKey)(n, now) }

// storageOpened takes the storage gate's taint away.
func storageOpened(n *corev1.Node, now time.Time) { remove(storageTaint().Key)(n, now) }

// noTaints takes all taints away.
func noTaints(n *corev1.Node, _ time.Time) { n.Spec.Taints = nil }

// emptyTaints leaves a list without elements.
func emptyTaints(n *corev1.Node, _ time.Time) { n.Spec.Taints = []corev1.Taint{} }

// manyTaints adds n foreign taints.
func manyTaints(count int) Edit {
	return func(n *corev1.Node, _ time.Time) {
		for i := range count {
			n.Spec.Taints = append(n.Spec.Taints,
				corev1.Taint{Key: fmt.Sprintf("example.com/taint-%03d", i), Effect: corev1.TaintEffectPreferNoSchedule})
		}
	}
}

func label(key, value string) Edit {
	return func(n *corev1.Node, _ time.Time) { n.Labels[key] = value }
}

func unlabel(key string) Edit {
	return func(n *corev1.Node, _ time.Time) { delete(n.Labels, key) }
}

func annotate(key, value string) Edit {
	return func(n *corev1.Node, _ time.Time) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = value
	}
}

func unannotate(key string) Edit {
	return func(n *corev1.Node, _ time.Time) { delete(n.Annotations, key) }
}

func boot(id string) Edit {
	return func(n *corev1.Node, _ time.Time) { n.Status.NodeInfo.BootID = id }
}

func unschedulable(n *corev1.Node, _ time.Time) { n.Spec.Unschedulable = true }

func providerID(id string) Edit {
	return func(n *corev1.Node, _ time.Time) { n.Spec.ProviderID = id }
}

func finalizer(name string) Edit {
	return func(n *corev1.Node, _ time.Time) { n.Finalizers = append(n.Finalizers, name) }
}

// stamped makes one stamp of this time the only one.
func stamped(at time.Time) Edit {
	return func(n *corev1.Node, _ time.Time) { n.ManagedFields = []metav1.ManagedFieldsEntry{stamp(at)} }
}

// stampedAgo makes one stamp, this long before now, the only one.
func stampedAgo(d time.Duration) Edit {
	return func(n *corev1.Node, now time.Time) { stamped(now.Add(-d))(n, now) }
}

// unstamped leaves an entry without a time, as a sender of no time would.
func unstamped(n *corev1.Node, _ time.Time) {
	entry := stamp(time.Time{})
	entry.Time = nil
	n.ManagedFields = []metav1.ManagedFieldsEntry{entry}
}

// stampedBy makes stamps of this many managers, at now.
func stampedBy(managers int) Edit {
	return func(n *corev1.Node, now time.Time) {
		n.ManagedFields = nil
		for i := range managers {
			entry := stamp(now)
			entry.Manager, entry.Operation = fmt.Sprintf("manager-%d", i), metav1.ManagedFieldsOperationApply
			n.ManagedFields = append(n.ManagedFields, entry)
		}
	}
}

// untracked is what switches the tracking of managers off for good.
func untracked(n *corev1.Node, _ time.Time) { n.ManagedFields = []metav1.ManagedFieldsEntry{{}} }

// noManagedFields sends none.
func noManagedFields(n *corev1.Node, _ time.Time) { n.ManagedFields = nil }

// noUID sends none.
func noUID(n *corev1.Node, _ time.Time) { n.UID = "" }

// Change alters a heartbeat before it is written.
type change func(h *gate.Heartbeat)

// beat writes a heartbeat of the default gate: ready, of this Node and boot, at
// now, but for the changes.
func beat(changes ...change) Edit { return beatOf(gate.DefaultName, changes...) }

func beatOf(name string, changes ...change) Edit {
	return func(n *corev1.Node, now time.Time) {
		h := gate.Heartbeat{
			Ready: true, Time: now, TTL: ttl, BootID: Boot, NodeUID: n.UID,
			Extra: []gate.Token{{Key: gate.TokenSequence, Value: "17"}},
		}
		for _, change := range changes {
			change(&h)
		}
		value, err := h.Format()
		if err != nil {
			panic(err) // the table is wrong
		}
		annotate(gate.HeartbeatPrefix+name, value)(n, now)
	}
}

func age(d time.Duration) change { return func(h *gate.Heartbeat) { h.Time = h.Time.Add(-d) } }
func lasting(d time.Duration) change {
	return func(h *gate.Heartbeat) { h.TTL = d }
}
func notReady(h *gate.Heartbeat) {
	h.Ready = false
	h.Extra = append(h.Extra, gate.Token{Key: gate.TokenFailing, Value: "socket"})
}
func inBoot(id string) change     { return func(h *gate.Heartbeat) { h.BootID = id } }
func ofNode(uid types.UID) change { return func(h *gate.Heartbeat) { h.NodeUID = uid } }

// sequence makes a heartbeat differ from another of the same second.
func sequence(h *gate.Heartbeat) {
	h.Extra = []gate.Token{{Key: gate.TokenSequence, Value: "18"}}
}

// rawBeat writes any text where the heartbeat stands.
func rawBeat(value string) Edit { return annotate(gate.HeartbeatPrefix+gate.DefaultName, value) }

// spoiltBeat writes a fresh heartbeat in which one text is replaced.
func spoiltBeat(old, replacement string) Edit {
	return func(n *corev1.Node, now time.Time) {
		beat()(n, now)
		key := gate.HeartbeatPrefix + gate.DefaultName
		value := strings.Replace(n.Annotations[key], old, replacement, 1)
		if value == n.Annotations[key] {
			panic(fmt.Sprintf("%q is not in %q", old, value)) // the table is wrong
		}
		n.Annotations[key] = value
	}
}

// noBeat removes the heartbeat.
func noBeat(n *corev1.Node, now time.Time) {
	unannotate(gate.HeartbeatPrefix+gate.DefaultName)(n, now)
}

// bypass writes a bypass that ends this long after now.
func bypass(d time.Duration) Edit {
	return func(n *corev1.Node, now time.Time) {
		value, err := gate.Bypass{Until: now.Add(d), Reason: "repair of the mesh"}.Format()
		if err != nil {
			panic(err) // the table is wrong
		}
		rawBypass(value)(n, now)
	}
}

func rawBypass(value string) Edit { return annotate(gate.BypassPrefix+gate.DefaultName, value) }

func noBypass(n *corev1.Node, now time.Time) {
	unannotate(gate.BypassPrefix+gate.DefaultName)(n, now)
}

func sorted[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
