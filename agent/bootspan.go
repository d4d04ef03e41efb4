package agent

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// uptimePath is where Linux shows for how long it has run (proc_uptime(5)).
const uptimePath = "/proc/uptime"

// readUptime returns how long the running boot has lasted, sleep included.
func readUptime(path string) (time.Duration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading the uptime: %w", err)
	}
	seconds, _, _ := strings.Cut(string(data), " ")
	uptime, err := time.ParseDuration(seconds + "s")
	if err != nil || uptime < 0 {
		return 0, fmt.Errorf("%s does not begin with an uptime but %.20q", path, seconds)
	}
	return uptime, nil
}

// bootSpan is the running boot, from its beginning until now, by the clocks of
// this machine and of the API server.
type bootSpan struct {
	uptime     time.Duration
	local, api time.Time
}

func (a *Agent) bootSpan() (bootSpan, error) {
	uptime, err := a.uptime()
	return bootSpan{uptime: uptime, local: a.clock.Now(), api: a.api.Now()}, err
}

// holds reports whether a time that somebody noted by a clock which is not known
// lies in the boot. It must do so by both clocks: where they differ, what was
// noted before the boot might seem to lie in it by one of them.
func (b bootSpan) holds(t time.Time) bool {
	return b.within(b.local, t) && b.holdsByAPI(t)
}

// holdsByAPI is for a time that the API server noted.
func (b bootSpan) holdsByAPI(t time.Time) bool { return b.within(b.api, t) }

func (b bootSpan) within(now, t time.Time) bool {
	return !t.Before(now.Add(-b.uptime)) && !t.After(now.Add(maxAhead))
}
