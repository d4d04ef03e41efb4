package report

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

const (
	mutatingPolicy  = "MutatingAdmissionPolicy"
	mutatingBinding = "MutatingAdmissionPolicyBinding"
	registration    = "MutatingWebhookConfiguration"
)

// mutation is the form in which admission arms, and the version of its policies.
func mutation(admission []*unstructured.Unstructured) (Mutation, string) {
	version, webhook := "", false
	for _, object := range admission {
		switch object.GetKind() {
		case mutatingPolicy, mutatingBinding:
			version = object.GroupVersionKind().Version
		case registration:
			webhook = true
		}
	}
	switch {
	case version != "" && webhook:
		return MutationBoth, version
	case version != "":
		return MutationPolicy, version
	case webhook:
		return MutationWebhook, ""
	}
	return MutationNone, ""
}

// drift is how what admits differs from the configuration.
type drift struct {
	// missing and differing name objects; differing say in which fields.
	missing, differing []string
	// removed are of gates that are not configured.
	removed []string
	// enforcing and idle follow the mode.
	enforcing, idle []string
	// uncertified are registrations of a webhook that no API server can trust.
	uncertified []string
}

// compare compares what admits with what is rendered from the configuration.
func compare(cfg *gate.Configuration, admission []*unstructured.Unstructured) (drift, error) {
	var d drift
	want, err := rendered(cfg, admission)
	if err != nil {
		return d, err
	}
	for _, object := range want {
		name := nameOf(object)
		at := slices.IndexFunc(admission, func(live *unstructured.Unstructured) bool { return nameOf(live) == name })
		if at < 0 {
			d.missing = append(d.missing, name)
			continue
		}
		fields, err := manifests.Differences(object, admission[at])
		if err != nil {
			return d, err
		}
		if len(fields) > 0 {
			d.differing = append(d.differing, fmt.Sprintf("%s in %s", name, strings.Join(fields, ", ")))
		}
	}
	for _, live := range admission {
		name := nameOf(live)
		if !slices.ContainsFunc(want, func(object *unstructured.Unstructured) bool { return nameOf(object) == name }) {
			d.removed = append(d.removed, name)
		}
		if err := d.follow(live); err != nil {
			return d, err
		}
	}
	return d, nil
}

// follow notes in which mode an object is.
func (d *drift) follow(live *unstructured.Unstructured) error {
	enforced, follows, err := manifests.ModeOf(live)
	if err != nil || !follows {
		return err
	}
	if enforced {
		d.enforcing = append(d.enforcing, nameOf(live))
	} else {
		d.idle = append(d.idle, nameOf(live))
	}
	uncertified, err := manifests.Uncertified(live)
	if uncertified {
		d.uncertified = append(d.uncertified, nameOf(live))
	}
	return err
}

// rendered is what should be there, in the form of which there is something.
func rendered(cfg *gate.Configuration, admission []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	form, version := mutation(admission)
	want, err := manifests.ValidationPolicies(cfg)
	if err != nil {
		return nil, err
	}
	if form == MutationPolicy || form == MutationBoth {
		policies, err := manifests.MutationPolicies(cfg, manifests.MutationVersion("admissionregistration.k8s.io/"+version))
		if err != nil {
			return nil, err
		}
		want = append(want, policies...)
	}
	if form == MutationWebhook || form == MutationBoth {
		hook, err := manifests.Webhook(cfg, nil)
		if err != nil {
			return nil, err
		}
		want = append(want, hook)
	}
	return want, nil
}

func nameOf(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + object.GetName()
}
