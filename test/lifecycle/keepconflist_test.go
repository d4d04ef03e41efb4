package lifecycle

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/nodegate/nodegate/gate"
)

// standIn is a CNI plugin that makes nothing, and says that it has.
const standIn = `#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion": "1.0.0", "dns": {}}'
`

// TestUninstall_KeepConflist: the gated plugin stays in the lists, with its entry;
// nodegate-cni goes, under which no pod could start without an agent. Its binary stays
// for the pods that were started with it.
func TestUninstall_KeepConflist(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	before := f.everything()
	config := strings.ReplaceAll(configuration, "gates:\n", "cni: {socket: "+f.TempDir()+"/answers/cni.sock, timeout: 1s}\ngates:\n") +
		"  - {name: holds, conflist: {pluginType: nodegate-cni}}\n"
	for _, n := range f.nodes {
		f.chainOwn(n, config)
	}
	path := filepath.Join(f.TempDir(), "gates.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	f.done("install", "--config="+path, "--mode=enforce")
	f.await("open, with a heartbeat", f.serves)
	lists := map[string]*libcni.NetworkConfigList{}
	for _, n := range f.nodes {
		lists[n.name] = f.list(n, "bridge", gate.CNIPlugin, pluginType)
		var refused *types.Error
		if err := f.runtime(n).add(t, lists[n.name]); !errors.As(err, &refused) || refused.Code != types.ErrTryAgainLater {
			t.Errorf("a pod on %s, where no agent answers: %v", n.name, err)
		}
	}
	f.done("uninstall", "--yes", "--keep-conflist")
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
	for _, n := range f.nodes {
		if err := f.runtime(n).add(t, f.list(n, "bridge", pluginType)); err != nil {
			t.Errorf("a pod on %s, when nodegate is gone: %v", n.name, err)
		}
		if err := f.runtime(n).del(t, lists[n.name]); err != nil {
			t.Errorf("the end of a pod on %s that was started before: %v", n.name, err)
		}
		for file, stays := range map[string]bool{
			gate.DefaultEntryFile(gate.DefaultNetDir, pluginType): true, gate.DefaultEntryFile(gate.DefaultNetDir, gate.CNIPlugin): false,
			gate.DefaultBinDir + "/" + gate.CNIPlugin: true, gate.DefaultBinDir + "/" + pluginType: true,
		} {
			if _, err := os.Stat(filepath.Join(n.dir, file)); (err == nil) != stays || !stays && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("node %s, %s: %v, want it to stay: %t", n.name, file, err, stays)
			}
		}
	}
}

// chainOwn has nodegate-cni chained on a node, by what an agent's pod runs there.
func (f *fleet) chainOwn(n *node, config string) {
	f.Helper()
	net, bin := filepath.Join(n.dir, gate.DefaultNetDir), filepath.Join(n.dir, gate.DefaultBinDir)
	local := filepath.Join(n.dir, "gates.yaml")
	text := strings.ReplaceAll(config, "pluginType: nodegate-cni", "pluginType: nodegate-cni, dir: "+net+", binDir: "+bin)
	if err := os.WriteFile(local, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"bridge", pluginType} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(standIn), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"install-cni", "--config=" + local},
		{"conflist", "--plugin-type=" + gate.CNIPlugin, "--dir=" + net, "--bin-dir=" + bin, "--repair"},
	} {
		if said, err := exec.CommandContext(f.Context(), filepath.Join(programs, "nodegate-agent"), args...).CombinedOutput(); err != nil {
			f.Fatalf("%v: %v\n%s", args, err, said)
		}
	}
}

// list is the one that a node's runtime loads, which must have these plugins.
func (f *fleet) list(n *node, plugins ...string) *libcni.NetworkConfigList {
	f.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(n.dir, gate.DefaultNetDir, "10-base.conflist"))
	if err != nil {
		f.Fatal(err)
	}
	var found []string
	for _, plugin := range list.Plugins {
		found = append(found, plugin.Network.Type)
	}
	if diff := cmp.Diff(plugins, found); diff != "" {
		f.Errorf("node %s: -want +got:\n%s", n.name, diff)
	}
	return list
}

// runtime calls plugins as a node's runtime does, for a pod.
type runtime struct {
	*libcni.CNIConfig
	pod *libcni.RuntimeConf
}

func (f *fleet) runtime(n *node) runtime {
	return runtime{
		libcni.NewCNIConfigWithCacheDir([]string{filepath.Join(n.dir, gate.DefaultBinDir)}, filepath.Join(n.dir, "cache"), nil),
		&libcni.RuntimeConf{ContainerID: "c0ffee", NetNS: "/run/netns/none", IfName: "eth0", Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart"}, {"K8S_POD_INFRA_CONTAINER_ID", "c0ffee"},
		}},
	}
}

func (r runtime) add(t *testing.T, list *libcni.NetworkConfigList) error {
	t.Helper()
	_, err := r.AddNetworkList(t.Context(), list, r.pod)
	return err
}

func (r runtime) del(t *testing.T, list *libcni.NetworkConfigList) error {
	t.Helper()
	return r.DelNetworkList(t.Context(), list, r.pod)
}
