package automutex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// margin is how long before a task's own deadline a wait ends: asynq files a
// task whose context ended as failed, whatever the handler says, and the answer
// has to be there before.
const margin = time.Second

// acquire takes a lock, standing in line for as long as the rule's Wait allows.
// The error is a *BusyError, ErrClosed, or says that Redis could not be asked.
func (a *attempt) acquire(t target) (*lock.Lease, error) {
	if t.rule.Busy.kind == policyReplace {
		return a.replace(t)
	}
	m := a.lockOf(t)
	if t.rule.Busy == Park && !a.last && a.note != "" {
		return a.acquireOrPark(t, m)
	}
	wait := t.rule.Wait
	if t.rule.Busy == Park || wait > 0 && !a.join() {
		wait = 0
	}
	if wait == 0 {
		lease, err := m.TryLock(a.ctx)
		return a.own(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	a.warnLongWait(t)
	return a.wait(t, m, wait)
}

// join counts a worker into the line unless MaxWaiting are there.
func (a *attempt) join() bool {
	n := a.guard.waiting.Add(1)
	if most := a.guard.cfg.MaxWaiting; most > 0 && n > int64(most) {
		a.guard.waiting.Add(-1)
		return false
	}
	return true
}

// wait stands in line for at most so long, the margin before the task's
// deadline, the Guard's Close, or until the task is asked to stop.
func (a *attempt) wait(t target, m *lock.Lock, most time.Duration) (*lock.Lease, error) {
	if deadline, ok := a.ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)-margin)
	}
	ctx, cancel := context.WithTimeout(a.ctx, max(0, most))
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	if ctx.Err() != nil && a.ctx.Err() == nil && a.guard.closing.Err() == nil {
		// No time for a line, but for a look.
		lease, err := m.TryLock(a.ctx)
		return a.own(t, lease, err)
	}
	defer a.stepOut(t)
	defer a.pursue(t, m, cancel)()
	lease, err := m.Lock(ctx)
	if err != nil && a.guard.closing.Err() != nil {
		return nil, ErrClosed
	}
	return a.own(t, lease, err)
}

// lineUp tells that the wait in line began, stepOut that it is over, if it began.
func (a *attempt) lineUp(t target) {
	a.inLine = time.Now()
	a.observe(Event{Kind: EventWaiting, Rule: t.rule.Name, Key: t.key})
}

func (a *attempt) stepOut(t target) {
	if a.inLine.IsZero() {
		return
	}
	waited := time.Since(a.inLine)
	a.inLine = time.Time{}
	a.observe(Event{Kind: EventWaited, Rule: t.rule.Name, Key: t.key, Waited: waited})
}

// insist is how a task without attempts left gets its lock: any error would
// have asynq archive it although it has not run. It waits in line, whatever
// MaxWaiting says, bears Redis being away, and gives up only when the task's
// own time is up.
func (a *attempt) insist(t target) (*lock.Lease, error) {
	a.guard.waiting.Add(1)
	defer a.guard.waiting.Add(-1)
	const forever = 1 << 62
	for {
		lease, err := a.waitInLine(t, forever)
		if err == nil {
			a.guard.outage.over(a.guard.log)
			return lease, nil
		}
		var busy *BusyError
		if errors.As(err, &busy) || errors.Is(err, ErrClosed) || a.ctx.Err() != nil || a.stopped() {
			return nil, err
		}
		a.backendError(t, err)
		if !a.pause(a.guard.outage.delay()) {
			if a.guard.closing.Err() != nil {
				return nil, ErrClosed
			}
			return nil, err
		}
	}
}

// pause blocks the worker before a task on its last attempt tries again: for d,
// but at most until the margin before the task's deadline. It returns false, at
// once, when the task must not try again: its time is up, the Guard closes, or a
// newer task replaced it.
func (a *attempt) pause(d time.Duration) (again bool) {
	if deadline, ok := a.ctx.Deadline(); ok {
		left := time.Until(deadline) - margin
		if left <= 0 {
			return false
		}
		d = min(d, left)
	}
	var replaced <-chan struct{} // nil, which blocks, where no rule replaces
	if a.newest != nil {
		replaced = a.newest.asked.Done()
	}
	timer := time.NewTimer(d) // the worker's own; ends with this call
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.ctx.Done():
	case <-a.guard.closing.Done():
	case <-replaced:
	}
	return false
}

// hintClient says what to do about a Redis client that the program has closed.
func hintClient(err error) error {
	if !errors.Is(err, redis.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w; the Guard still uses this client: close the Guard first, then the client", err)
}

// explain turns the engine's error into the Guard's.
func (a *attempt) explain(t target, err error) error {
	var busy *lock.BusyError
	if !errors.As(err, &busy) {
		return hintClient(err)
	}
	e := &BusyError{
		Rule:       t.rule.Name,
		Key:        t.key,
		Holder:     busy.Holder,
		HolderTask: busy.Note,
		SameTask:   a.note != "" && busy.Note == a.note,
		ExpiresIn:  busy.ExpiresIn,
		Waited:     busy.Waited,
		Place:      busy.Place,
		parked:     busy.Parked,
		takenFor:   busy.TakenFor,
		inLine:     busy.InLine,
		cooldown:   busy.Cooldown,
	}
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, ended) {
			e.cause = ended
		}
	}
	return e
}

// afterClose answers for a task when the Guard is closed: back to asynq, unrun.
// With no attempts left an answer would archive it, so there is none until
// asynq has taken the task back itself and ended its context.
func (a *attempt) afterClose() error {
	if a.last {
		<-a.ctx.Done()
		return context.Cause(a.ctx)
	}
	if a.guard.usedUp.Load() {
		a.guard.warnOnce("closed", "tasks come although the Guard was closed, and all that have a rule go back to asynq unrun; "+
			"if the server is not shutting down, Close was called too early, such as by a defer in a function that returns before the server stops", "type", a.task.Type(), "task", a.note)
	}
	delay := retryDelay()
	err := fmt.Errorf("automutex: the Guard was closed: %w", ErrClosed)
	a.observe(Event{Kind: EventRetried, Delay: delay, Err: err})
	return &handBack{guard: a.guard, err: err, delay: delay}
}

// backendError tells that Redis could not be asked.
func (a *attempt) backendError(t target, err error) {
	a.guard.outage.began(a.guard.log, err)
	a.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
}

// outage is what a process knows of something being away that it asks. With
// since zero, it is not away.
type outage struct {
	mu    sync.Mutex // guards since; held for moments
	since time.Time

	away, back string // what is logged
}

func redisOutage() outage {
	return outage{
		away: "automutex: Redis cannot be asked for locks; tasks with rules go back to asynq, their attempts not spent",
		back: "automutex: Redis answers again",
	}
}

func keyOutage() outage {
	return outage{
		away: "automutex: the Key of a rule, or Config.Decode, fails with an error that is no *KeyError; its tasks go back to asynq, their attempts not spent",
		back: "automutex: the Keys of rules answer again",
	}
}

func (o *outage) began(log *slog.Logger, err error) {
	o.mu.Lock()
	first := o.since.IsZero()
	if first {
		o.since = time.Now()
	}
	o.mu.Unlock()
	if first { // once for each outage, not for each task
		log.Warn(o.away, "error", err)
	}
}

func (o *outage) over(log *slog.Logger) {
	o.mu.Lock()
	since := o.since
	o.since = time.Time{}
	o.mu.Unlock()
	if !since.IsZero() {
		log.Info(o.back, "after", time.Since(since).Round(time.Millisecond))
	}
}

// delay is 1 to 30 s, growing with the length of the outage, jittered so that
// the tasks do not come back all at once.
func (o *outage) delay() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := time.Second
	if !o.since.IsZero() {
		d = min(max(d, time.Since(o.since)), 30*time.Second)
	}
	return min(d/2+rand.N(d/2)+time.Second/2, 30*time.Second) //nolint:gosec // jitter, no secret
}

// retryDelay is Retry's: 1 to 5 s.
func retryDelay() time.Duration {
	return time.Second + rand.N(4*time.Second) //nolint:gosec // jitter, no secret
}
