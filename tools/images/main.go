// Command images builds the container images of nodegate-controller and
// nodegate-agent, without a container runtime: each is one static program on an
// empty base, for every platform, as an OCI archive. The same source, version and
// Go make the same digest.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	root := flag.String("root", ".", "folder of the module")
	out := flag.String("out", "out", "folder for the archives")
	version := flag.String("version", "dev", "version, which is also the tag")
	revision := flag.String("revision", "", "commit that is built, for a label")
	push := flag.String("push", "", "also push to this `repository`, such as registry.example.com/nodegate")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *root, *out, *version, *revision, *push)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, out, version, revision, push string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, p := range []program{
		{Name: "nodegate-controller", Title: "Keeps gated nodes closed until their agents serve"},
		{Name: "nodegate-agent", Title: "Shows that its node serves, and opens its gates"},
	} {
		p.Root, p.Package, p.Version, p.Revision = root, "./cmd/"+p.Name, version, revision
		index, err := p.image(ctx)
		if err != nil {
			return fmt.Errorf("building %s: %w", p.Name, err)
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
			continue
		}
		tag, err := name.NewTag(push + "/" + p.Name + ":" + version)
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
		fmt.Printf("%s  %s\n", digest, tag)
	}
	return nil
}
