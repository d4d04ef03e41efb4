package nodegate_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nodegate/nodegate/gate"
)

// TestREADME_IsTrue: the configuration in the README is one, and the files that it
// names are there.
func TestREADME_IsTrue(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	_, rest, found := strings.Cut(text, "```yaml\n")
	example, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("there is no example of a configuration")
	}
	if _, err := gate.ParseConfiguration([]byte(example)); err != nil {
		t.Errorf("the example of a configuration: %v", err)
	}
	files := regexp.MustCompile(`(?:manifests|docs|test)/[a-z0-9/.-]+\.(?:yaml|go|md)`).FindAllString(text, -1)
	if len(files) == 0 {
		t.Error("it names no file")
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("it names a file that is not there: %v", err)
		}
	}
}

// TestDocs_Configurations: the configurations in the guides are some, and so are
// the profiles.
func TestDocs_Configurations(t *testing.T) {
	examples := map[string]int{"docs/checks.md": 1, "docs/cni.md": 1, "docs/configure.md": 2}
	for file, want := range examples {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range strings.Split(string(data), "```yaml\n")[1:] {
			example, _, _ := strings.Cut(example, "```")
			if !strings.HasPrefix(example, "apiVersion: nodegate.io/") {
				continue
			}
			want--
			if _, err := gate.ParseConfiguration([]byte(example)); err != nil {
				t.Errorf("%s: %v in\n%s", file, err, example)
			}
		}
		if want != 0 {
			t.Errorf("%s has another number of configurations, by %d", file, -want)
		}
	}
	profiles, err := filepath.Glob("manifests/profiles/*.yaml")
	if err != nil || len(profiles) == 0 {
		t.Fatalf("looking for profiles: found %d, %v", len(profiles), err)
	}
	for _, profile := range profiles {
		if _, err := gate.LoadConfiguration(profile); err != nil {
			t.Error(err)
		}
	}
}
