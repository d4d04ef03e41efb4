package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
)

// installedAt is the time of installation, and of gates that were added, as the
// configuration's ConfigMap records them. Where it does not, only Nodes count that are
// created from now on: those that were there before may have never had an agent.
func (p *program) installedAt(ctx context.Context) (at time.Time, added map[string]time.Time, err error) {
	key := client.ObjectKey{Namespace: p.Namespace, Name: gate.ConfigMapName}
	var object corev1.ConfigMap
	err = p.mgr.GetAPIReader().Get(ctx, key, &object)
	if err != nil && !apierrors.IsNotFound(err) {
		return at, nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	added = gate.ParseAdded(object.Annotations[gate.AddedAnnotation])
	value := object.Annotations[gate.InstalledAtAnnotation]
	if at, err := time.Parse(gate.TimeLayout, value); err == nil {
		return at, added, nil
	}
	now := p.clock.Now()
	p.log.Warn("Time of installation is not recorded, Nodes are adopted that are created from now on",
		"configMap", key.String(), "annotation", gate.InstalledAtAnnotation, "value", value, "now", now)
	return now, added, nil
}
