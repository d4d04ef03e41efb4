package lifecycle

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/nodegate/nodegate/test/docs"
)

// TestInstallDocument: every command of docs/install.md does and writes what stands
// there, one after the other, with the README's configuration.
func TestInstallDocument(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	shell := docs.NewShell(t, f.kubeconfig, programs)
	shell.Run(t, docs.Command{Text: fmt.Sprintf("cat > config.yaml <<'END'\n%sEND\n", readmeConfiguration(t))})
	for _, section := range docs.Sections(t, "install.md") {
		if section.Title == "Uninstall" {
			f.await("open, with a heartbeat", f.serves)
		}
		t.Run(section.Title, func(t *testing.T) {
			for _, command := range section.Commands {
				shell.Run(t, command)
			}
		})
	}
	f.expectNoFlaps()
}

func readmeConfiguration(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatal("the README has no configuration")
	}
	return string(found[1])
}
