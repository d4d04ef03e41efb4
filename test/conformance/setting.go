package conformance

import "github.com/nodegate/nodegate/gate"

// setting is what the installed admission depends on.
type setting struct {
	form       form
	mode       gate.Mode
	tolerating bool
}

// form is that of the mutation.
type form string

const (
	byPolicy  form = "policy"
	byWebhook form = "webhook"
)
