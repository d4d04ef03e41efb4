package gate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// MaxConfigurationBytes bounds what is read: a ConfigMap holds at most 1 MiB.
const MaxConfigurationBytes = 1 << 20

// LoadConfiguration reads a configuration file. See [ParseConfiguration].
func LoadConfiguration(path string) (*Configuration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading configuration: %w", err)
	}
	cfg, err := ParseConfiguration(data)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return cfg, nil
}

// ParseConfiguration reads one YAML or JSON document strictly, fills in defaults
// and validates. The error names every fault that was found, with its path.
func ParseConfiguration(data []byte) (*Configuration, error) {
	if len(data) > MaxConfigurationBytes {
		return nil, fmt.Errorf("%d bytes are too many, at most %d are allowed", len(data), MaxConfigurationBytes)
	}
	document, err := onlyDocument(data)
	if err != nil {
		return nil, err
	}
	asJSON, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("reading YAML: %w", err)
	}
	cfg := &Configuration{}
	faults, err := kjson.UnmarshalStrict(asJSON, cfg)
	if err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	apiVersion, kind := cfg.APIVersion, cfg.Kind
	cfg.setDefaults()
	cfg.APIVersion, cfg.Kind = apiVersion, kind
	if invalid := cfg.Validate(); len(invalid) > 0 {
		faults = append(faults, invalid.ToAggregate().Errors()...)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return cfg, nil
}

// onlyDocument returns the one YAML document of the data. Further documents
// would be ignored silently by the decoder, which nobody expects.
func onlyDocument(data []byte) ([]byte, error) {
	// The reader loses a last line without an end that fills its buffer.
	data = append(bytes.Clone(data), '\n')
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var only []byte
	for count := 0; ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return only, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading YAML: %w", err)
		}
		if ended(document) {
			return nil, errors.New(`more than one YAML document: there is text behind a line "..."`)
		}
		if empty(document) {
			continue
		}
		if count++; count > 1 {
			return nil, errors.New("more than one YAML document")
		}
		only = document
	}
}

func empty(document []byte) bool {
	var content any
	return yaml.Unmarshal(document, &content) == nil && content == nil
}

// ended reports whether a line "..." ends the document before its text does. The
// decoder reads no further.
func ended(document []byte) bool {
	for line := range bytes.Lines(document) {
		document = document[len(line):]
		if rest, ok := bytes.CutPrefix(line, []byte("...")); ok && bytes.IndexAny(rest, " \t\r\n") == 0 {
			return !empty(document)
		}
	}
	return false
}
