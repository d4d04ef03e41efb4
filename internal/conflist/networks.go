package conflist

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
)

// bystander tells the networks that container tools and packages leave in the
// directory, and which no cluster runs on: podman's, nerdctl's, the bridge that
// comes with CRI-O, a loopback. In the time before the cluster's network is
// installed a runtime may load one of them all the same.
func (a *Active) bystander() bool {
	main := a.Plugins()[0].Network
	name := filepath.Base(a.Path)
	switch {
	case main.Type == "loopback":
		return true
	case a.Network == "podman", a.Network == "crio" && main.Type == "bridge":
		return true
	case strings.HasPrefix(name, "nerdctl-"):
		return true
	}
	var marked struct {
		NerdctlID any `json:"nerdctlID"`
	}
	return json.Unmarshal(a.content.data, &marked) == nil && marked.NerdctlID != nil
}

// isDelegator tells the main plugins that run other configurations of the
// directory, or such as stand in their own.
func isDelegator(pluginType string) bool {
	return slices.Contains([]string{"multus", "multus-shim", "multus-cni"}, pluginType)
}

// mentions reports whether anywhere in a JSON document an object has the plugin
// as its type. What is no JSON mentions nothing, for no plugin can run it.
func mentions(document []byte, pluginType string) bool {
	var content any
	if json.Unmarshal(document, &content) != nil {
		return false
	}
	return mentioned(content, pluginType)
}

func mentioned(content any, pluginType string) bool {
	switch value := content.(type) {
	case map[string]any:
		if value[typeKey] == pluginType {
			return true
		}
		for _, inner := range value {
			if mentioned(inner, pluginType) {
				return true
			}
		}
	case []any:
		for _, inner := range value {
			if mentioned(inner, pluginType) {
				return true
			}
		}
	}
	return false
}
