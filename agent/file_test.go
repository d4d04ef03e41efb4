package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

func TestFileCheck(t *testing.T) {
	now := testNow()
	for name, tc := range map[string]struct {
		given  func(t *testing.T, path string)
		maxAge time.Duration
		want   string
	}{
		"a file":                        {func(t *testing.T, path string) { write(t, path, "") }, 0, ""},
		"a directory":                   {func(t *testing.T, path string) { mkdir(t, path) }, 0, ""},
		"a socket":                      {func(t *testing.T, path string) { listen(t, path) }, 0, ""},
		"a link to a file":              {func(t *testing.T, path string) { write(t, path+"1", ""); link(t, path+"1", path) }, 0, ""},
		"nothing":                       {func(*testing.T, string) {}, 0, ": absent"},
		"a dangling link":               {func(t *testing.T, path string) { link(t, path+"1", path) }, 0, ": absent"},
		"a link to itself":              {func(t *testing.T, path string) { link(t, path, path) }, 0, "too many levels of symbolic links"},
		"an old file, of any age":       {changed(now.Add(-24 * time.Hour)), 0, ""},
		"a young file":                  {changed(now.Add(-59 * time.Second)), time.Minute, ""},
		"exactly as old as it may be":   {changed(now.Add(-time.Minute)), time.Minute, ": last changed at 2026-11-29T11:01:53Z, more than 1m0s ago"},
		"of a clock that was never set": {changed(time.Unix(40, 0)), time.Minute, ": last changed at 1970-01-01T00:00:40Z, more than 1m0s ago"},
		"a little ahead":                {changed(now.Add(59 * time.Second)), time.Minute, ""},
		"of tomorrow":                   {changed(now.Add(24 * time.Hour)), time.Minute, ": last changed at 2026-11-30T11:02:53Z, more than 1m0s ahead of the node's clock"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "f")
			tc.given(t, path)
			c := gate.FileCheck{Path: path}
			if tc.maxAge > 0 {
				c.MaxAge = &metav1.Duration{Duration: tc.maxAge}
			}
			check, ok := newFileCheck(c).(fileCheck)
			if !ok {
				t.Fatal("it is of another type")
			}
			check.now = testNow
			expectAnswer(t, check.Check(t.Context(), nil), tc.want)
		})
	}
}

// changed makes a file that was last changed at a time.
func changed(at time.Time) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		t.Helper()
		write(t, path, "")
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}
