// Command nodegate-cni is a chained CNI plugin. While the gates of its node are
// closed it holds back the pods that are bound there already, which no taint does.
// It configures nothing: what the plugins before it have made is passed on as it
// came. Package hold says how it asks the node's agent.
package main

import (
	"context"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	build "github.com/nodegate/nodegate/internal/version"
)

func main() {
	switch os.Getenv("CNI_COMMAND") {
	case "DEL", "GC":
		// Nothing was made, and nothing may keep a pod from ending: skel would refuse
		// versions that are yet to come, and an entry that it cannot read.
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	// Whoever loses interest kills the plugin, and there is nothing to clean up.
	skel.PluginMainFuncs(newPlugin(context.Background(), os.Stdout).funcs(), version.All,
		"nodegate-cni "+build.String()+": holds pods back while the gates of their node are closed")
}
