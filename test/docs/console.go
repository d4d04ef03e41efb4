package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nodegate/nodegate/test/cluster"
)

// Section is what stands in a document below a heading, up to the next one.
type Section struct {
	Title    string
	Commands []Command
}

// Command is one that a document shows, and what it says of it.
type Command struct {
	// Line is the document's, from 1.
	Line int
	Text string
	// Shown are the lines that it is said to write.
	Shown []string
	Code  int
}

const (
	prompt = "$ "
	fence  = "```"
)

// parse finds the sections of a document that have commands.
func parse(document string) []Section {
	var sections []Section
	var here Section
	end := func() {
		if len(here.Commands) > 0 {
			sections = append(sections, here)
		}
	}
	block := ""
	lines := strings.Split(document, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch mark, fenced := strings.CutPrefix(strings.TrimSpace(line), fence); {
		case fenced && block != "":
			block = ""
		case fenced:
			block = mark + " " // that of a block without a mark is not empty
		case block == "" && strings.HasPrefix(line, "#"):
			end()
			here = Section{Title: strings.TrimSpace(strings.TrimLeft(line, "#"))}
		case block == "console " && strings.HasPrefix(line, prompt):
			c := Command{Line: i + 1, Text: strings.TrimPrefix(line, prompt)}
			for strings.HasSuffix(c.Text, `\`) && i+1 < len(lines) {
				i++
				c.Text += "\n" + lines[i] // as the shell reads it
			}
			c.Code = exitCode(c.Text)
			here.Commands = append(here.Commands, c)
		case block == "console " && len(here.Commands) > 0 && strings.TrimSpace(line) != "":
			last := &here.Commands[len(here.Commands)-1]
			last.Shown = append(last.Shown, line)
		}
	}
	end()
	return sections
}

var exits = regexp.MustCompile(`# exits with (\d+)$`)

func exitCode(text string) int {
	match := exits.FindStringSubmatch(text)
	if match == nil {
		return 0
	}
	code, _ := strconv.Atoi(match[1]) // digits, by the expression
	return code
}

// missing is the first of the lines shown that was not written, or empty.
func missing(shown []string, written string) string {
	lines := strings.Split(written, "\n")
	for _, want := range shown {
		form := form(want)
		at := 0
		for at < len(lines) && !form.MatchString(strings.TrimSpace(lines[at])) {
			at++
		}
		if at == len(lines) {
			return want
		}
		lines = lines[at+1:]
	}
	return ""
}

// form matches the lines that a line of a document stands for.
func form(shown string) *regexp.Regexp {
	var words []string
	for word := range strings.FieldsSeq(shown) {
		words = append(words, strings.ReplaceAll(regexp.QuoteMeta(word), "…", ".*"))
	}
	return regexp.MustCompile("^" + strings.Join(words, `\s+`) + "$")
}

// Shell runs commands as somebody does who has kubectl, its plugin and a kubeconfig.
type Shell struct {
	dir string
	env []string
}

// NewShell returns one in an empty folder of its own. The programs that a command
// needs besides kubectl are in the folder programs.
func NewShell(t *testing.T, kubeconfig, programs string) *Shell {
	t.Helper()
	s := &Shell{dir: t.TempDir()}
	path := strings.Join([]string{programs, os.Getenv(cluster.AssetsVariable), os.Getenv("PATH")}, string(os.PathListSeparator))
	s.env = append(os.Environ(), "PATH="+path, "KUBECONFIG="+kubeconfig, "HOME="+s.dir)
	return s
}

// Build makes kubectl-nodegate and returns the folder that it is in.
func Build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "kubectl-nodegate"), "../../cmd/kubectl-nodegate").CombinedOutput()
	if err != nil {
		t.Fatalf("building kubectl-nodegate: %v\n%s", err, out)
	}
	return dir
}

// Run runs a command and reports what is not as the document says.
func (s *Shell) Run(t *testing.T, c Command) {
	t.Helper()
	if err := s.try(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// try runs a command and says what is not as the document says.
func (s *Shell) try(ctx context.Context, c Command) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", c.Text)
	cmd.Dir, cmd.Env = s.dir, s.env
	written, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return fmt.Errorf("line %d: %s: %w", c.Line, c.Text, err)
	}
	if code := cmd.ProcessState.ExitCode(); code != c.Code {
		return fmt.Errorf("line %d: %s: exit code %d, want %d\n%s", c.Line, c.Text, code, c.Code, written)
	}
	if line := missing(c.Shown, string(written)); line != "" {
		return fmt.Errorf("line %d: %s: it does not write %q\n%s", c.Line, c.Text, line, written)
	}
	return nil
}

// Sections returns the sections of a document in docs/.
func Sections(t *testing.T, name string) []Section {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(fmt.Errorf("reading the document: %w", err))
	}
	sections := parse(string(data))
	if len(sections) == 0 {
		t.Fatalf("docs/%s has no commands", name)
	}
	return sections
}
