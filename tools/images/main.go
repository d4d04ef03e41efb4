// Command images builds the container images of nodegate-controller and
// nodegate-agent, without a container runtime: each is a static program on an empty
// base, the agent's with the CNI plugin beside it, for every platform, as an OCI
// archive. The same source, version and Go make the same digest. Arguments of the
// form name=package are programs of the module that get an image as well.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// options are what the command can be told.
type options struct {
	root, out         string
	version, revision string
	platform, push    string
	more              []string
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder of the module")
	flag.StringVar(&o.out, "out", "out", "folder for the archives")
	flag.StringVar(&o.version, "version", "dev", "version, which is also the tag")
	flag.StringVar(&o.revision, "revision", "", "commit that is built, for a label")
	flag.StringVar(&o.platform, "platform", "", "build for this `os/architecture` alone")
	flag.StringVar(&o.push, "push", "", "also push to this `repository`, such as registry.example.com/nodegate")
	flag.Parse()
	o.more = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	programs := []program{
		{Name: "nodegate-controller", Title: "Keeps gated nodes closed until their agents serve"},
		{Name: "nodegate-agent", Title: "Shows that its node serves, and opens its gates", Beside: []string{"./cmd/nodegate-cni"}},
	}
	for i := range programs {
		programs[i].Package = "./cmd/" + programs[i].Name
	}
	for _, argument := range o.more {
		name, pkg, found := strings.Cut(argument, "=")
		if !found {
			return fmt.Errorf("the argument %q is not of the form name=package", argument)
		}
		programs = append(programs, program{Name: name, Title: "For tests", Package: pkg})
	}
	platforms, err := platforms(o.platform)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		p.Root, p.Version, p.Revision, p.Platforms = o.root, o.version, o.revision, platforms
		if err := p.make(ctx, o.out, o.push); err != nil {
			return fmt.Errorf("making %s: %w", p.Name, err)
		}
	}
	return nil
}

// make builds the image, writes the archive and pushes to a repository, if there is
// one.
func (p program) make(ctx context.Context, out, push string) error {
	index, err := p.image(ctx)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	archive := filepath.Join(out, p.Name+".tar")
	if err := p.archive(index, archive); err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	fmt.Printf("%s  %s\n", digest, archive)
	if push == "" {
		return nil
	}
	return p.push(ctx, index, digest, push)
}

func (p program) push(ctx context.Context, index v1.ImageIndex, digest v1.Hash, repository string) error {
	tag, err := name.NewTag(repository + "/" + p.Name + ":" + p.Version)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("pushing %s: %w", tag, err)
	}
	fmt.Printf("%s  %s\n", digest, tag)
	return nil
}
