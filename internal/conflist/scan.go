package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// list is a list's text and where its plugins stand in it.
type list struct {
	data []byte
	// first is behind the bracket that opens the plugins.
	first   int
	entries []span
}

// span is a part of a text, from its first byte to behind its last.
type span struct{ from, to int }

func (l list) text(i int) []byte { return l.data[l.entries[i].from:l.entries[i].to] }

// scan finds the plugins in the text that libcni takes them from: where the key
// is there twice, the last.
func scan(data []byte) (list, error) {
	outer, err := values(data, '{')
	if err != nil {
		return list{}, err
	}
	var at span
	for _, v := range outer {
		if v.key == "plugins" {
			at = v.span
		}
	}
	if at == (span{}) {
		return list{}, errors.New("no plugins in the list")
	}
	inner, err := values(data[at.from:at.to], '[')
	if err != nil {
		return list{}, err
	}
	l := list{data: data, first: at.from + 1}
	for _, v := range inner {
		l.entries = append(l.entries, span{at.from + v.from, at.from + v.to})
	}
	return l, nil
}

// value is a value in an object or an array, and its key.
type value struct {
	key string
	span
}

// values returns those of an object or of an array.
func values(data []byte, open json.Delim) ([]value, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	switch token, err := decoder.Token(); {
	case err != nil:
		return nil, err
	case token != open:
		return nil, fmt.Errorf("found %v, not %s", token, open)
	}
	var all []value
	for decoder.More() {
		var v value
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return nil, err
			}
			v.key, _ = token.(string)
		}
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return nil, err
		}
		v.to = int(decoder.InputOffset())
		v.from = v.to - len(raw)
		all = append(all, v)
	}
	return all, nil
}
