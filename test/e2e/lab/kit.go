//go:build linux

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// kitVariable has what [Kit.Export] exports.
const kitVariable = "NODEGATE_E2E"

// Kit says where everything is that a lab is made of.
type Kit struct {
	// Dir is an empty folder, which is lost in the end; Logs is kept.
	Dir, Logs string
	// ControlPlane, Debian and Images are folders of programs, unpacked packages and
	// archives of images; Revision is the tag of the latter.
	ControlPlane, Debian, Images, Revision string
	// Program becomes the process 1 of machines, Tests are the tests, and Kubectl is
	// the plugin kubectl-nodegate.
	Program, Tests, Kubectl string
	// Cgroup is the folder of all control groups.
	Cgroup string
}

// Export hands the kit on to processes that are started from now on.
func (k *Kit) Export() error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.Setenv(kitVariable, string(text))
}

// FindKit returns the kit that was handed on.
func FindKit() (*Kit, error) {
	text := os.Getenv(kitVariable)
	if text == "" {
		return nil, errors.New("the end-to-end tests are run by make e2e")
	}
	k := &Kit{}
	if err := json.Unmarshal([]byte(text), k); err != nil {
		return nil, fmt.Errorf("reading %s: %w", kitVariable, err)
	}
	return k, nil
}
