package manifests

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

// noted is an object and what is to be said beside its lines.
type noted struct {
	runtime.Object
	notes []note
}

// note is a comment above the line at which a field stands: "spec.replicas", or
// "rules.0" for the first of a list.
type note struct {
	path string
	text string
}

// annotate writes notes into a YAML document.
func annotate(document []byte, notes []note) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return nil, fmt.Errorf("reading YAML: %w", err)
	}
	above := map[int][]string{}
	for _, n := range notes {
		line, err := lineOf(root.Content[0], strings.Split(n.path, "."))
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", n.path, err)
		}
		above[line] = append(above[line], strings.Split(n.text, "\n")...)
	}
	var out bytes.Buffer
	number := 0
	for line := range strings.Lines(string(document)) {
		number++
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		for _, text := range above[number] {
			out.WriteString(indent + "# " + text + "\n")
		}
		out.WriteString(line)
	}
	return out.Bytes(), nil
}

// lineOf is where a field, or an element of a list, begins.
func lineOf(node *yaml.Node, path []string) (int, error) {
	line := node.Line
	for _, step := range path {
		at := -1
		if node.Kind == yaml.SequenceNode {
			if i, err := strconv.Atoi(step); err == nil && i < len(node.Content) {
				at = i
				line = node.Content[i].Line
			}
		} else if i := slices.IndexFunc(node.Content, func(n *yaml.Node) bool { return n.Value == step }); i >= 0 {
			at = i + 1
			line = node.Content[i].Line
		}
		if at < 0 {
			return 0, fmt.Errorf("there is no %q", step)
		}
		node = node.Content[at]
	}
	return line, nil
}
