// Command mutants shows that the conformance suite notices: it breaks the default
// gate's policies in one way after another, as the patches beside it say, and
// wants exactly the rows red that each patch names, and none without a patch.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	policies = "manifests/policy/default.yaml"
	patches  = "test/mutants/*.patch"
)

func main() {
	update := flag.Bool("update", false, "write into the patches which rows are red")
	flag.Parse()
	if err := run(*update); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run is called in the root of the repository.
func run(update bool) error {
	dir, err := os.MkdirTemp("", "nodegate-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is temporary
	suite := filepath.Join(dir, "conformance.test")
	if err := command("", "go", "test", "-c", "-o", suite, "./test/conformance"); err != nil {
		return fmt.Errorf("building the suite: %w", err)
	}
	files, err := filepath.Glob(patches)
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("no patches in %s; run this in the root of the repository", patches))
	}
	red, total, err := redRows(suite, policies, dir)
	if err != nil {
		return err
	}
	if len(red) > 0 {
		return fmt.Errorf("without a mutant these rows are red already: %s", strings.Join(red, " "))
	}
	fmt.Printf("%-32s %d rows green\n", "(no mutant)", total)
	failed := 0
	for _, file := range files {
		if err := try(suite, file, dir, update); err != nil {
			failed++
			fmt.Fprintf(os.Stderr, "mutants: %s: %v\n", file, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d mutants were not noticed as they must be", failed, len(files))
	}
	fmt.Printf("%d mutants, each noticed by exactly its rows\n", len(files))
	return nil
}

// rowsLine names the rows that a mutant turns red, chanceLine those that it turns
// red or not, by the order in which an API server happens to invoke policies.
var (
	rowsLine   = regexp.MustCompile(`(?m)^rows: (.*)$`)
	chanceLine = regexp.MustCompile(`(?m)^by chance: (.*)$`)
)

func try(suite, file, dir string, update bool) error {
	start := time.Now()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line := rowsLine.FindSubmatch(text)
	if line == nil {
		return errors.New("there is no line 'rows: …' that names the rows which must turn red")
	}
	mutant, err := apply(file, dir)
	if err != nil {
		return err
	}
	red, _, err := redRows(suite, mutant, dir)
	if err != nil {
		return err
	}
	if chance := chanceLine.FindSubmatch(text); chance != nil {
		rows := strings.Fields(string(chance[1]))
		red = slices.DeleteFunc(red, func(row string) bool { return slices.Contains(rows, row) })
	}
	if update {
		text = rowsLine.ReplaceAll(text, []byte("rows: "+strings.Join(red, " ")))
		return os.WriteFile(file, text, 0o644)
	}
	want := strings.Fields(string(line[1]))
	slices.Sort(want)
	if !slices.Equal(want, red) {
		return fmt.Errorf("red are [%s], must be [%s]", strings.Join(red, " "), strings.Join(want, " "))
	}
	fmt.Printf("%-32s %d rows red, %s\n", strings.TrimSuffix(filepath.Base(file), ".patch"), len(red), time.Since(start).Round(100*time.Millisecond))
	return nil
}

// apply makes the mutated policies in a folder of their own.
func apply(patch, dir string) (string, error) {
	absolute, err := filepath.Abs(patch)
	if err != nil {
		return "", err
	}
	root, err := os.MkdirTemp(dir, "mutant-")
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(policies)
	if err != nil {
		return "", err
	}
	mutant := filepath.Join(root, policies)
	if err := os.MkdirAll(filepath.Dir(mutant), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(mutant, data, 0o644); err != nil {
		return "", err
	}
	if err := command(root, "git", "apply", absolute); err != nil {
		return "", fmt.Errorf("the patch does not fit %s any more, mend it by hand: %w", policies, err)
	}
	return mutant, nil
}

// report is the part of ginkgo's report that says which rows failed.
type report []struct {
	SpecReports []struct {
		LeafNodeType, LeafNodeText, State string
	}
}

// redRows runs the suite against the policies.
func redRows(suite, policies, dir string) (red []string, total int, err error) {
	absolute, err := filepath.Abs(policies)
	if err != nil {
		return nil, 0, err
	}
	out := filepath.Join(dir, "report.json")
	runErr := command("", suite, "-policies="+absolute, "-ginkgo.json-report="+out, "-ginkgo.succinct",
		"-ginkgo.focus=by policy")
	data, err := os.ReadFile(out)
	if err != nil {
		return nil, 0, errors.Join(err, runErr)
	}
	defer func() { _ = os.Remove(out) }() // the next run writes it anew
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, 0, err
	}
	for _, suite := range r {
		for _, spec := range suite.SpecReports {
			id, _, _ := strings.Cut(spec.LeafNodeText, ":")
			switch {
			case spec.State == "skipped":
			case spec.LeafNodeType != "It" && spec.State != "passed":
				return nil, 0, errors.Join(fmt.Errorf("the suite broke in its %s", spec.LeafNodeType), runErr)
			case spec.LeafNodeType == "It" && spec.State == "passed":
				total++
			case spec.LeafNodeType == "It":
				total++
				red = append(red, id)
			}
		}
	}
	slices.Sort(red)
	return red, total, nil
}

// command runs a program; its output is in the error.
func command(dir, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Dir = dir
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		text := out.String()
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, text[max(0, len(text)-2000):])
	}
	return nil
}
