//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nodegate/nodegate/test/e2e/record"
)

// pluginType is the chained plugin's, and its binary's name.
const pluginType = "mesh-cni"

// runPlugin is the chained plugin. Like many, it lets a pod start though its mesh is
// away: that pod has a network, and nothing of what the mesh does.
func runPlugin(getenv func(string) string, in io.Reader, out io.Writer) int {
	var config struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.NewDecoder(in).Decode(&config); err != nil {
		fmt.Fprintf(out, `{"cniVersion": "0.4.0", "code": 6, "msg": %q}`, err.Error())
		return 1
	}
	switch getenv("CNI_COMMAND") {
	case "VERSION":
		fmt.Fprint(out, `{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}`)
	case "ADD":
		if err := note(getenv); err != nil {
			fmt.Fprintf(out, `{"cniVersion": %q, "code": 5, "msg": %q}`, config.CNIVersion, err.Error())
			return 1
		}
		_, _ = out.Write(config.PrevResult)
	}
	return 0
}

// note adds a line to the record of the mesh.
func note(getenv func(string) string) error {
	args := map[string]string{}
	for pair := range strings.SplitSeq(getenv("CNI_ARGS"), ";") {
		key, value, _ := strings.Cut(pair, "=")
		args[key] = value
	}
	network, err := record.Namespace(getenv("CNI_NETNS"))
	if err != nil {
		return err
	}
	add := record.Add{Time: time.Now(), Pod: args["K8S_POD_NAMESPACE"] + "/" + args["K8S_POD_NAME"], UID: args["K8S_POD_UID"], Network: network}
	if connection, err := net.DialTimeout("unix", socketPath, time.Second); err == nil {
		add.Served = true
		_ = connection.Close()
	}
	return record.Append(record.AddsFile, add)
}
