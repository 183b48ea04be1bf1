package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// Bounds of the time after which a parked task comes back if nobody wakes it.
const (
	// assumedHold is the hold time of a key for which none was measured yet.
	assumedHold  = time.Second
	minParkDelay = 5 * time.Second
	maxParkDelay = 10 * time.Minute
)

// parkClients returns what Park needs: the Inspector that wakes tasks, and the client
// that moves them to the front of their queue. Both are nil where they are not needed.
func parkClients(rdb lock.Client, cfg Config) (inspector *asynq.Inspector, front redis.UniversalClient, err error) {
	i := 0
	for i < len(cfg.Rules) && cfg.Rules[i].Busy != Park {
		i++
	}
	client, universal := rdb.(redis.UniversalClient)
	var mistakes fieldErrors
	switch {
	case i == len(cfg.Rules):
		return nil, nil, nil
	case cfg.Inspector == nil && !universal:
		mistakes.addf("Inspector", "is nil, and none can be made from a %T for the policy park of Rules[%d]; "+
			"give one, or a redis.UniversalClient as the client", rdb, i)
		return nil, nil, joinFieldErrors(mistakes.all)
	case cfg.WakeAtFront && !universal:
		mistakes.addf("WakeAtFront", "needs a redis.UniversalClient, not a %T", rdb)
		return nil, nil, joinFieldErrors(mistakes.all)
	}
	inspector = cfg.Inspector
	if inspector == nil {
		inspector = asynq.NewInspectorFromRedisClient(client)
	}
	if cfg.WakeAtFront {
		front = client
	}
	return inspector, front, nil
}

// lockOrPark takes a lock. It waits in line, in its worker, while the server has
// another worker free. The error is a *BusyError with parked set when the task's place
// in line is kept for it.
func (a *attempt) lockOrPark(t target, m *lock.Lock) error {
	if a.server == nil || !a.reserveWait() {
		// The server's workers are not known, or MaxWaiting workers wait already.
		lease, err := inner.LockOrPark(a.ctx, m, parkAtOnce)
		return a.keepLease(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	p := a.server.workers.enterLine(measuredLock{m})
	granted := false // stays false when an observer panics
	defer func() { a.server.workers.leaveLine(p, !granted) }()
	defer a.observeWaited(t)
	// A newer task may replace this one on a lock that it holds already. cancel then
	// ends the wait below.
	defer a.watchWhileWaiting(t, m, cancel)()
	if by, ok := a.parkDeadline(); ok {
		// A timer that fires while it is being stopped closes the yield of a wait that
		// is over, which does nothing.
		defer time.AfterFunc(time.Until(by), p.giveWay).Stop()
	}
	lease, err := inner.LockOrPark(ctx, m, p.yield)
	err = a.keepLease(t, lease, err)
	granted = err == nil
	var busy *BusyError
	if a.guard.closing.Err() != nil && errors.As(err, &busy) && !busy.parked {
		return ErrClosed
	}
	return err
}

// parkDeadline returns when a task that waits in its worker parks: after half of the
// time that it had when it came, and at the latest the margin before its deadline. Its
// handler has at least the other half. A parked task has its whole Timeout again when
// it comes back. parkDeadline returns false for a task without a deadline.
func (a *attempt) parkDeadline() (by time.Time, ok bool) {
	deadline, ok := a.ctx.Deadline()
	if !ok {
		return time.Time{}, false
	}
	half := a.arrivedAt.Add(deadline.Sub(a.arrivedAt) / 2)
	if latest := deadline.Add(-margin); latest.Before(half) {
		return latest, true
	}
	return half, true
}

// parkAtOnce is a yield channel that is closed.
var parkAtOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// park hands the task back with its place in line kept. The task comes back after its
// delay if nobody wakes it before.
func (a *attempt) park(t target, busy *BusyError) outcome {
	delay := busy.parkDelay(inner.HoldTime(a.lockOf(t)))
	a.checkInspector()
	a.observe(Event{Kind: EventParked, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay, Busy: busy})
	return finish(&handBack{guard: a.guard, err: busy, delay: delay})
}

// parkDelay returns after how long a parked task comes back if nobody wakes it: about
// when its turn would come if the holder's process had died. hold is how long the key
// was held on average, or 0 where that is not known. When the present holder has held
// the key for longer, that time counts instead, for the holder and for each task ahead
// in line. A task that came back in vain stays away for at least as long as it has been
// in line, so the delay doubles. Jitter keeps tasks from coming back together.
func (e *BusyError) parkDelay(hold time.Duration) time.Duration {
	if hold == 0 {
		hold = assumedHold
	}
	if !e.gateClosed() {
		hold = max(hold, e.takenFor)
	}
	opens := e.ExpiresIn
	if e.Reason == ReasonHold {
		opens += minParkDelay // those that are parked are called when it ends, and in order
	}
	wait := max(opens, minParkDelay, e.inLine) + time.Duration(min(e.Place, 1e6))*min(hold, maxParkDelay)
	return min(wait+rand.N(wait/4), maxParkDelay-rand.N(maxParkDelay/2)) //nolint:gosec // jitter, no secret
}

// inspectorPatience is how long a task that parks waits for the answer to checkInspector.
const inspectorPatience = time.Second

// checkInspector warns once of an Inspector that does not see the server's tasks: the
// locks are on another Redis, or database, than asynq, and parked tasks are not woken.
// It looks for the task that is about to park, which is active and so must be there.
// Tasks look one after another until one has had an answer.
func (a *attempt) checkInspector() {
	g := a.guard
	if g.inspectorChecked.Load() || !g.inspectorAsked.CompareAndSwap(false, true) {
		return
	}
	err := a.lookForItself()
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		g.inspectorChecked.Store(true)
		g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not called and come back late; "+
			"set it to an asynq.Inspector on the Redis and database of asynq (nil means the Redis of the locks)", "queue", a.queue, "task", a.note)
	case err == nil:
		g.inspectorChecked.Store(true)
	default:
		g.log.Debug("automutex: the Inspector could not look for a task; a later one that parks tries again", "task", a.note, "error", err)
	}
}

// lookForItself asks the Inspector for the task, for inspectorPatience. An Inspector takes
// no context, so the question has a goroutine of its own. It ends with the timeouts of the
// Inspector's client, and counts as a task until then: Close waits for it. An answer that
// comes too late is dropped, since the task may have ended by then.
func (a *attempt) lookForItself() error {
	g := a.guard
	if !g.enter() {
		g.inspectorAsked.Store(false)
		return ErrClosed
	}
	answer := make(chan error, 1)
	go func() {
		defer g.leave()
		defer g.inspectorAsked.Store(false)
		_, err := g.inspector.GetTaskInfo(a.queue, a.id)
		answer <- err
	}()
	timer := time.NewTimer(inspectorPatience)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-timer.C:
		return fmt.Errorf("no answer within %s", inspectorPatience)
	}
}

// parkedOnText is in the last error of a task that is parked on the key. wakeParked
// recognizes the task by it.
func parkedOnText(key string) string { return "parked on " + key + "," }
