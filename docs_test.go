package nodegate_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs_NamesExist: the tests and rows that docs/failures.md names are there.
func TestDocs_NamesExist(t *testing.T) {
	text, err := os.ReadFile("docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := goFiles(t)
	var named int
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, match := range regexp.MustCompile("`([A-Za-z0-9_-]+)`").FindAllStringSubmatch(cells[3], -1) {
			named++
			if !exists(sources, match[1]) {
				t.Errorf("docs/failures.md names %q, which is no test and no row", match[1])
			}
		}
	}
	if named == 0 {
		t.Error("no names were found")
	}
}

// exists looks for a test function, a row's id, or the name of a spec. Rows of
// malformed heartbeats are named by what is wrong with them.
func exists(sources, name string) bool {
	if strings.HasPrefix(name, "Test") {
		return strings.Contains(sources, "func "+name+"(")
	}
	row := strings.TrimPrefix(name, "malformed-")
	return strings.Contains(sources, `"`+name+`"`) || strings.Contains(sources, `"`+name+`:`) || strings.Contains(sources, `"`+row+`":`)
}

func goFiles(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
