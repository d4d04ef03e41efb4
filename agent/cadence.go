package agent

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

const (
	// cadenceAnnotation is where the control plane says, by the size of the
	// cluster, for how many seconds a node may use what it knows.
	cadenceAnnotation = corev1.ObjectTTLAnnotationKey

	minInterval     = 10 * time.Second
	defaultInterval = time.Minute
	// maxInterval keeps three intervals within the longest ttl.
	maxInterval = gate.MaxTTL / 3
	minTTL      = time.Minute

	// jitter spreads the heartbeats of nodes that started together.
	jitter = 0.1

	// maxAhead is how far ahead of the corrected clock a heartbeat may be before
	// it is written anew: the clock was wrong when it was written.
	maxAhead = 5 * time.Second
)

// intervalOf is the time from one heartbeat to the next.
func intervalOf(node *corev1.Node) time.Duration {
	seconds, err := strconv.ParseUint(node.Annotations[cadenceAnnotation], 10, 31)
	if err != nil {
		return defaultInterval
	}
	return min(max(time.Duration(seconds)*time.Second, minInterval), maxInterval)
}

// ttlOf lets two heartbeats fail before the gate is in doubt.
func ttlOf(interval time.Duration) time.Duration {
	return min(max(3*interval, minTTL), gate.MaxTTL)
}
