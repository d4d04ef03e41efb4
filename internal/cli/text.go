package cli

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/nodegate/nodegate/gate"
)

// setMode changes the mode in the text of a configuration and nothing else: no
// comment, no blank, no other field. Where it cannot, it says why, and the text is
// to be changed by hand.
func setMode(text string, mode gate.Mode) (string, error) {
	before, err := gate.ParseConfiguration([]byte(text))
	if err != nil {
		return "", fmt.Errorf("it is not valid, so that controller and agents go on with the last one that was: %w", err)
	}
	if before.Mode == mode {
		return text, nil
	}
	changed, err := editMode(text, mode)
	if err != nil {
		return "", err
	}
	after, err := gate.ParseConfiguration([]byte(changed))
	if err != nil {
		return "", fmt.Errorf("changing it by text does not do: %w", err)
	}
	before.Mode = mode
	if !reflect.DeepEqual(before, after) {
		return "", errors.New("changing the mode by text would change more than that")
	}
	return changed, nil
}

// editMode replaces the value of the mode, or adds it in front of the first field.
func editMode(text string, mode gate.Mode) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return "", err
	}
	var fields []*yaml.Node
	if document.Kind == yaml.DocumentNode {
		fields = document.Content[0].Content
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i].Value == "mode" {
			return replaceScalar(text, fields[i+1], string(mode))
		}
	}
	if len(fields) > 0 && document.Content[0].Style != yaml.FlowStyle && fields[0].Column == 1 {
		at := max(offset(text, fields[0]), 0)
		return text[:at] + "mode: " + string(mode) + "\n" + text[at:], nil
	}
	return "", errors.New(`it has no field "mode", and none can be added to a text of this form`)
}

// replaceScalar replaces a value where it stands, in the quotes that it has.
func replaceScalar(text string, value *yaml.Node, with string) (string, error) {
	quote := map[yaml.Style]string{yaml.SingleQuotedStyle: "'", yaml.DoubleQuotedStyle: `"`}[value.Style]
	written := quote + value.Value + quote
	at := offset(text, value)
	if value.Kind != yaml.ScalarNode || at < 0 || !strings.HasPrefix(text[at:], written) {
		return "", errors.New(`its field "mode" is no plain word`)
	}
	return text[:at] + quote + with + quote + text[at+len(written):], nil
}

// offset is where a node begins in the text, or -1.
func offset(text string, node *yaml.Node) int {
	at := 0
	for line := 1; line < node.Line; line++ {
		end := strings.IndexByte(text[at:], '\n')
		if end < 0 {
			return -1
		}
		at += end + 1
	}
	for column := 1; column < node.Column; column++ {
		_, width := utf8.DecodeRuneInString(text[at:])
		at += width
	}
	return at
}
