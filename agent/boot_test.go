package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	thisBoot  = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	otherBoot = "11111111-35f2-44b5-bea4-72f10b303c45"
)

func TestReadBootID(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"as the kernel writes it": {thisBoot + "\n", thisBoot},
		"without a final newline": {thisBoot, thisBoot},
		"in upper case":           {strings.ToUpper(thisBoot), strings.ToUpper(thisBoot)},
		"empty":                   {"", ""},
		"blank":                   {" \n", ""},
		"all zero":                {"00000000-0000-0000-0000-000000000000\n", ""},
		"two words":               {"de2d9a80 35f2", ""},
		"two lines":               {thisBoot + "\n" + otherBoot, ""},
		"not ASCII":               {"dé2d9a80", ""},
		"a control character":     {"de2d\x009a80", ""},
		"as long as it may be":    {strings.Repeat("a", 64) + "\n", strings.Repeat("a", 64)},
		"too long":                {strings.Repeat("a", 65), ""},
		"much too long":           {strings.Repeat("a", 1<<20), ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "boot_id")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			expectBootID(t, readBootID(path), tc.want)
		})
	}
	t.Run("missing", func(t *testing.T) { expectBootID(t, readBootID(filepath.Join(t.TempDir(), "no")), "") })
	t.Run("a directory", func(t *testing.T) { expectBootID(t, readBootID(t.TempDir()), "") })
}

func expectBootID(t *testing.T, got bootID, want string) {
	t.Helper()
	if got.id != want || (got.err == nil) != (want != "") {
		t.Fatalf("read %q (%v), want %q", got.id, got.err, want)
	}
	if want == "" && (got.differs("") == nil || got.differs("unknown") == nil) {
		t.Error("an unknown boot agrees with a Node")
	}
	if want != "" && (got.differs(want) != nil || got.differs(otherBoot) == nil || got.differs("") == nil) {
		t.Error("a boot agrees with another, or not with itself")
	}
	for _, respelt := range []string{strings.ToUpper(want), strings.ToLower(want)} {
		if respelt != want && got.differs(respelt) == nil {
			t.Errorf("%s agrees with %s", want, respelt)
		}
	}
}
