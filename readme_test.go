package nodegate_test

import (
	"os"
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

// TestDocs_Configurations: the configurations in docs/checks.md are some.
func TestDocs_Configurations(t *testing.T) {
	data, err := os.ReadFile("docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := strings.Split(string(data), "```yaml\n")[1:]
	if len(examples) == 0 {
		t.Error("there are none")
	}
	for _, example := range examples {
		example, _, _ := strings.Cut(example, "```")
		if _, err := gate.ParseConfiguration([]byte(example)); err != nil {
			t.Errorf("%v in\n%s", err, example)
		}
	}
}
