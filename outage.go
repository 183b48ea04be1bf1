package automutex

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// outage is the time for which something that the Guard depends on fails: Redis, or a function
// of the user.
type outage struct {
	mu    sync.Mutex // guards since and what; held for moments
	since time.Time  // of the first failure; zero: it works
	what  string     // the name of what failed: "Redis", "Config.Decode", "the rule's Key", ...

	start, downText, upText string // of the log lines: start + what + downText, start + what + upText
}

func redisOutage() outage {
	return outage{
		what:     "Redis",
		start:    "automutex: ",
		downText: " cannot be asked for locks; tasks with rules return to asynq, their attempts not spent",
		upText:   " answers again",
	}
}

// keyOutage returns the outage of a rule's Key and LimitOf, and of Config.Decode for this rule.
// Each rule has its own, because a success for another rule says nothing about this one.
func keyOutage(rule string) *outage {
	return &outage{
		start:    fmt.Sprintf("automutex: rule %q: ", rule),
		downText: " fails with an error that is no *KeyError; its tasks return to asynq, their attempts not spent",
		upText:   " works again",
	}
}

// recordKeysMade records that the keys of a task of that type were made.
func (g *Guard) recordKeysMade(taskType string) {
	for _, rule := range g.rules.match(taskType) {
		if rule.Key != nil || rule.LimitOf != nil || g.cfg.Decode != nil { // no other key can fail temporarily
			rule.keyOutage.recordSuccess(g.log)
		}
	}
}

// recordFailure records that `what` failed with err. It logs the first failure of an outage only,
// not one for each task.
func (o *outage) recordFailure(log *slog.Logger, what string, err error) {
	o.mu.Lock()
	first := o.since.IsZero()
	if first {
		o.since, o.what = time.Now(), what
	}
	o.mu.Unlock()
	if first {
		log.Warn(o.start+what+o.downText, "error", err)
	}
}

// recordSuccess ends the outage, if there is one, and logs its length.
func (o *outage) recordSuccess(log *slog.Logger) {
	o.mu.Lock()
	since, what := o.since, o.what
	o.since = time.Time{}
	o.mu.Unlock()
	if !since.IsZero() {
		log.Info(o.start+what+o.upText, "after", time.Since(since).Round(time.Millisecond))
	}
}

// delay returns after how long a task tries again. It grows with the length of the outage, from
// 1 to 30 s. Jitter keeps the tasks from coming back all at once.
func (o *outage) delay() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := time.Second
	if !o.since.IsZero() {
		d = min(max(d, time.Since(o.since)), 30*time.Second)
	}
	return min(d/2+rand.N(d/2)+time.Second/2, 30*time.Second) //nolint:gosec // jitter, no secret
}

// backendError records and observes that Redis could not be asked for the lock of t.
func (d *delivery) backendError(t target, err error) {
	d.guard.outage.recordFailure(d.guard.log, "Redis", err)
	d.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
}
