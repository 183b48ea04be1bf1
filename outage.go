package automutex

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// outage is the time for which something that the Guard depends on fails: Redis, or a function of the user. It ends when
// that works for any task. What fails for one key or one task alone begins an outage each time that it is tried.
type outage struct {
	mu     sync.Mutex // guards what follows; held for moments
	since  time.Time  // of the first failure; zero: it works
	logged time.Time  // when an outage was last logged
	what   string     // what the log says of: "Redis", "Config.Decode", "the rule's Key", ...; empty: of nothing

	start, downText, upText string // of the log lines: start + what + downText, start + what + upText
}

// outageLogEvery bounds how often outages of the same thing are logged.
const outageLogEvery = time.Minute

func redisOutage() outage {
	return outage{
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

// recordKeysMade records that the keys of the task were made.
func (d *delivery) recordKeysMade() {
	for _, rule := range d.guard.rules.match(d.task.Type()) {
		if rule.Key != nil || rule.LimitOf != nil || d.guard.cfg.Decode != nil { // no other key can fail temporarily
			rule.keyOutage.recordSuccess(d.guard.log)
		}
	}
}

// recordFailure records that `what` failed with err for a subject: a key or a task. It logs the first failure of an outage.
func (o *outage) recordFailure(log *slog.Logger, what, subject string, err error) {
	now := time.Now()
	o.mu.Lock()
	begins := o.since.IsZero()
	if begins {
		o.since = now
	}
	logs := begins && now.Sub(o.logged) >= outageLogEvery
	if logs {
		o.logged, o.what = now, what
	}
	o.mu.Unlock()
	if logs {
		log.Warn(o.start+what+o.downText, "subject", subject, "error", err)
	}
}

// recordSuccess ends the outage, if there is one, and logs its length if its begin was logged.
func (o *outage) recordSuccess(log *slog.Logger) {
	o.mu.Lock()
	since, what := o.since, o.what
	o.since, o.what = time.Time{}, ""
	o.mu.Unlock()
	if what != "" {
		log.Info(o.start+what+o.upText, "after", time.Since(since).Round(time.Millisecond))
	}
}

// delay returns after how long a task tries again. It grows with the length of the outage from 1 to 30 s. Jitter keeps the
// tasks from coming back all at once.
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
	d.guard.outage.recordFailure(d.guard.log, "Redis", t.key, err)
	d.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
}
