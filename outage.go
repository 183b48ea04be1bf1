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
	down, up string // what the log says when it begins, and when it ends

	mu     sync.Mutex // guards what follows; held for moments
	since  time.Time  // of the first failure; zero: it works
	logged time.Time  // when an outage was last logged
	told   bool       // this one was
}

// outageLogEvery bounds how often outages of the same thing are logged.
const outageLogEvery = time.Minute

func redisOutage() outage {
	return outage{down: "automutex: Redis cannot be asked for locks; tasks with rules return to asynq, their attempts not spent", up: "automutex: Redis answers again"}
}

// keyOutage returns the outage of a rule's Key and LimitOf, and of Config.Decode for this rule.
// Each rule has its own, because a success for another rule says nothing about this one.
func keyOutage(rule string) *outage {
	return &outage{
		down: fmt.Sprintf("automutex: rule %q: a function fails with an error that is no *KeyError; its tasks return to asynq, their attempts not spent", rule),
		up:   fmt.Sprintf("automutex: rule %q: its functions work again", rule),
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

// recordFailure records a failure, and logs the first one of an outage, with args.
func (o *outage) recordFailure(log *slog.Logger, args ...any) {
	now := time.Now()
	o.mu.Lock()
	logs := o.since.IsZero() && now.Sub(o.logged) >= outageLogEvery
	if o.since.IsZero() {
		o.since = now
	}
	if logs {
		o.logged, o.told = now, true
	}
	o.mu.Unlock()
	if logs {
		log.Warn(o.down, args...)
	}
}

// recordSuccess ends the outage, if there is one, and logs its length if its begin was logged.
func (o *outage) recordSuccess(log *slog.Logger) {
	o.mu.Lock()
	since, told := o.since, o.told
	o.since, o.told = time.Time{}, false
	o.mu.Unlock()
	if told {
		log.Info(o.up, "after", time.Since(since).Round(time.Millisecond))
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
	d.guard.outage.recordFailure(d.guard.log, "key", t.key, "error", err)
	d.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
}
