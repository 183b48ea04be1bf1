package automutex

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// replaceState is what an attempt knows of its locks with the policy Replace: when its
// task came to each of them, and whether a newer task has come. Only the worker's
// goroutine uses it, except for stopRequested, replacedAt and requestStop.
type replaceState struct {
	arrivals     map[string]arrival // by key
	firstArrival time.Time          // when the task came to the first of the locks

	// stopRequested ends, with cause ErrReplaced, when the task is first asked to
	// stop. It has no parent, so nothing has to end it. replacedAt is the lock that a
	// newer task wants; it is set before.
	stopRequested context.Context //nolint:containedctx // a signal
	cancel        context.CancelCauseFunc
	once          sync.Once
	replacedAt    target

	endContext func() // ends the handler's context and its watcher
	finished   bool   // asynq will not run the task again, so that its arrivals can be forgotten
}

// arrival is when a task first came to a lock.
type arrival struct {
	lock  *lock.Lock // the handle under whose note the arrival is stored
	at    int64
	first bool // the task first came in this attempt
}

func newReplaceState() *replaceState {
	n := &replaceState{arrivals: make(map[string]arrival, 1), firstArrival: time.Now()}
	n.stopRequested, n.cancel = context.WithCancelCause(context.Background())
	return n
}

// registerArrival stores that the task has come to the lock. Further calls do nothing.
func (a *attempt) registerArrival(t target) error {
	if a.replacing == nil {
		a.replacing = newReplaceState()
	}
	if _, known := a.replacing.arrivals[t.key]; known {
		return nil
	}
	note := cmp.Or(a.note, rand.Text()) // outside of a server every call is a new task
	m := a.guard.locker.Semaphore(t.scope, t.limit, inner.WithKey(t.key), lock.TTL(t.rule.TTL), lock.Note(note))
	at, first, err := inner.Arrive(a.exchangeContext(), m)
	if err == nil {
		a.replacing.arrivals[t.key] = arrival{lock: m, at: at, first: first}
	}
	return withClientHint(err)
}

// onStop returns the lock options by which a newer task asks this one to stop. It
// returns none for a lock whose rule has another policy.
func (a *attempt) onStop(t target) []lock.Option {
	if a.replacing == nil {
		return nil
	}
	arrived, ok := a.replacing.arrivals[t.key]
	if !ok {
		return nil
	}
	return []lock.Option{inner.OnStop(arrived.at, func() { a.replacing.requestStop(t) })}
}

// requestStop asks the task to stop, since a newer one wants the lock of t. Package
// lock calls it, and the attempt itself when it learns of the newer task.
func (n *replaceState) requestStop(t target) {
	n.once.Do(func() {
		n.replacedAt = t
		n.cancel(ErrReplaced)
	})
}

// isReplaced reports whether a newer task has asked this one to stop.
func (a *attempt) isReplaced() bool {
	return a.replacing != nil && a.replacing.stopRequested.Err() != nil
}

// replace takes a lock whose rule has the policy Replace: it asks older tasks to stop
// and waits in line for them. After an error, isReplaced reports whether a newer task
// has come.
func (a *attempt) replace(t target) error {
	if err := a.registerArrival(t); err != nil {
		return err
	}
	m := a.lockOf(t)
	lease, err := m.TryLock(a.ctx)
	err = a.keepLease(t, lease, err)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.SameTask || busy.Reason == lock.ReasonPaused {
		return err
	}
	// Older tasks stop even if this one may not wait for them.
	a.askOlderToStop(t, m, a.replacing.arrivals[t.key].first)
	if a.isReplaced() || !a.reserveWait() {
		return busy
	}
	defer a.guard.waiting.Add(-1)
	a.warnLongWait(t)
	return a.replaceInLine(t, t.rule.longestWait())
}

func (a *attempt) replaceInLine(t target, limit time.Duration) error {
	if err := a.registerArrival(t); err != nil {
		return err
	}
	m := a.lockOf(t)
	if err := a.lockWithin(t, m, limit); err != nil {
		return err
	}
	// A task that waited in line before a newer one is granted the lock first. It
	// learns of the newer one here, and passes the lock on.
	if a.askOlderToStop(t, m, a.replacing.arrivals[t.key].first); !a.isReplaced() {
		return nil
	}
	// The handler did not start, so a rate does not count this start.
	if err := inner.GiveBack(a.ctx, a.takeBackLast()); errors.Is(err, lock.ErrBackend) {
		a.backendError(t, err) // the lease frees itself at its deadline
	}
	return ErrReplaced
}

// askOlderToStop asks older tasks to stop. This task is itself replaced by a newer one
// that waits, or by a newer one that holds the lock when this task has come in this
// attempt (first). A task that comes back from a retry and finds a newer one at work
// waits for its turn. askOlderToStop returns no error: the wait asks the same Redis.
func (a *attempt) askOlderToStop(t target, m *lock.Lock, first bool) {
	standing, err := inner.AskOlderToStop(a.ctx, m)
	switch {
	case err != nil:
		a.guard.log.Debug("automutex: older tasks could not be asked to stop",
			"rule", t.rule.Name, "key", t.key, "task", a.note, "error", err)
	case standing == inside.BehindWaiters, standing == inside.BehindHolders && first:
		a.replacing.requestStop(t)
	}
}

// A waiting task asks again: soon, since a holder may have taken the lock just before
// it could be asked, then at growing intervals up to one second.
const (
	askFirst = 50 * time.Millisecond
	askEvery = time.Second
)

// watchWhileWaiting accompanies a wait for the lock of t. It calls giveUp when the task
// is asked to stop. For the policy Replace it asks older tasks to stop again and again,
// since messages get lost and holders change.
//
// stop ends its goroutine. stop does not wait for a request that is under way: the
// task's deadline may be near while Redis does not answer. Such a request does no harm,
// and the Locker's Close waits for it.
func (a *attempt) watchWhileWaiting(t target, m *lock.Lock, giveUp func()) (stop func()) {
	if a.replacing == nil {
		return func() {}
	}
	unhook := context.AfterFunc(a.replacing.stopRequested, giveUp)
	arrived, replaces := a.replacing.arrivals[t.key]
	if !replaces {
		return func() { unhook() }
	}
	stopped := make(chan struct{}) // closed by stop
	go func() {
		pause := askFirst
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-timer.C:
			}
			a.askOlderToStop(t, m, arrived.first)
			pause = min(2*pause, askEvery)
			timer.Reset(pause)
		}
	}()
	return func() {
		unhook()
		close(stopped)
	}
}

// replaceableContext returns the parent of the handler's context. It ends with the
// task's context, and with cause ErrReplaced when a newer task asks this one to stop.
func (a *attempt) replaceableContext() context.Context {
	n := a.replacing
	if n == nil {
		return a.ctx
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	unhook := context.AfterFunc(n.stopRequested, func() {
		a.guard.log.Debug("automutex: a newer task has come; the handler's context is cancelled",
			"rule", n.replacedAt.rule.Name, "key", n.replacedAt.key, "task", a.note)
		cancel(ErrReplaced)
	})
	n.endContext = func() {
		unhook()
		cancel(nil)
	}
	return ctx
}

// handlerResult returns what asynq is told when the handler has returned err. A task
// that was replaced is revoked.
func (a *attempt) handlerResult(err error) error {
	a.succeeded = err == nil
	switch {
	case a.replacing == nil || a.ctx.Err() != nil:
		return err // once its context has ended, asynq runs the task again
	case err == nil || !a.isReplaced():
		a.replacing.finished = err == nil || a.lastAttempt || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask)
		return err
	}
	return a.revoke(err)
}

// replacedBeforeStart ends a task that was asked to stop before it had all of its
// locks. err says why it did not get the lock of t.
func (a *attempt) replacedBeforeStart(t target, err error) outcome {
	var busy *BusyError
	if errors.As(err, &busy) {
		a.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Waited: busy.Waited, Busy: busy})
	}
	return finish(a.revoke(nil))
}

// revoke ends a replaced task. err is what its handler returned, or nil when the
// handler has not started.
func (a *attempt) revoke(err error) error {
	n := a.replacing
	n.finished = true
	e := Event{Kind: EventReplaced, Rule: n.replacedAt.rule.Name, Key: n.replacedAt.key, Policy: n.replacedAt.rule.Busy}
	if err == nil {
		e.Waited = time.Since(n.firstArrival)
	} else {
		e.Held = time.Since(a.handlerStart)
	}
	a.guard.log.Debug("automutex: replaced by a newer task", "rule", e.Rule, "key", e.Key, "task", a.note, "held", e.Held)
	a.observe(e)
	return &revoked{guard: a.guard, rule: e.Rule, key: e.Key, err: err}
}

// forgetArrivals ends what the handler's context needed, and forgets when a task that
// is finished came: a later task with the same ID is a new one. It runs after the locks
// are released, so that nobody waits for it.
func (a *attempt) forgetArrivals() {
	n := a.replacing
	if n == nil {
		return
	}
	if n.endContext != nil {
		n.endContext()
	}
	if !n.finished {
		for key, arrived := range n.arrivals {
			arrived.first = false // it has had its turn, also if it runs again in this attempt
			n.arrivals[key] = arrived
		}
		return
	}
	for key, arrived := range n.arrivals {
		if err := inner.Forget(context.WithoutCancel(a.ctx), arrived.lock); err != nil {
			a.guard.log.Debug("automutex: the task's arrival could not be forgotten; it is in an hour", "key", key, "task", a.note, "error", err)
		}
	}
}
