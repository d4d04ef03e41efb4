package guard

import (
	"sync"
	"time"

	"github.com/nodegate/nodegate/gate"
)

// ages knows when gates were added, as far as that was later than the guard itself.
// Until it begins, no gate was.
type ages struct {
	mu sync.Mutex
	at map[string]time.Time
}

// begin takes the gates there are for those that were recorded, or were there from
// the first.
func (a *ages) begin(gates []gate.Gate, recorded map[string]time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = map[string]time.Time{}
	for i := range gates {
		a.at[gates[i].Name] = recorded[gates[i].Name]
	}
}

// of is when a gate was added: one that is seen for the first time, now.
func (a *ages) of(name string, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.at[name]
	if !known && a.at != nil {
		at = now
		a.at[name] = at
	}
	return at
}

// forget drops a gate that is not configured any more.
func (a *ages) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.at, name)
}

// installedAt is since when a gate adopts Nodes by their age: a gate that is added to
// an installation finds Nodes that its agent has had no time to write to.
func (g *Guard) installedAt(gt *gate.Gate) time.Time {
	if g.InstalledAt.IsZero() {
		return g.InstalledAt
	}
	return later(g.InstalledAt, g.ages.of(gt.Name, g.now()))
}
