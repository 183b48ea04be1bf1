package automutex

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// outage is the time for which Redis cannot be asked for locks. It ends when Redis answers any task. What fails for one key alone
// begins an outage each time that it is tried.
type outage struct {
	mu     sync.Mutex // guards what follows; held for moments
	since  time.Time  // of the first failure; zero: it works
	logged time.Time  // when an outage was last logged
	told   bool       // this one was
}

// outageLogEvery bounds how often outages are logged.
const outageLogEvery = time.Minute

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
		log.Warn("automutex: Redis cannot be asked for locks; tasks with rules return to asynq, their attempts not spent", args...)
	}
}

// recordSuccess ends the outage, if there is one, and logs its length if its begin was logged.
func (o *outage) recordSuccess(log *slog.Logger) {
	o.mu.Lock()
	since, told := o.since, o.told
	o.since, o.told = time.Time{}, false
	o.mu.Unlock()
	if told {
		log.Info("automutex: Redis answers again", "after", time.Since(since).Round(time.Millisecond))
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
