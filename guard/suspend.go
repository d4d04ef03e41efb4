package guard

import (
	"fmt"
	"time"

	"github.com/nodegate/nodegate/internal/notice"
)

// maxVacancy is for how long nobody may have led, before what time alone shows is
// held back: agents that live may have been unable to say so.
const maxVacancy = 15 * time.Second

// suspend decides, for a guard that begins to lead, whether what rests on time is
// held back until every agent has had the time to write: until the longest
// interval between heartbeats has passed. A suspension that the guard before had
// begun goes on.
func suspend(vacant time.Duration, led bool, longest time.Duration, published notice.Suspension, now time.Time) notice.Suspension {
	switch {
	case !led:
		return notice.Suspension{Until: now.Add(longest), Reason: "nobody has led before"}
	case vacant > maxVacancy:
		return notice.Suspension{
			Until:  now.Add(longest),
			Reason: fmt.Sprintf("nobody led, or the API server did not answer, for %s", vacant.Round(time.Second)),
		}
	case published.Holds(now):
		return published
	}
	return notice.Suspension{}
}
