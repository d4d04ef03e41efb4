package agent

import (
	"errors"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

var errDown = errors.New("down")

// TestAnswers plays answers that come a second apart.
func TestAnswers(t *testing.T) {
	const dwell = 3 * time.Second
	for name, tc := range map[string]struct {
		dwell time.Duration
		// good are the answers.
		good []bool
		open bool
		want State
	}{
		"no answer yet":                                        {dwell, nil, false, Unknown},
		"no answer yet on an open Node":                        {dwell, nil, true, Unknown},
		"a first good answer passes at once":                   {dwell, []bool{true}, false, Passing},
		"a first bad answer fails at once":                     {dwell, []bool{false}, false, Failing},
		"a first bad answer on an open Node dwells":            {dwell, []bool{false}, true, Wavering},
		"and fails when the dwell is over":                     {dwell, []bool{false, false, false, false}, true, Failing},
		"passing, one bad answer wavers":                       {dwell, []bool{true, false}, false, Wavering},
		"just short of the dwell wavers":                       {dwell, []bool{true, false, false, false}, false, Wavering},
		"the dwell counts from the first bad answer":           {dwell, []bool{true, false, false, false, false}, false, Failing},
		"a good answer between starts the dwell anew":          {dwell, []bool{true, false, false, true, false, false, false}, false, Wavering},
		"failing, a good answer passes at once":                {dwell, []bool{false, false, true}, false, Passing},
		"without a dwell a bad answer fails at once":           {0, []bool{true, false}, true, Failing},
		"without a dwell a first bad answer on an open, fails": {0, []bool{false}, true, Failing},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 29, 11, 0, 0, 0, time.UTC))
			var a answers
			for _, good := range tc.good {
				reason := errDown
				if good {
					reason = nil
				}
				a = a.and(reason, clock.Now())
				clock.SetTime(clock.Now().Add(time.Second))
			}
			// Time alone changes nothing.
			clock.SetTime(clock.Now().Add(time.Hour))
			if got := a.state(tc.dwell, tc.open); got != tc.want {
				t.Errorf("state %s, want %s", got, tc.want)
			}
		})
	}
}
