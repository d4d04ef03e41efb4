package controlplane

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress tells what is going on: lines in a log, which also must not fall
// silent for long, lest whoever watches it takes the job for hung; on a
// terminal one line that changes.
type progress struct {
	log      io.Writer
	terminal bool
	every    time.Duration
}

func newProgress(log io.Writer, terminal bool) *progress {
	if terminal {
		return &progress{log: log, terminal: true, every: time.Second}
	}
	return &progress{log: log, every: time.Minute}
}

// sayf writes a line that stays.
func (p *progress) sayf(format string, args ...any) {
	fmt.Fprintf(p.log, format+"\n", args...)
}

// during runs f and keeps telling for how long.
func (p *progress) during(what string, f func() error) error {
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() { p.tick(what, stop) })
	err := f()
	close(stop)
	ticking.Wait()
	return err
}

func (p *progress) tick(what string, stop <-chan struct{}) {
	start := time.Now()
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	p.show(what)
	defer p.clear()
	for {
		select {
		case <-ticker.C:
			p.show(what + ", " + elapsed(start))
		case <-stop:
			return
		}
	}
}

const clearLine = "\r\x1b[K"

// show writes a line that, on a terminal, the next one replaces.
func (p *progress) show(line string) {
	if p.terminal {
		fmt.Fprint(p.log, clearLine+line)
		return
	}
	p.sayf("%s", line)
}

func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.log, clearLine)
	}
}

func elapsed(since time.Time) string {
	return time.Since(since).Round(time.Second).String()
}
