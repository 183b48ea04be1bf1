package redisx

import (
	"log/slog"
	"sync"
	"time"
)

// Outage is the time for which Redis cannot be asked. It ends when its owner calls Answered. What fails for one key
// alone begins an outage each time that it is tried. Safe for concurrent use; the zero value is none.
type Outage struct {
	mu     sync.Mutex // guards what follows; held for moments
	since  time.Time  // of the first failure; zero: it works
	logged time.Time  // when an outage was last logged
	told   bool       // this one was
}

// outageLogEvery bounds how often outages are logged.
const outageLogEvery = time.Minute

// Failed records a failure, and logs text for the first one of an outage, with args.
func (o *Outage) Failed(log *slog.Logger, text string, args ...any) {
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
		log.Warn(text, args...)
	}
}

// Answered ends the outage, if there is one, and logs its length if its begin was logged.
func (o *Outage) Answered(log *slog.Logger) {
	o.mu.Lock()
	since, told := o.since, o.told
	o.since, o.told = time.Time{}, false
	o.mu.Unlock()
	if told {
		log.Info("automutex: Redis answers again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// Lasts returns for how long it has lasted; 0: there is none.
func (o *Outage) Lasts() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0
	}
	return time.Since(o.since)
}
