// Package gen generates random and hostile writes to Nodes for property tests
// and fuzzing.
package gen

import (
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/nodegate/nodegate/gate"
)

// Now is the time around which everything is generated.
var Now = time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC)

const (
	nodeName = "node-1"
	nodeUID  = "0deb1067-949c-4b9d-8907-4eaeaea221b2"
	bootID   = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
)

// Write generates a write to a Node for gates of the configuration: mostly
// nearly valid, so that every rule is reached, and now and then hostile.
func Write(cfg *gate.Configuration) *rapid.Generator[gate.Write] {
	return rapid.Custom(func(t *rapid.T) gate.Write {
		w := gate.Write{
			Name:        nodeName,
			Operation:   rapid.SampledFrom([]admissionv1.Operation{admissionv1.Update, admissionv1.Update, admissionv1.Update, admissionv1.Create}).Draw(t, "operation"),
			Subresource: rapid.SampledFrom([]string{"", "", "", "status"}).Draw(t, "subresource"),
			User:        User(cfg).Draw(t, "user"),
			New:         Node(cfg).Draw(t, "new"),
		}
		if w.Operation == admissionv1.Create {
			w.Subresource = ""
			return w
		}
		w.Old = Node(cfg).Draw(t, "old")
		if rapid.IntRange(0, 19).Draw(t, "hostile") == 0 {
			hostile(t, cfg, &w)
		}
		if rapid.Bool().Draw(t, "similar") {
			similar(t, cfg, &w)
		}
		return w
	})
}

// hostile makes one part of the sent Node as large or as odd as it may be.
func hostile(t *rapid.T, cfg *gate.Configuration, w *gate.Write) {
	annotate := func(key, value string) {
		if w.New.Annotations == nil {
			w.New.Annotations = map[string]string{}
		}
		w.New.Annotations[key] = value
	}
	g := &cfg.Gates[0]
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		annotate(g.HeartbeatAnnotation(), strings.Repeat("v=1 ready=true ", 13000))
	case 1:
		annotate(g.BypassAnnotation(), "until=2026-11-29T12:00:00Z reason="+strings.Repeat("x", 200_000))
	case 2:
		for i := range 300 {
			w.New.Spec.Taints = append(w.New.Spec.Taints,
				corev1.Taint{Key: fmt.Sprintf("example.com/taint-%03d", i), Effect: corev1.TaintEffectPreferNoSchedule})
		}
	case 3:
		for i := range 200 {
			annotate(fmt.Sprintf("example.com/annotation-%03d", i), strings.Repeat("ä", 500))
		}
	case 4:
		for range 300 {
			w.New.ManagedFields = append(w.New.ManagedFields, ManagedFields().Draw(t, "managedFields")...)
		}
	case 5:
		annotate(g.HeartbeatAnnotation(), "v=1 ready=true time=2026-02-30T00:00:00Z\x00\x7f\u2028")
	}
}

// similar makes the sent Node the stored one with one part from another: the
// confinement of the agent is about single differences.
func similar(t *rapid.T, cfg *gate.Configuration, w *gate.Write) {
	other := w.New
	w.New = w.Old.DeepCopy()
	for range rapid.IntRange(0, 2).Draw(t, "parts") {
		switch rapid.IntRange(0, 6).Draw(t, "part") {
		case 0:
			w.New.Spec.Taints = other.Spec.Taints
		case 1:
			w.New.Annotations = other.Annotations
		case 2:
			w.New.Labels = other.Labels
		case 3:
			w.New.Spec.Taints = Taints(cfg, w.New.Spec.Taints).Draw(t, "taints")
		case 4:
			w.New.ManagedFields = other.ManagedFields
		case 5:
			w.New.Spec.Unschedulable = !w.New.Spec.Unschedulable
		case 6:
			w.New.Finalizers = []string{"example.com/hold"}
		}
	}
}

// Node generates a Node.
func Node(cfg *gate.Configuration) *rapid.Generator[*corev1.Node] {
	return rapid.Custom(func(t *rapid.T) *corev1.Node {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:              nodeName,
				UID:               types.UID(rapid.SampledFrom([]string{nodeUID, nodeUID, nodeUID, "", "other"}).Draw(t, "uid")),
				Labels:            Labels().Draw(t, "labels"),
				Annotations:       annotations(t, cfg),
				ManagedFields:     ManagedFields().Draw(t, "managedFields"),
				CreationTimestamp: metav1.NewTime(Now.Add(-time.Hour)),
			},
			Spec: corev1.NodeSpec{
				Taints:        Taints(cfg, nil).Draw(t, "taints"),
				PodCIDR:       rapid.SampledFrom([]string{"", "10.0.0.0/24"}).Draw(t, "podCIDR"),
				Unschedulable: rapid.Bool().Draw(t, "unschedulable"),
			},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: BootID().Draw(t, "bootID")}},
		}
		return node
	})
}

// BootID generates boot ids, mostly the one that heartbeats have.
func BootID() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{bootID, bootID, bootID, bootID, strings.ToUpper(bootID), "", "0", "-", "00000000-0000-0000-0000-000000000000",
		"boot with blanks", "böot", "\n"})
}

// Labels generates labels around the default node selector.
func Labels() *rapid.Generator[map[string]string] {
	return rapid.Custom(func(t *rapid.T) map[string]string {
		labels := map[string]string{"kubernetes.io/os": "linux"}
		for range rapid.IntRange(0, 2).Draw(t, "count") {
			key := rapid.SampledFrom([]string{"kubernetes.io/os", gate.ExemptLabel, "type", "eks.amazonaws.com/compute-type",
				"example.com/storage", "mesh.example.com/seen", "example.com/pool"}).Draw(t, "key")
			value := rapid.SampledFrom([]string{"", "true", "false", "linux", "windows", "virtual-kubelet", "fargate"}).Draw(t, "value")
			labels[key] = value
		}
		if rapid.IntRange(0, 9).Draw(t, "none") == 0 {
			return nil
		}
		return labels
	})
}

func annotations(t *rapid.T, cfg *gate.Configuration) map[string]string {
	annotations := map[string]string{}
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		if rapid.IntRange(0, 3).Draw(t, "heartbeat") > 0 {
			annotations[g.HeartbeatAnnotation()] = HeartbeatValue().Draw(t, "heartbeat value")
		}
		if rapid.IntRange(0, 5).Draw(t, "bypass") == 0 {
			annotations[g.BypassAnnotation()] = BypassValue().Draw(t, "bypass value")
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "others") {
		key := rapid.SampledFrom([]string{"example.com/note", "mesh.example.com/seen", "node.alpha.kubernetes.io/ttl"}).Draw(t, "key")
		annotations[key] = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "value")
	}
	if len(annotations) == 0 {
		return nil
	}
	return annotations
}

// HeartbeatValue generates the text of a heartbeat: valid, spoilt, or anything.
func HeartbeatValue() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			return Spoilt(heartbeatText(t)).Draw(t, "spoilt")
		case 1:
			return rapid.String().Draw(t, "anything")
		}
		return heartbeatText(t)
	})
}

func heartbeatText(t *rapid.T) string {
	ttl := rapid.SampledFrom([]int{60, 60, 60, 1, 900, 90, 0, 901}).Draw(t, "ttl")
	seconds := rapid.SampledFrom([]int{0, 0, 0, -1, 1, -ttl, -ttl - 1, -ttl + 1, ttl, ttl + 1, ttl - 1, -86400, 86400}).Draw(t, "seconds")
	return fmt.Sprintf("v=1 ready=%t time=%s ttl=%ds boot=%s node=%s%s",
		rapid.IntRange(0, 4).Draw(t, "ready") > 0,
		Now.Add(time.Duration(seconds)*time.Second).Format(gate.TimeLayout),
		ttl,
		rapid.SampledFrom([]string{bootID, bootID, bootID, bootID, "other", "00000000-0000-0000-0000-000000000000"}).Draw(t, "boot"),
		rapid.SampledFrom([]string{nodeUID, nodeUID, nodeUID, nodeUID, "other"}).Draw(t, "node"),
		rapid.SampledFrom([]string{"", " seq=17", " failing=socket,conflist pod=x", " a=b=c", " =x", " seq"}).Draw(t, "extra"))
}

// BypassValue generates the text of a bypass: valid, spoilt, or anything.
func BypassValue() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		seconds := rapid.SampledFrom([]int{3600, 3600, 1, 0, -1, 86400, 86401, 90000}).Draw(t, "seconds")
		value := fmt.Sprintf("until=%s reason=%s", Now.Add(time.Duration(seconds)*time.Second).Format(gate.TimeLayout),
			rapid.SampledFrom([]string{"repair", "repair of the mesh", "", "ä"}).Draw(t, "reason"))
		if rapid.IntRange(0, 9).Draw(t, "kind") == 0 {
			return Spoilt(value).Draw(t, "spoilt")
		}
		return value
	})
}

// Spoilt changes a text in one place. What JSON cannot carry is left out: the API
// server replaces it in passing.
func Spoilt(text string) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		insert := rapid.SampledFrom([]string{"", " ", "\n", "\x00", "ä", "9", "=", "2026-02-30", strings.Repeat("x", 512)}).Draw(t, "insert")
		drop := min(len(text), at+rapid.IntRange(0, 3).Draw(t, "drop"))
		return strings.ToValidUTF8(text[:at]+insert+text[drop:], "")
	})
}

// ManagedFields generates stamps, mostly at Now, in the years that JSON can carry.
func ManagedFields() *rapid.Generator[[]metav1.ManagedFieldsEntry] {
	times := []time.Time{
		Now, Now, Now, Now.Add(-time.Minute), Now.Add(time.Minute), {}, time.Unix(0, 0),
		time.Date(2019, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	return rapid.Custom(func(t *rapid.T) []metav1.ManagedFieldsEntry {
		var entries []metav1.ManagedFieldsEntry
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 3, 0}).Draw(t, "count") {
			entry := metav1.ManagedFieldsEntry{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate}
			if rapid.IntRange(0, 9).Draw(t, "stamped") > 0 {
				entry.Time = &metav1.Time{Time: rapid.SampledFrom(times).Draw(t, "time")}
			}
			entries = append(entries, entry)
		}
		return entries
	})
}

// Taints generates a list of taints, or changes the one given.
func Taints(cfg *gate.Configuration, from []corev1.Taint) *rapid.Generator[[]corev1.Taint] {
	keys := []string{"example.com/a", "node.kubernetes.io/unreachable"}
	for i := range cfg.Gates {
		keys = append(keys, cfg.Gates[i].Taint.Key)
	}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoSchedule,
		corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule}
	return rapid.Custom(func(t *rapid.T) []corev1.Taint {
		var taints []corev1.Taint
		for _, taint := range from {
			if rapid.IntRange(0, 3).Draw(t, "keep") > 0 {
				taints = append(taints, taint)
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "count") {
			taint := corev1.Taint{
				Key:    rapid.SampledFrom(keys).Draw(t, "key"),
				Value:  rapid.SampledFrom([]string{"", "", "startup", "mine"}).Draw(t, "value"),
				Effect: rapid.SampledFrom(effects).Draw(t, "effect"),
			}
			if rapid.IntRange(0, 3).Draw(t, "timed") == 0 {
				taint.TimeAdded = &metav1.Time{Time: rapid.SampledFrom([]time.Time{
					Now, Now.Add(time.Minute), Now.Add(-time.Hour), time.Date(2019, 12, 31, 23, 59, 59, 0, time.UTC),
					time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
				}).Draw(t, "time added")}
			}
			if !contains(taints, taint) {
				taints = append(taints, taint)
			}
		}
		return taints
	})
}

// contains: an API server accepts a pair of key and effect once.
func contains(taints []corev1.Taint, taint corev1.Taint) bool {
	for i := range taints {
		if taints[i].MatchTaint(&taint) {
			return true
		}
	}
	return false
}

// User generates a caller: an agent, with one kind of token or another, a
// kubelet, or anybody.
func User(cfg *gate.Configuration) *rapid.Generator[authenticationv1.UserInfo] {
	names := []string{"anybody", "", "system:node:" + nodeName}
	for i := range cfg.Gates {
		names = append(names, cfg.Gates[i].Agent.Username(), cfg.Gates[i].Agent.Username())
	}
	return rapid.Custom(func(t *rapid.T) authenticationv1.UserInfo {
		user := authenticationv1.UserInfo{
			Username: rapid.SampledFrom(names).Draw(t, "name"),
			Groups:   rapid.SampledFrom([][]string{nil, {"system:authenticated"}, {"system:nodes", "system:authenticated"}}).Draw(t, "groups"),
			Extra:    map[string]authenticationv1.ExtraValue{},
		}
		if rapid.IntRange(0, 3).Draw(t, "node extra") > 0 {
			user.Extra[gate.ExtraNodeName] = rapid.SampledFrom([]authenticationv1.ExtraValue{
				{nodeName}, {nodeName}, {nodeName}, {"elsewhere"}, {nodeName, "elsewhere"}, {},
			}).Draw(t, "node name")
		}
		if rapid.IntRange(0, 3).Draw(t, "pod extra") > 0 {
			user.Extra[gate.ExtraPodUID] = rapid.SampledFrom([]authenticationv1.ExtraValue{{"8125c226"}, {"8125c226"}, {}}).Draw(t, "pod uid")
		}
		return user
	})
}
