package cli

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestTelling: who waits long hears why, once for each reason.
func TestTelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		o := &options{IOStreams: genericiooptions.IOStreams{ErrOut: &said}}
		began := time.Now()
		err := poll(t.Context(), o.telling(func(context.Context) (bool, error) {
			switch passed := time.Since(began); {
			case passed < 30*time.Second:
				return false, errors.New("no pod is made")
			case passed < time.Minute:
				return false, errors.New("the image cannot be pulled")
			}
			return true, nil
		}))
		if want := "    not yet: no pod is made\n    not yet: the image cannot be pulled\n"; err != nil || said.String() != want {
			t.Errorf("it says %q (%v), want %q", said.String(), err, want)
		}
	})
}
