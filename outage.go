package automutex

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// outage remembers since when something that the Guard depends on fails.
type outage struct {
	mu    sync.Mutex // guards since and what; held for moments
	since time.Time  // zero: it works
	what  string     // what failed last

	start, downText string // of the log lines: start + what + downText, start + what + " answers again"
}

func redisOutage() outage {
	return outage{
		what:     "Redis",
		start:    "automutex: ",
		downText: " cannot be asked for locks; tasks with rules return to asynq, their attempts not spent",
	}
}

// keyOutage is of what a rule's Key or LimitOf, or Config.Decode, depends on. Each rule has
// its own: another rule's success says nothing of it.
func keyOutage(rule string) *outage {
	return &outage{
		start:    fmt.Sprintf("automutex: rule %q: ", rule),
		downText: " fails with an error that is no *KeyError; its tasks return to asynq, their attempts not spent",
	}
}

// recordKeysMade records that the keys of a task of that type were made.
func (g *Guard) recordKeysMade(taskType string) {
	for _, rule := range g.rules.match(taskType) {
		if rule.Key != nil || rule.LimitOf != nil || g.cfg.Decode != nil { // no other can fail for now
			rule.keyOutage.recordSuccess(g.log)
		}
	}
}

// recordFailure records that what failed with err.
func (o *outage) recordFailure(log *slog.Logger, what string, err error) {
	o.mu.Lock()
	first := o.since.IsZero()
	if first {
		o.since, o.what = time.Now(), what
	}
	o.mu.Unlock()
	if first { // logged once for each outage, not for each task
		log.Warn(o.start+what+o.downText, "error", err)
	}
}

func (o *outage) recordSuccess(log *slog.Logger) {
	o.mu.Lock()
	since, what := o.since, o.what
	o.since = time.Time{}
	o.mu.Unlock()
	if !since.IsZero() {
		log.Info(o.start+what+" answers again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// delay returns after how long a task tries again: 1 to 30 s, growing with the length
// of the outage. Jitter keeps the tasks from coming back all at once.
func (o *outage) delay() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := time.Second
	if !o.since.IsZero() {
		d = min(max(d, time.Since(o.since)), 30*time.Second)
	}
	return min(d/2+rand.N(d/2)+time.Second/2, 30*time.Second) //nolint:gosec // jitter, no secret
}

// backendError notes and observes that Redis could not be asked.
func (d *delivery) backendError(t target, err error) {
	d.guard.outage.recordFailure(d.guard.log, "Redis", err)
	d.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
}
