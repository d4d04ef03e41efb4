package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	retryBase, retryMax         = 500 * time.Millisecond, 10 * time.Second
	permanentBase, permanentMax = 5 * time.Second, time.Minute
	// retryJitter parts the agents of a cluster whose API server comes back.
	retryJitter = 0.5
)

// retry holds a write back after failures. The zero value holds nothing back.
type retry struct {
	until    time.Time
	failures int
	reason   failure
	// attempt is what could not be said; news is not held back by it.
	attempt string
}

// wait is how long to hold the attempt back.
func (r retry) wait(attempt string, now time.Time) time.Duration {
	if r.attempt != attempt {
		return 0
	}
	return max(0, r.until.Sub(now))
}

// failed remembers a failure.
func (r retry) failed(reason failure, attempt string, now time.Time) retry {
	if r.reason != reason || r.attempt != attempt {
		r.failures = 0
	}
	base, limit := retryBase, retryMax
	if reason.permanent() {
		base, limit = permanentBase, permanentMax
	}
	const doublings = 5 // beyond this it is the limit, whatever the base
	delay := min(base<<min(r.failures, doublings), limit)
	return retry{
		until:    now.Add(wait.Jitter(delay, retryJitter)),
		failures: r.failures + 1,
		reason:   reason,
		attempt:  attempt,
	}
}
