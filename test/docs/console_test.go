package docs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const document = "# All\n\n" +
	"```yaml\n$ no command\n# no heading\n```\n\n" +
	"## First\n\nWords.\n\n" +
	"```console\n$ one --with \\\n    two\nIT   SAYS …\n\nand more\n$ three # exits with 3\n```\n\n" +
	"    $ no command\n\n" +
	"```\n$ no command\n```\n\n" +
	"## None\n\n## Second\n\n```console\n$ four\n```\n"

func TestParse(t *testing.T) {
	want := []Section{
		{Title: "First", Commands: []Command{
			{Line: 13, Text: "one --with \\\n    two", Shown: []string{"IT   SAYS …", "and more"}},
			{Line: 18, Text: "three # exits with 3", Code: 3},
		}},
		{Title: "Second", Commands: []Command{{Line: 32, Text: "four"}}},
	}
	if diff := cmp.Diff(want, parse(document)); diff != "" {
		t.Errorf("sections, -want +got:\n%s", diff)
	}
}

func TestMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		shown         []string
		written, want string
	}{
		"nothing shown":      {nil, "anything", ""},
		"others in between":  {[]string{"a b", "c"}, "x\n  a   b \ny\nc\n", ""},
		"anything in a line": {[]string{"node-… Fresh …s"}, "node-1   Fresh   12s\n", ""},
		"not at the end":     {[]string{"a"}, "a b\n", "a"},
		"another order":      {[]string{"a", "b"}, "b\na\n", "b"},
		"once is not twice":  {[]string{"a", "a"}, "a\n", "a"},
		"no expression":      {[]string{"a.c (x)"}, "abc (x)\n", "a.c (x)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := missing(tc.shown, tc.written); got != tc.want {
				t.Errorf("missing %q, want %q", got, tc.want)
			}
		})
	}
}

// TestShell_Notices: a document that is not true fails its test.
func TestShell_Notices(t *testing.T) {
	s := NewShell(t, "/nonexistent", t.TempDir())
	for name, tc := range map[string]struct {
		c     Command
		fails bool
	}{
		"as shown":      {Command{Text: "echo out; echo err >&2; exit 3", Shown: []string{"out", "err"}, Code: 3}, false},
		"another code":  {Command{Text: "exit 1"}, true},
		"another word":  {Command{Text: "echo out", Shown: []string{"in"}}, true},
		"no such thing": {Command{Text: "nonexistent-command", Shown: nil}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if fault := s.try(t.Context(), tc.c); (fault != nil) != tc.fails {
				t.Errorf("fault %v, want one: %t", fault, tc.fails)
			}
		})
	}
}
