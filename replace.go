package automutex

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/automutex/automutex/lock"
)

// newest is what an attempt knows of the locks whose rule has the policy
// Replace: when its task came to each, and whether somebody newer has come. It
// belongs to the attempt's goroutine, but for asked and ask.
type newest struct {
	arrivals map[string]arrival // by key
	began    time.Time          // when the task came to the first of them

	// asked ends, with cause ErrReplaced, when the task is asked to stop for the
	// first time; it has no parent, so nothing needs to end it. at is for which
	// lock, set before.
	asked  context.Context //nolint:containedctx // a signal
	cancel context.CancelCauseFunc
	once   sync.Once
	at     target

	unbind func() // ends the handler's context and what watches it
	over   bool   // asynq will not run the task again: it need not be known any more
}

// arrival is when a task first came to a lock.
type arrival struct {
	lock  *lock.Lock // the handle that the task is known by there
	at    int64
	first bool // that was in this attempt
}

func newNewest() *newest {
	n := &newest{arrivals: make(map[string]arrival, 1), began: time.Now()}
	n.asked, n.cancel = context.WithCancelCause(context.Background())
	return n
}

// arrive notes that the task has come to the lock; further calls do nothing.
func (a *attempt) arrive(t target) error {
	n := a.newest
	if n == nil {
		n = newNewest()
		a.newest = n
	}
	if _, known := n.arrivals[t.key]; known {
		return nil
	}
	note := cmp.Or(a.note, rand.Text()) // outside of a server every call is new
	m := a.guard.locker.Semaphore(t.scope, t.rule.Limit, lock.WithKey(t.key), lock.TTL(t.rule.TTL), lock.Note(note))
	at, first, err := m.Arrive(a.ctx)
	if err == nil {
		n.arrivals[t.key] = arrival{lock: m, at: at, first: first}
	}
	return hintClient(err)
}

// stoppable are the options of a lock whose rule has the policy Replace.
func (a *attempt) stoppable(t target) []lock.Option {
	if a.newest == nil {
		return nil
	}
	came, ok := a.newest.arrivals[t.key]
	if !ok {
		return nil
	}
	return []lock.Option{lock.OnStop(came.at, func() { a.newest.ask(t) })}
}

// ask is called by the engine when somebody newer wants t's lock, and by the
// attempt itself when it finds that out.
func (n *newest) ask(t target) {
	n.once.Do(func() {
		n.at = t
		n.cancel(ErrReplaced)
	})
}

// stopped tells whether the task was asked to stop.
func (a *attempt) stopped() bool { return a.newest != nil && a.newest.asked.Err() != nil }

// replace takes a lock whose rule has the policy Replace: older tasks are asked
// to stop, and it waits in line for them. When the error finds the task stopped
// itself, a newer one has come.
func (a *attempt) replace(t target) (*lock.Lease, error) {
	if err := a.arrive(t); err != nil {
		return nil, err
	}
	m := a.lockOf(t)
	granted, err := m.TryLock(a.ctx)
	lease, err := a.own(t, granted, err)
	var busy *BusyError
	if !errors.As(err, &busy) || busy.SameTask {
		return lease, err
	}
	// Also where it may not wait: the older ones stop all the same.
	a.call(t, m, a.newest.arrivals[t.key].first)
	if a.stopped() || !a.join() {
		return nil, busy
	}
	defer a.guard.waiting.Add(-1)
	a.warnLongWait(t)
	return a.replaceInLine(t, t.rule.longestWait())
}

func (a *attempt) replaceInLine(t target, most time.Duration) (*lock.Lease, error) {
	if err := a.arrive(t); err != nil {
		return nil, err
	}
	m := a.lockOf(t)
	lease, err := a.wait(t, m, most)
	if err != nil {
		return nil, err
	}
	// Those who waited in line before a newer one are granted the lock first:
	// they find that out here and hand it on.
	if a.call(t, m, a.newest.arrivals[t.key].first); !a.stopped() {
		return lease, nil
	}
	a.disown()
	if err := lease.Unlock(a.ctx); errors.Is(err, lock.ErrBackend) {
		a.backendError(t, err) // the lease frees itself at its deadline
	}
	return nil, ErrReplaced
}

// call asks older tasks to stop. A newer one that waits, or that overtook this
// task before it was in line (first), replaces it; one that comes back from a
// retry and finds a newer one at work has its turn after that. Errors are left to
// the wait, which asks the same Redis.
func (a *attempt) call(t target, m *lock.Lock, first bool) {
	standing, err := m.Stop(a.ctx)
	switch {
	case err != nil:
		a.guard.log.Debug("automutex: older tasks could not be asked to stop",
			"rule", t.rule.Name, "key", t.key, "task", a.note, "error", err)
	case standing == lock.BehindWaiters, standing == lock.BehindHolders && first:
		a.newest.ask(t)
	}
}

// How often a waiting task calls: soon again, for a holder may have taken the
// lock before it could hear, and then once a second.
const (
	callFirst = 50 * time.Millisecond
	callEvery = time.Second
)

// pursue goes with a wait for t's lock: when the task is asked to stop it calls
// giveUp, and for the policy Replace it calls again and again, since messages get
// lost and holders change. The returned function ends its goroutine, but does not
// wait for a call that is under way, which does no harm: the task's own deadline
// may be near, and Redis silent. Close waits for it.
func (a *attempt) pursue(t target, m *lock.Lock, giveUp func()) (end func()) {
	if a.newest == nil {
		return func() {}
	}
	unhook := context.AfterFunc(a.newest.asked, giveUp)
	came, replaces := a.newest.arrivals[t.key]
	if !replaces {
		return func() { unhook() }
	}
	ended := make(chan struct{}) // closed by end
	go func() {
		pause := callFirst
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for {
			select {
			case <-ended:
				return
			case <-timer.C:
			}
			a.call(t, m, came.first)
			pause = min(2*pause, callEvery)
			timer.Reset(pause)
		}
	}()
	return func() {
		unhook()
		close(ended)
	}
}

// replaceable is the context that the handler's is made from: it ends with the
// task's, and with cause ErrReplaced when a newer task asks this one to stop.
func (a *attempt) replaceable() context.Context {
	n := a.newest
	if n == nil {
		return a.ctx
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	unhook := context.AfterFunc(n.asked, func() {
		a.guard.log.Debug("automutex: a newer task has come; the handler's context is cancelled",
			"rule", n.at.rule.Name, "key", n.at.key, "task", a.note)
		cancel(ErrReplaced)
	})
	n.unbind = func() {
		unhook()
		cancel(nil)
	}
	return ctx
}

// ended is what asynq is told when the handler has returned err: of a task that
// was replaced, that it is over.
func (a *attempt) ended(err error) error {
	a.succeeded = err == nil
	switch {
	case a.newest == nil || a.ctx.Err() != nil:
		return err // when asynq has filed the task already, it comes back
	case err == nil || !a.stopped():
		a.newest.over = err == nil || a.last
		return err
	}
	return a.revoke(err)
}

// outrun is the verdict on a task that was asked to stop before it had all of
// its locks; err is why it did not get t's.
func (a *attempt) outrun(t target, err error) *verdict {
	var busy *BusyError
	if errors.As(err, &busy) {
		a.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Waited: busy.Waited, Busy: busy})
	}
	return &verdict{answer: a.revoke(nil)}
}

// revoke ends a replaced task. err is what its handler returned; nil: it has not
// run.
func (a *attempt) revoke(err error) error {
	n := a.newest
	n.over = true
	e := Event{Kind: EventReplaced, Rule: n.at.rule.Name, Key: n.at.key, Policy: n.at.rule.Busy}
	if err == nil {
		e.Waited = time.Since(n.began)
	} else {
		e.Held = time.Since(a.began)
	}
	a.guard.log.Debug("automutex: replaced by a newer task", "rule", e.Rule, "key", e.Key, "task", a.note, "held", e.Held)
	a.observe(e)
	return &revoked{guard: a.guard, rule: e.Rule, key: e.Key, err: err}
}

// leaveArrivals ends what the handler's context needed, and forgets a task that
// is over: should asynq get another one of the same ID, that one is new. It
// comes after the release, so that nobody waits for it.
func (a *attempt) leaveArrivals() {
	n := a.newest
	if n == nil {
		return
	}
	if n.unbind != nil {
		n.unbind()
	}
	if !n.over {
		return
	}
	for key, came := range n.arrivals {
		if err := came.lock.Forget(context.WithoutCancel(a.ctx)); err != nil {
			a.guard.log.Debug("automutex: the task's arrival could not be forgotten; it is in an hour", "key", key, "task", a.note, "error", err)
		}
	}
}
