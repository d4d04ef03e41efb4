package guard

import (
	"fmt"
	"time"

	"github.com/nodegate/nodegate/internal/notice"
)

// maxVacancy is for how long nobody may have led, before what time alone shows is
// held back: agents that live may have been unable to say so.
const maxVacancy = 15 * time.Second

// suspension holds Expired and AgentAbsent back until a time.
type suspension struct {
	until  time.Time
	reason string
}

// suspend decides, for a guard that begins to lead, whether what rests on time is
// held back until every agent has had the time to write: until the longest
// interval between heartbeats has passed. A suspension that the guard before had
// begun goes on.
func suspend(vacant time.Duration, led bool, longest time.Duration, published suspension, now time.Time) suspension {
	switch {
	case !led:
		return suspension{until: now.Add(longest), reason: "nobody has led before"}
	case vacant > maxVacancy:
		return suspension{
			until:  now.Add(longest),
			reason: fmt.Sprintf("nobody led, or the API server did not answer, for %s", vacant.Round(time.Second)),
		}
	case published.holds(now):
		return published
	}
	return suspension{}
}

// holds reports whether it is in force.
func (s suspension) holds(now time.Time) bool {
	return notice.Suspension{Until: s.until}.Holds(now)
}

// String is what the Lease tells.
func (s suspension) String() string {
	return notice.Suspension{Until: s.until, Reason: s.reason}.String()
}

// parseSuspension reads what [suspension.String] wrote; anything else is none.
func parseSuspension(value string) suspension {
	s := notice.ParseSuspension(value)
	return suspension{until: s.Until, reason: s.Reason}
}

// intervalOf is the longest that an agent may let pass from a heartbeat with this
// ttl to the next: a third of it, and up to a tenth more by which agents spread
// their heartbeats.
func intervalOf(ttl time.Duration) time.Duration { return ttl/3 + ttl/30 }
