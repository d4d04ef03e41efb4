package main

import (
	"archive/tar"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// hello is a program in a folder of its own, which tells its version as those of
// nodegate do.
func hello(t *testing.T) program {
	t.Helper()
	root := filepath.Join(t.TempDir(), "hello")
	if err := os.CopyFS(root, os.DirFS("testdata/hello")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(root, "internal", "version"), os.DirFS("../../internal/version")); err != nil {
		t.Fatal(err)
	}
	all, err := platforms("")
	if err != nil {
		t.Fatal(err)
	}
	return program{Name: "hello", Title: "Says hello", Root: root, Package: ".", Beside: []string{"./beside"}, Version: "v1.2.3", Revision: "abc", Platforms: all}
}

func build(t *testing.T, p program) v1.ImageIndex {
	t.Helper()
	index, err := p.image(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestImage_IsReproducible: the same source in two folders has one digest, as an
// image and as an archive.
func TestImage_IsReproducible(t *testing.T) {
	var digests, archives []string
	for range 2 {
		p := hello(t)
		index := build(t, p)
		digest, err := index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "hello.tar")
		if err := p.archive(index, path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		digests, archives = append(digests, digest.String()), append(archives, string(data))
	}
	if digests[0] != digests[1] || archives[0] != archives[1] {
		t.Errorf("two builds differ: %v", digests)
	}
	other := hello(t)
	other.Version = "v1.2.4"
	if digest, err := build(t, other).Digest(); err != nil || digest.String() == digests[0] {
		t.Errorf("another version has the same digest (%v)", err)
	}
}

// TestImage_HoldsTheProgramAlone: with what lies beside it, no shell, no user of power, and the labels.
func TestImage_HoldsTheProgramAlone(t *testing.T) {
	p := hello(t)
	index := build(t, p)
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 2 || len(p.Platforms) != 2 {
		t.Fatalf("%d images, want one for each platform", len(manifest.Manifests))
	}
	for i, platform := range p.Platforms {
		descriptor := manifest.Manifests[i]
		if !descriptor.Platform.Equals(platform) {
			t.Errorf("image %d is for %s, want %s", i, descriptor.Platform, platform)
		}
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != nonroot || config.Config.Entrypoint[0] != "/hello" || config.Architecture != platform.Architecture {
			t.Errorf("configuration %+v", config)
		}
		for label, want := range map[string]string{"title": "hello", "version": "v1.2.3", "revision": "abc"} {
			if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("label %s is %q, want %q", label, got, want)
			}
		}
		if got := files(t, mutate.Extract(image)); strings.Join(got, " ") != "hello beside" {
			t.Errorf("it holds %v", got)
		}
	}
}

// files are the names in an archive.
func files(t *testing.T, archive io.ReadCloser) []string {
	t.Helper()
	defer archive.Close()
	var names []string
	reader := tar.NewReader(archive)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
}

// TestArchive_IsALayout: what is in the archive is the image.
func TestArchive_IsALayout(t *testing.T) {
	p := hello(t)
	index := build(t, p)
	path := filepath.Join(t.TempDir(), "hello.tar")
	if err := p.archive(index, path); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := t.TempDir()
	reader := tar.NewReader(file)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := read.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest != digest {
		t.Errorf("the archive holds %+v, want %s", manifest.Manifests, digest)
	}
	if got := manifest.Manifests[0].Annotations["io.containerd.image.name"]; !strings.HasSuffix(got, "/library/hello:v1.2.3") {
		t.Errorf("its name is %q", got)
	}
}

// TestImage_CanBePushed: a registry takes the image for what it is.
func TestImage_CanBePushed(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	tag, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/nodegate/hello:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	index := build(t, hello(t))
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(pushed); err != nil {
		t.Error(err)
	}
	want, _ := index.Digest()
	if got, err := pushed.Digest(); err != nil || got != want {
		t.Errorf("pushed %s (%v), want %s", got, err, want)
	}
}

// TestBuild_TellsItsVersion: the program that is built knows which version it is.
func TestBuild_TellsItsVersion(t *testing.T) {
	binary, err := hello(t).build(t.Context(), v1.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}, ".")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(path, binary, 0o700); err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), path).CombinedOutput()
	if err != nil || string(said) != "hello v1.2.3\n" {
		t.Errorf("it says %q (%v)", said, err)
	}
}
