//go:build unix

package world

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Seen is a Node as one event of the watch showed it.
type Seen struct {
	At   time.Time
	Node *corev1.Node
}

// History keeps every state in which a watch has shown one Node, from before it
// was created. A watch delivers each write, so that nothing between two states is
// missed.
type History struct {
	name string

	mu    sync.Mutex
	seen  []Seen
	ended bool
	// more is closed, and replaced, when anything changes.
	more chan struct{}
}

// follow watches a Node until the context ends.
func follow(ctx context.Context, admin kubernetes.Interface, name string) (*History, error) {
	events, err := admin.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("watching node %q: %w", name, err)
	}
	h := &History{name: name, more: make(chan struct{})}
	go func() {
		defer h.change(func() { h.ended = true })
		for event := range events.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok && event.Type != watch.Deleted {
				h.change(func() { h.seen = append(h.seen, Seen{At: time.Now(), Node: node}) })
			}
		}
	}()
	return h, nil
}

func (h *History) change(what func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	what()
	close(h.more)
	h.more = make(chan struct{})
}

// Len is how many states there are.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}

// Since returns the states from the i-th on.
func (h *History) Since(i int) []Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.seen[min(i, len(h.seen)):])
}

// Await waits for a state, the i-th or a later one, of which the condition holds,
// and returns its index.
func (h *History) Await(ctx context.Context, i int, what string, condition func(*corev1.Node) bool) (int, Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		h.mu.Lock()
		seen, ended, more := h.seen, h.ended, h.more
		h.mu.Unlock()
		for ; i < len(seen); i++ {
			if condition(seen[i].Node) {
				return i, seen[i], nil
			}
		}
		if ended {
			return 0, Seen{}, fmt.Errorf("waiting for node %q to be seen %s: the watch has ended", h.name, what)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, Seen{}, fmt.Errorf("waiting for node %q to be seen %s: %w", h.name, what, ctx.Err())
		}
	}
}
