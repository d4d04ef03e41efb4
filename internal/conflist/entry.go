package conflist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// maxEntryBytes bounds an entry: it is settings of one plugin.
const maxEntryBytes = 64 << 10

// Entry is what stands in a list for the chained plugin: one JSON object, as
// somebody spelled it. Empty: none is known.
type Entry []byte

// ParseEntry returns the one JSON object that the data hold, which must be a
// configuration of the plugin.
func ParseEntry(data []byte, pluginType string) (Entry, error) {
	if len(data) > maxEntryBytes {
		return nil, fmt.Errorf("%d bytes are too many for an entry, at most %d are allowed", len(data), maxEntryBytes)
	}
	plugin, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	if plugin.Network.Type != pluginType {
		return nil, fmt.Errorf("the entry is of the type %q, not %q", plugin.Network.Type, pluginType)
	}
	return Entry(bytes.TrimSpace(data)), nil
}

// ReadEntry returns the entry in a file, and when it was written.
func ReadEntry(path, pluginType string) (Entry, time.Time, error) {
	data, info, err := readRegular(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("reading the entry: %w", err)
	}
	entry, err := ParseEntry(data, pluginType)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("reading the entry in %s: %w", path, err)
	}
	return entry, info.ModTime(), nil
}

// same reports whether two entries say the same, however they are spelled.
func (e Entry) same(other Entry) bool {
	a, errA := e.fields()
	b, errB := other.fields()
	return errA == nil && errB == nil && reflect.DeepEqual(a, b)
}

func (e Entry) fields() (map[string]any, error) {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(e))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	for key, value := range fields {
		if key != typeKey && strings.EqualFold(key, typeKey) { // as libcni reads it
			delete(fields, key)
			fields[typeKey] = value
		}
	}
	return fields, nil
}

const typeKey = "type"

// Known is what is known of the entry.
type Known struct {
	// Observed is the entry that was last seen chained, ObservedAt when the list
	// with it was written.
	Observed   Entry
	ObservedAt time.Time
	// Durable is the entry that the installer left, DurableAt when.
	Durable   Entry
	DurableAt time.Time
}

// entry is what belongs into a list. What was seen wins, for it worked, unless
// the installer has left something newer.
func (k Known) entry(o Options) Entry {
	if len(k.Observed) == 0 || k.updates(o, k.Observed, k.ObservedAt) {
		return k.Durable
	}
	return k.Observed
}

// updates reports whether the installer has left another entry since the given
// one was written, or at any time where its word counts.
func (k Known) updates(o Options, e Entry, at time.Time) bool {
	return len(k.Durable) > 0 && (o.First || k.DurableAt.After(at)) && !k.Durable.same(e)
}
