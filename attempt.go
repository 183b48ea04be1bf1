package automutex

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/lock"
)

// attempt is one run of the middleware for one task: what asynq says of it, and
// the leases it holds. It belongs to the worker's goroutine.
type attempt struct {
	guard *Guard
	ctx   context.Context //nolint:containedctx // the attempt's own: it lives as long as the call
	task  *asynq.Task

	queue, id string
	note      string // "queue/id", opaque to lock; empty outside a server
	last      bool   // asynq would archive the task for any error
	came      time.Time
	server    *server

	newest    *newest       // nil: no rule with the policy Replace was met
	stays     []*stay       // leases held, in the order taken
	inLine    time.Time     // since when it stands in line; zero: it does not
	began     time.Time     // when the handler began; zero: it has not
	succeeded bool          // the handler returned nil
	returned  chan struct{} // closed when it has returned, or panicked
}

// stay is one lease of an attempt.
type stay struct {
	target target
	lease  *lock.Lease
	taken  time.Time
	alone  context.Context //nolint:containedctx // ends with the lease and nothing else
	lost   sync.Once       // the loss was told of
	unhook []func() bool   // stops the watchers
	told   bool            // EventAcquired was observed, or Observe panicked on it

	// Set by release.
	open  bool          // the lease had not ended before
	held  time.Duration // from taken to release
	ended error         // what the release answered
}

func (g *Guard) newAttempt(ctx context.Context, t *asynq.Task) *attempt {
	a := &attempt{guard: g, ctx: ctx, task: t, server: g.serverOf(ctx), came: time.Now()}
	a.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if a.id, ok = asynq.GetTaskID(ctx); ok {
		a.note = taskNote(a.queue, a.id)
		retried, _ := asynq.GetRetryCount(ctx)
		most, _ := asynq.GetMaxRetry(ctx)
		a.last = retried >= most
	}
	return a
}

// taskNote names a task across queues. IDs are unique in their queue only, and
// either may hold any character, so the queue is escaped: no two tasks share a
// note.
func taskNote(queue, id string) string { return url.PathEscape(queue) + "/" + id }

// lockOf is the lock of a target as this attempt takes it.
func (a *attempt) lockOf(t target) *lock.Lock {
	return a.guard.lockOf(t, a.note, append(a.stoppable(t), lock.OnWait(func() { a.lineUp(t) }))...)
}

func (g *Guard) lockOf(t target, note string, more ...lock.Option) *lock.Lock {
	return g.locker.Semaphore(t.scope, t.rule.Limit, append([]lock.Option{
		lock.WithKey(t.key), lock.TTL(t.rule.TTL), lock.MaxHold(t.rule.MaxHold), lock.Note(note), lock.OnePerNote(),
	}, more...)...)
}

// verdict is why the handler does not run, and what asynq is told. nil: it runs.
type verdict struct {
	answer error // nil: the task is done
	closed bool  // the Guard was closed; answer has no meaning
}

// take gets the lock of one target, or the verdict.
func (a *attempt) take(t target) *verdict {
	if a.holds(t.key) {
		return nil
	}
	began := time.Now()
	if _, err := a.acquire(t); err != nil {
		return a.judge(t, err)
	}
	a.guard.outage.over(a.guard.log)
	a.tellAcquired(t, time.Since(began))
	return nil
}

// holds tells whether a Guard.Middleware around this one, of the same Guard,
// holds the key for this task: installed twice by mistake, it must not wait for
// itself.
func (a *attempt) holds(key string) bool {
	for h := held(a.ctx); h != nil; h = h.outer {
		if h.guard == a.guard && h.stay.target.key == key {
			return true
		}
	}
	return false
}

// lostEarly is a lease that ended before the handler began, while the task was
// waiting for another or for Redis' answer: it has no turn. nil when there is none.
func (a *attempt) lostEarly() *stay {
	for _, s := range a.stays {
		if s.alone.Err() != nil {
			return s
		}
	}
	return nil
}

func (s *stay) loss() error {
	return fmt.Errorf("automutex: rule %q: key %q was lost before the handler began: %w",
		s.target.rule.Name, s.target.key, context.Cause(s.alone))
}

// bind makes the handler's context: it ends as replaceable does, and with cause
// lock.ErrLost when a lease is lost. Two watchers run for each lease, on
// goroutines of the context package that only exist once it has something to
// say; release unhooks them. The loss of a lease is watched by itself: it is
// told of also when the task's context, or another lease, ended before.
func (a *attempt) bind() context.Context {
	ctx := context.WithValue(a.replaceable(), passedKey{a.guard}, a.task)
	a.returned = make(chan struct{})
	for _, s := range a.stays {
		ctx = context.WithValue(s.lease.Bind(ctx), heldKey{}, &holding{guard: a.guard, stay: s, outer: held(ctx)})
		s.unhook = append(s.unhook,
			context.AfterFunc(s.alone, func() {
				if cause := context.Cause(s.alone); errors.Is(cause, lock.ErrLost) {
					a.tellLostBeside(s, cause)
				}
			}),
			context.AfterFunc(a.ctx, func() { a.tellOverdue(s) }))
	}
	return ctx
}

// overdueGrace is how long a handler may take to notice that its context ended
// before that is worth telling.
const overdueGrace = 100 * time.Millisecond

// tellOverdue logs and observes a handler that does not return although its
// task's context has ended. Its goroutine ends when the handler returns, or
// after the grace.
func (a *attempt) tellOverdue(s *stay) {
	grace := time.NewTimer(overdueGrace)
	defer grace.Stop()
	select {
	case <-a.returned:
		return
	case <-grace.C:
	}
	cause := context.Cause(a.ctx)
	a.guard.log.Warn("automutex: the handler runs past its task's end; the key stays taken until it returns",
		"rule", s.target.rule.Name, "key", s.target.key, "task", a.note, "cause", cause)
	a.observeBeside(Event{Kind: EventOverdue, Rule: s.target.rule.Name, Key: s.target.key, Held: time.Since(s.taken), Err: cause})
}

// tellLost logs and observes the loss of a lease, once.
func (a *attempt) tellLost(s *stay, cause error) { a.tellLostTo(a.observe, s, cause) }

// tellLostBeside is tellLost on a goroutine of the Guard's own.
func (a *attempt) tellLostBeside(s *stay, cause error) { a.tellLostTo(a.observeBeside, s, cause) }

func (a *attempt) tellLostTo(observe func(Event), s *stay, cause error) {
	s.lost.Do(func() {
		a.guard.log.Warn("automutex: lease lost while the handler runs; its context is cancelled",
			"rule", s.target.rule.Name, "key", s.target.key, "task", a.note, "cause", cause)
		observe(Event{Kind: EventLost, Rule: s.target.rule.Name, Key: s.target.key, Held: time.Since(s.taken), Err: cause})
	})
}

// holding is what a handler's context knows of a lease.
type holding struct {
	guard *Guard
	stay  *stay
	outer *holding
}

type heldKey struct{}

func held(ctx context.Context) *holding {
	h, _ := ctx.Value(heldKey{}).(*holding)
	return h
}

// Lease is the lease that the handler of ctx runs under: the one taken last
// where there are several. false outside a guarded handler, or when the policy
// Allow let it run without.
func Lease(ctx context.Context) (*lock.Lease, bool) {
	if h := held(ctx); h != nil {
		return h.stay.lease, true
	}
	return nil, false
}

// LeaseOf is the lease of the rule with that name. Rules whose keys are equal
// for this task share one lease.
func LeaseOf(ctx context.Context, ruleName string) (*lock.Lease, bool) {
	for h := held(ctx); h != nil; h = h.outer {
		if h.stay.target.serves(ruleName) {
			return h.stay.lease, true
		}
	}
	return nil, false
}

// Fence is the fence of [Lease]: a number that grows from run to run of the
// same key. Hand it to what the handler writes to, and have it refuse lower
// ones.
func Fence(ctx context.Context) (int64, bool) {
	lease, ok := Lease(ctx)
	if !ok {
		return 0, false
	}
	return lease.Fence(), true
}
