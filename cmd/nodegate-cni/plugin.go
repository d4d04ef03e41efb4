package main

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
)

// plugin writes results, and nothing else, to stdout.
type plugin struct {
	ctx    context.Context
	stdout io.Writer
}

func newPlugin(ctx context.Context, stdout io.Writer) plugin {
	return plugin{ctx: ctx, stdout: stdout}
}

func (p plugin) funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.add, Check: p.check, Status: p.status}
}

// add waits until the pod may start.
func (p plugin) add(args *skel.CmdArgs) error {
	settings, err := netconf.ParseSettings(args.StdinData)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "nodegate-cni: "+err.Error(), "")
	}
	previous, err := parsePrevious(args.StdinData)
	if err != nil {
		return err
	}
	if err := hold.Wait(p.ctx, settings, netconf.ParseArgs(args.Args), began(args.Netns)); err != nil {
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return previous.print(p.stdout)
}

// began is when the runtime began with the pod, and so had loaded the list that it
// goes through: when it made the network namespace. The plugins before this one may
// have waited for an agent of their own since.
func began(netns string) time.Time {
	now := time.Now()
	if info, err := os.Stat(netns); err == nil {
		return now.Add(-max(0, now.Sub(info.ModTime())))
	}
	return now
}

// check has nothing of its own to look at in the pod: it must only have been
// called as ADD is.
func (p plugin) check(args *skel.CmdArgs) error {
	_, err := parsePrevious(args.StdinData)
	return err
}

// status fails, where that is asked for, while an ordinary pod would have to wait.
func (p plugin) status(args *skel.CmdArgs) error {
	settings, err := netconf.ParseSettings(args.StdinData)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "nodegate-cni: "+err.Error(), "")
	}
	if !settings.Status {
		return nil
	}
	if err := hold.Status(p.ctx, settings); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	return nil
}

// previous is what the plugins before this one have made.
type previous struct {
	text    json.RawMessage
	version string
	// converted is the same in the version that is asked for, if that is another.
	converted types.Result
}

func parsePrevious(data []byte) (previous, error) {
	asked, err := (&version.ConfigDecoder{}).Decode(data)
	if err != nil {
		return previous{}, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	var config struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return previous{}, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if len(config.PrevResult) == 0 || string(config.PrevResult) == "null" {
		return previous{}, types.NewError(types.ErrInvalidNetworkConfig,
			"nodegate-cni must be chained behind the plugin that makes the network: there is no prevResult", "")
	}
	p := previous{text: config.PrevResult, version: asked}
	if err := p.understand(); err != nil {
		return previous{}, types.NewError(types.ErrDecodingFailure, "reading prevResult: "+err.Error(), "")
	}
	return p, nil
}

// understand reads the result. It is in the version of the configuration, and says
// so, unless whoever calls is careless.
func (p *previous) understand() error {
	var said struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(p.text, &said); err != nil {
		return err
	}
	result, err := create.Create(cmp.Or(said.CNIVersion, p.version), p.text)
	if err != nil || said.CNIVersion == p.version {
		return err
	}
	p.converted, err = result.GetAsVersion(p.version)
	return err
}

// print passes the result on: to the byte, where it is in the right version.
func (p previous) print(to io.Writer) error {
	if p.converted != nil {
		return p.converted.PrintTo(to)
	}
	_, err := to.Write(append(p.text, '\n'))
	return err
}
