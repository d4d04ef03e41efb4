package manifests

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed profiles/*.yaml
var profiles embed.FS

// Profiles are the names of the configurations for known agents, in order.
func Profiles() []string {
	entries, _ := profiles.ReadDir("profiles") // it is embedded
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), ".yaml")
	}
	return names
}

// Profile is the text of a configuration for a known agent.
func Profile(name string) (string, error) {
	text, err := profiles.ReadFile(path.Join("profiles", name+".yaml"))
	if err != nil {
		return "", fmt.Errorf("there is no profile %q; there are: %s", name, strings.Join(Profiles(), ", "))
	}
	return string(text), nil
}
