// Package syncbuf has a buffer for what a program under test writes while the test
// reads it.
package syncbuf

import (
	"strings"
	"sync"
)

// Buffer may be written and read at the same time. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends to what is there.
func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
