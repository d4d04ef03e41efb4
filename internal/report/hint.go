package report

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writer is who owns the list of taints, by managedFields.
func writer(node *corev1.Node) (metav1.ManagedFieldsEntry, bool) {
	var last metav1.ManagedFieldsEntry
	found := false
	for _, entry := range node.ManagedFields {
		if ownsTaints(entry) && (!found || entry.Time != nil && (last.Time == nil || last.Time.Before(entry.Time))) {
			last, found = entry, true
		}
	}
	return last, found
}

func ownsTaints(entry metav1.ManagedFieldsEntry) bool {
	var owned map[string]map[string]json.RawMessage
	if entry.FieldsV1 == nil || entry.Subresource != "" {
		return false
	}
	// What is no set of fields owns nothing.
	_ = json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned)
	_, ok := owned["f:spec"]["f:taints"]
	return ok
}

// hint names the writer of the taints, if there is one. It is no more than a hint: what admission adds is owned by nobody, or by whoever's
// write it was added to, who may just have tried to remove it.
func hint(node *corev1.Node) string {
	entry, ok := writer(node)
	if !ok {
		return ""
	}
	at := "at a time unknown"
	if entry.Time != nil {
		at = "at " + stamp(entry.Time.Time)
	}
	return fmt.Sprintf("%s wrote spec.taints last, %s, if managedFields are right: they name the wrong one where admission has changed what somebody else wrote", entry.Manager, at)
}
