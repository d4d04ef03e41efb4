package conflist

import "encoding/json"

// isDelegator tells the main plugins that run other configurations of the
// directory, or such as stand in their own.
func isDelegator(pluginType string) bool {
	return pluginType == "multus" || pluginType == "multus-shim"
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
		if value["type"] == pluginType {
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
