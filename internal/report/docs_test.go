package report

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestDocs_NameEveryField: what programs read is documented.
func TestDocs_NameEveryField(t *testing.T) {
	data, err := os.ReadFile("../../docs/output.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	seen := map[reflect.Type]bool{}
	for _, root := range []any{Status{}, Row{}, Explanation{}, Heartbeats{}, Versions{}} {
		fields(reflect.TypeOf(root), seen, func(name string) {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("docs/output.md does not name the field %q", name)
			}
		})
	}
	source, err := os.ReadFile("findings.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := regexp.MustCompile(`FindingKind = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(kinds) == 0 {
		t.Error("there are no kinds of findings")
	}
	for _, kind := range kinds {
		if !strings.Contains(text, "| `"+kind[1]+"` |") {
			t.Errorf("docs/output.md does not name the finding %q", kind[1])
		}
	}
}

// fields are those of a type and of all that it holds.
func fields(of reflect.Type, seen map[reflect.Type]bool, do func(name string)) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		fields(of.Elem(), seen, do)
	case reflect.Struct:
		if seen[of] || !strings.HasSuffix(of.PkgPath(), "internal/report") {
			return
		}
		seen[of] = true
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" {
				do(name)
			}
			fields(field.Type, seen, do)
		}
	}
}
