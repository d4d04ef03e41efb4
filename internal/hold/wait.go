package hold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodegate/nodegate/internal/netconf"
)

const (
	// firstPause, doubling to maxPause, is the time from an agent that does not
	// answer to the next attempt: it may be about to start.
	firstPause = 10 * time.Millisecond
	maxPause   = 250 * time.Millisecond
	// statusTimeout bounds STATUS, which does not wait for a gate.
	statusTimeout = 2 * time.Second
)

// Wait returns nil as soon as the pod may start, with which the runtime began at a
// time, and after the timeout an error for those who look at the pod. It does not
// wait for what only another attempt can have.
func Wait(ctx context.Context, s netconf.Settings, pod netconf.Pod, began time.Time) error {
	if s.Exempts(pod) {
		return nil
	}
	from := time.Now()
	bounded, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	last, pause := error(nil), firstPause
	for {
		told := false
		q := question{Version: version, Pod: pod, Age: time.Since(began).Milliseconds()}
		fault := ask(bounded, s.Socket, q, func(reason errClosed) { last, told = reason, true })
		if fault == nil {
			return nil
		}
		if said := (errClosed{}); errors.As(fault, &said) {
			return fmt.Errorf("%w; waited %s, and the kubelet tries again", explained(said), time.Since(from).Round(time.Second))
		}
		// That a conversation or the time is over says less than what was told in it.
		if last == nil || !told && !errors.Is(fault, errTime) {
			last = fault
		}
		select {
		case <-bounded.Done():
			return fmt.Errorf("%w; waited %s, and the kubelet tries again", explained(last), s.Timeout)
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

// Status returns why an ordinary pod would have to wait; nil if it would not.
func Status(ctx context.Context, s netconf.Settings) error {
	bounded, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var reason error
	fault := ask(bounded, s.Socket, question{Version: version}, func(said errClosed) {
		reason = said
		cancel() // the first word is enough
	})
	switch {
	case fault == nil:
		return nil
	case reason != nil:
		return explained(reason)
	}
	return explained(fault)
}

// explained tells a gate that is closed from an agent that does not say so.
func explained(why error) error {
	if said := (errClosed{}); errors.As(why, &said) {
		return fmt.Errorf("this node is not ready for pods: %w", why)
	}
	return fmt.Errorf("this node's nodegate-agent does not say whether it is ready for pods: %w", why)
}
