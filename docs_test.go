package nodegate_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocs_NamesExist: the tests and rows that the documents name are there. In
// docs/failures.md they stand in the third column, in docs/security.md in brackets.
func TestDocs_NamesExist(t *testing.T) {
	sources := goFiles(t)
	for file, where := range map[string]string{
		"docs/failures.md": `(?m)^\|[^|]*\|[^|]*\|([^|]*)\|$`,
		"docs/security.md": "\\((`[^()]*`)\\)",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var named int
		for _, place := range regexp.MustCompile(where).FindAllStringSubmatch(string(text), -1) {
			for _, name := range regexp.MustCompile("`([A-Za-z0-9_-]+)`").FindAllStringSubmatch(place[1], -1) {
				named++
				if !exists(sources, name[1]) {
					t.Errorf("%s names %q, which is no test and no row", file, name[1])
				}
			}
		}
		if named < 20 {
			t.Errorf("%s names %d tests and rows, there should be more", file, named)
		}
	}
}

// exists looks for a test function, a row's id, or the name of a spec. Rows of
// malformed heartbeats are named by what is wrong with them.
func exists(sources, name string) bool {
	if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") {
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
