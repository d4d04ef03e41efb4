package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"time"

	"github.com/distribution/reference"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// nonroot is nobody's user and group, as the manifests have it.
	nonroot = "65532:65532"

	versionVariable = "github.com/nodegate/nodegate/internal/version.version"
)

// platforms are those that images are built for: all, unless one is named.
func platforms(one string) ([]v1.Platform, error) {
	if one == "" {
		return []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}, nil
	}
	platform, err := v1.ParsePlatform(one)
	if err != nil {
		return nil, fmt.Errorf("reading the platform: %w", err)
	}
	return []v1.Platform{*platform}, nil
}

// program is what an image is made of.
type program struct {
	Name, Title       string
	Root, Package     string
	Version, Revision string
	// Beside are the packages of programs that lie beside it, each by the name of its
	// folder.
	Beside []string
	// Platforms are those that it is built for.
	Platforms []v1.Platform
}

// image is one image for each platform.
func (p program) image(ctx context.Context) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range p.Platforms {
		binary, err := p.build(ctx, platform, p.Package)
		if err != nil {
			return nil, err
		}
		files := []file{{p.Name, binary}}
		for _, pkg := range p.Beside {
			if binary, err = p.build(ctx, platform, pkg); err != nil {
				return nil, err
			}
			files = append(files, file{path.Base(pkg), binary})
		}
		image, err := p.imageFor(platform, files)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	return index, nil
}

// file is a program in the image.
type file struct {
	name   string
	binary []byte
}

// build compiles a program. Neither the folder nor the time shows in it.
func (p program) build(ctx context.Context, platform v1.Platform, pkg string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is the system's to clear
	out := filepath.Join(dir, p.Name)
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -buildid= -X "+versionVariable+"="+p.Version, "-o", out, pkg)
	command.Dir = p.Root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+platform.OS, "GOARCH="+platform.Architecture)
	if said, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling for %s: %w\n%s", platform, err, said)
	}
	return os.ReadFile(out)
}

// imageFor puts programs on an empty base, the first of which is what it runs.
func (p program) imageFor(platform v1.Platform, files []file) (v1.Image, error) {
	content, err := pack(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Config = v1.Config{User: nonroot, Entrypoint: []string{"/" + p.Name}, Labels: p.labels()}
	return mutate.ConfigFile(image, config)
}

func (p program) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       p.Name,
		"org.opencontainers.image.description": p.Title,
		"org.opencontainers.image.version":     p.Version,
		"org.opencontainers.image.source":      "https://github.com/nodegate/nodegate",
	}
	if p.Revision != "" {
		labels["org.opencontainers.image.revision"] = p.Revision
	}
	return labels
}

// pack is an archive of programs, which anybody may run.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, f := range files {
		if err := add(archive, f.name, 0o555, f.binary); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), archive.Close()
}

func add(archive *tar.Writer, name string, mode int64, data []byte) error {
	header := &tar.Header{Name: name, Mode: mode, Size: int64(len(data)), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(data)
	return err
}

// archive writes the image as an OCI archive, under the name by which the manifests
// ask for it.
func (p program) archive(index v1.ImageIndex, path string) error {
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is the system's to clear
	named, err := reference.ParseDockerRef(p.Name + ":" + p.Version)
	if err != nil {
		return fmt.Errorf("naming the image: %w", err)
	}
	target, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := target.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": p.Version,
		"io.containerd.image.name":          named.String(),
	})); err != nil {
		return err
	}
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	files := os.DirFS(dir)
	err = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return add(archive, name, 0o444, data)
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}
