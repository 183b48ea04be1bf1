package automutex

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// outage is the time for which something that the Guard depends on fails: Redis, or a function
// of the user. What fails for one subject alone, such as one key or one task, is no outage: it
// fails again after another subject has worked.
type outage struct {
	mu       sync.Mutex // guards what follows; held for moments
	since    time.Time  // of the first failure; zero: it works
	what     string     // the name of what failed: "Redis", "Config.Decode", "the rule's Key", ...
	subjects map[string]failing

	start, downText, upText string // of the log lines: start + what + downText, start + what + upText
}

// failing is a subject that has failed and has not worked since.
type failing struct {
	since time.Time
	alone bool // it was logged that it fails while others work
}

// maxFailing bounds the subjects that an outage remembers. Of more it forgets them all.
const maxFailing = 1000

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

// recordKeysMade records that the keys of the task were made.
func (d *delivery) recordKeysMade() {
	for _, rule := range d.guard.rules.match(d.task.Type()) {
		if rule.Key != nil || rule.LimitOf != nil || d.guard.cfg.Decode != nil { // no other key can fail temporarily
			rule.keyOutage.recordSuccess(d.guard.log, d.note)
		}
	}
}

// recordFailure records that `what` failed with err for a subject. It logs the first failure of an
// outage, and once each subject that fails while others work.
func (o *outage) recordFailure(log *slog.Logger, what, subject string, err error) {
	now := time.Now()
	o.mu.Lock()
	f, known := o.subjects[subject]
	first := !known && o.since.IsZero()
	alone := known && o.since.IsZero() && !f.alone
	if first {
		o.since, o.what = now, what
	}
	if !known {
		f.since = now
	}
	f.alone = f.alone || alone
	if o.subjects == nil {
		o.subjects = map[string]failing{}
	}
	if len(o.subjects) >= maxFailing {
		clear(o.subjects) // each begins anew
	}
	o.subjects[subject] = f
	o.mu.Unlock()
	switch {
	case first:
		log.Warn(o.start+what+o.downText, "error", err)
	case alone:
		log.Warn(o.start+what+" fails for this one while others work; it is tried again, every 30 seconds at most", "subject", subject, "error", err)
	}
}

// recordSuccess records that it worked for a subject. That ends the outage, if there is one, and
// recordSuccess logs its length.
func (o *outage) recordSuccess(log *slog.Logger, subject string) {
	o.mu.Lock()
	since, what := o.since, o.what
	o.since = time.Time{}
	if len(o.subjects) > 0 {
		delete(o.subjects, subject)
	}
	o.mu.Unlock()
	if !since.IsZero() {
		log.Info(o.start+what+o.upText, "after", time.Since(since).Round(time.Millisecond))
	}
}

// delay returns after how long a task tries again for a subject. It grows with the length of the
// outage, or of the time for which the subject fails, from 1 to 30 s. Jitter keeps the tasks from
// coming back all at once.
func (o *outage) delay(subject string) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := time.Second
	if !o.since.IsZero() {
		d = max(d, time.Since(o.since))
	}
	if f, known := o.subjects[subject]; known {
		d = max(d, time.Since(f.since))
	}
	d = min(d, 30*time.Second)
	return min(d/2+rand.N(d/2)+time.Second/2, 30*time.Second) //nolint:gosec // jitter, no secret
}

// backendError records and observes that Redis could not be asked for the lock of t.
func (d *delivery) backendError(t target, err error) {
	d.guard.outage.recordFailure(d.guard.log, "Redis", t.key, err)
	d.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
}
