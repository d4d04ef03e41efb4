package conflist

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/libcni"
)

// parseList reads a list as libcni of a level does. The libcni that is built in
// is of the newest; for an older one, what that does not know is taken away
// first, and what it insists on is asked for.
func parseList(data []byte, l level) (*libcni.NetworkConfigList, error) {
	if l < libcni13 {
		older, err := asOlder(data, l)
		if err != nil {
			return nil, err
		}
		data = older
	}
	return libcni.NetworkConfFromBytes(data)
}

func asOlder(data []byte, l level) ([]byte, error) {
	var list map[string]any
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("error parsing configuration list: %w", err)
	}
	delete(list, "loadOnlyInlinedPlugins")
	if l < libcni12 {
		delete(list, "cniVersions")
		delete(list, "disableGC")
		if value, ok := list["disableCheck"]; ok {
			if _, ok := value.(bool); !ok {
				return nil, fmt.Errorf("error parsing configuration list: invalid disableCheck type %T", value)
			}
		}
	}
	if _, ok := list["name"]; ok { // its lack is the first thing that libcni tells
		if _, ok := list["plugins"]; !ok {
			return nil, errors.New("error parsing configuration list: no 'plugins' key")
		}
	}
	return json.Marshal(list)
}

// parseSingle reads a file of one plugin and makes a list of it, as runtimes do.
func parseSingle(data []byte, _ level) (*libcni.NetworkConfigList, error) {
	plugin, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(plugin) //nolint:staticcheck // deprecated, and what the runtimes call
}
