package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// This file is the policy Park in the worker. workers.go chooses the task that parks when
// all workers are busy, wake.go wakes parked tasks, and lock/park.go has the lock's side.

// Bounds of parkDelay, the time after which a parked task returns if no process wakes it.
const (
	minParkDelay = 5 * time.Second
	maxParkDelay = 10 * time.Minute

	// orderedDelay is for each place of a task in an ordered key. A backlog of 10,000 tasks behind one that does not
	// come asks Redis less than once a second.
	orderedDelay = 10 * time.Second
)

// assumedHeldTime stands for a key's average held time until one was measured.
const assumedHeldTime = time.Second

// parkClients returns what Park needs: the Inspector that wakes tasks, its Redis as far as that is known, and the
// client that moves tasks to the front of their queue. All are nil where they are not needed.
func parkClients(rdb lock.Client, cfg Config) (inspector *asynq.Inspector, inspected, front redis.UniversalClient, err error) {
	i := slices.IndexFunc(cfg.Rules, func(r Rule) bool { return r.Busy == Park })
	if i < 0 {
		return nil, nil, nil, nil
	}
	inspector, inspected, err = inspectorFor(rdb, cfg, fmt.Sprintf("the policy park of Rules[%d], which is that of a rule without Busy; "+
		"give one, or a redis.UniversalClient as the client, or set Busy to automutex.Retry", i))
	if err != nil || !cfg.WakeAtFront {
		return inspector, inspected, nil, err
	}
	front, universal := rdb.(redis.UniversalClient)
	if !universal {
		return nil, nil, nil, configError("WakeAtFront", "needs a redis.UniversalClient, not a %T", rdb)
	}
	return inspector, inspected, front, nil
}

// inspectorFor returns cfg.Inspector, whose Redis is not known, or an Inspector made from rdb. what says in an error
// what needs one.
func inspectorFor(rdb lock.Client, cfg Config, what string) (*asynq.Inspector, redis.UniversalClient, error) {
	if cfg.Inspector != nil {
		return cfg.Inspector, nil, nil
	}
	client, universal := rdb.(redis.UniversalClient)
	if !universal {
		return nil, nil, configError("Inspector", "is nil, and none can be made from a %T for %s", rdb, what)
	}
	return asynq.NewInspectorFromRedisClient(client), client, nil
}

// lockOrPark takes a lock, or parks the task. The task waits in line in its worker. It parks
//
//   - at once if the server was made without ServerConfig, or if MaxWaiting workers wait;
//   - when all workers of the server are busy and workers.askOneToPark chooses this task;
//   - at parkDeadline;
//   - at once if the key is paused, or if its gate is closed for more than a second.
//
// If the task parked, the error is a *BusyError with parked set: Redis keeps the task's
// place in line. Other errors are those of acquire.
func (d *delivery) lockOrPark(t target, handle *lock.Lock) error {
	if d.server == nil || !d.reserveWait() {
		defer d.takeTurn(t.key)()
		lease, err := inner.LockOrPark(d.ctx, handle, parkNow)
		return d.keepLease(t, lease, err)
	}
	defer d.guard.waiting.Add(-1)
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	defer context.AfterFunc(d.guard.closing, cancel)()
	waiter := d.server.workers.enterLine(measuredLock{handle, d.turn(t)}, d.number)
	defer d.takeTurn(t.key)()
	granted := false // stays false if an observer panics: then the worker comes free
	defer func() { d.server.workers.leaveLine(waiter, !granted) }()
	defer d.observeWaited(t)
	// While this task waits, a newer task may replace it on a lock that it holds already.
	// Then cancel ends the wait.
	defer d.watchWhileWaiting(t, handle, cancel)()
	if by, ok := d.parkDeadline(); ok {
		// Stop does not wait for a timer that fires now. Its askToPark closes parkNow when
		// the wait is over, and nobody reads parkNow then.
		defer time.AfterFunc(time.Until(by), waiter.askToPark).Stop()
	}
	lease, err := inner.LockOrPark(ctx, handle, waiter.parkNow)
	err = d.keepLease(t, lease, err)
	granted = err == nil
	var busy *BusyError
	if d.guard.closing.Err() != nil && errors.As(err, &busy) && !busy.parked {
		return ErrClosed // Close ended the wait, and not the policy
	}
	return err
}

// arrivals keeps the tasks of a key in the order in which they arrived at this process until
// each has asked for the lock: asynq hands them over in its order, and their first commands
// travel on different connections.
type arrivals struct {
	mu   sync.Mutex // guards last; held for moments
	last map[string]chan struct{}
}

// turnPatience bounds how long a task waits for the one before it to ask. An ask that takes
// longer has met a Redis that hangs, and then the order of arrival is lost.
const turnPatience = time.Second

// takeTurn waits until the tasks of the key that arrived before have asked for the lock. When
// this one has asked, or the returned function is called, the next one is let through.
func (d *delivery) takeTurn(key string) (leave func()) {
	if d.server != nil {
		for !d.server.workers.isFirst(d.number) {
			time.Sleep(comingFor / 50) // comingFor in all
		}
	}
	a, mine := &d.guard.arrivals, make(chan struct{})
	a.mu.Lock()
	before := a.last[key]
	if a.last == nil {
		a.last = make(map[string]chan struct{})
	}
	a.last[key] = mine
	a.mu.Unlock()
	if d.server != nil {
		d.server.workers.cameToKey(d.number)
	}
	if before != nil {
		select {
		case <-before:
		case <-time.After(turnPatience):
		case <-d.ctx.Done():
		}
	}
	d.asked = sync.OnceFunc(func() {
		close(mine)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.last[key] == mine {
			delete(a.last, key)
		}
	})
	return d.asked
}

// parkDeadline returns when a task that waits in its worker parks: after half of its time
// from arrival to deadline, and at the latest `margin` before the deadline. Its handler has
// at least the other half. A parked task has its whole Timeout again when it returns.
// parkDeadline returns false for a task without a deadline.
func (d *delivery) parkDeadline() (by time.Time, ok bool) {
	deadline, ok := d.ctx.Deadline()
	if !ok {
		return time.Time{}, false
	}
	half := d.arrivedAt.Add(deadline.Sub(d.arrivedAt) / 2)
	if latest := deadline.Add(-margin); latest.Before(half) {
		return latest, true
	}
	return half, true
}

// parkNow is a closed channel. LockOrPark parks the task at once if the lock is busy.
var parkNow = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// park returns the task to asynq. Redis keeps the task's place in line. asynq runs the task
// after parkDelay, unless a process wakes it before.
func (d *delivery) park(t target, busy *BusyError) error {
	delay := busy.parkDelay(inner.AverageHeld(d.lockOf(t)), d.inOrder(t))
	d.keepComesBack(delay, false)
	d.checkInspector()
	d.observe(Event{Kind: EventParked, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay, Busy: busy})
	return &returnedTask{guard: d.guard, err: busy, delay: delay}
}

// parkDelay returns after how long a parked task returns if no process wakes it: about when
// its turn would come if the holder's process had died.
//
//	max(opens, 5 s, time in line so far) + Place * heldTime, plus up to a quarter as jitter
//
// and at most 5 to 10 minutes, at random, so that tasks do not return together.
//
//   - opens is ExpiresIn: the time until the first holder's deadline, until the gate opens,
//     or until the pause ends. CloseGate adds 5 s, in which the parked tasks are woken in order.
//   - The time in line doubles the delay of a task that returned and did not get the lock.
//   - Place counts the tasks ahead in line. The holder counts with ExpiresIn.
//   - heldTime is how long the key was held on average, 1 s for 0 (not measured), and no less
//     than the time for which the present holder has had the key.
//
// Behind an archived task of an ordered key it is 5 to 10 minutes at once: to run or skip that task wakes the
// next one. A task of an ordered key stays away for at least orderedDelay/2 for each place beyond that.
func (e *BusyError) parkDelay(heldTime time.Duration, ordered bool) time.Duration {
	if far := time.Duration(min(e.Place, 1e6)) * orderedDelay; ordered && far > maxParkDelay {
		return far - rand.N(far/2) //nolint:gosec // jitter, no secret
	}
	if e.Reason == ReasonArchived {
		return maxParkDelay - rand.N(maxParkDelay/2) //nolint:gosec // jitter, no secret
	}
	if heldTime == 0 {
		heldTime = assumedHeldTime
	}
	if !e.gateClosed() {
		heldTime = max(heldTime, e.takenFor)
	}
	opens := e.ExpiresIn
	if e.Reason == ReasonClosed {
		opens += minParkDelay // time to wake the parked tasks, in order
	}
	wait := max(opens, minParkDelay, e.inLine) + time.Duration(min(e.Place, 1e6))*min(heldTime, maxParkDelay)
	return min(wait+rand.N(wait/4), maxParkDelay-rand.N(maxParkDelay/2)) //nolint:gosec // jitter, no secret
}

// inspectorHint says what to do about an Inspector that sees no task.
const inspectorHint = "set it to an asynq.Inspector on the Redis and database of asynq (nil means the Redis of the locks)"

// inspectorPatience bounds how long checkInspector delays a task that parks.
const inspectorPatience = time.Second

// checkInspector warns once if the Inspector does not see the server's tasks: the locks are
// on another Redis or database than asynq, so no process can wake parked tasks. It asks
// for the task that is about to park. That task is active, so the Inspector must find it.
// One task asks at a time, until one got an answer.
func (d *delivery) checkInspector() {
	g := d.guard
	if g.inspectorChecked.Load() || !g.inspectorAsked.CompareAndSwap(false, true) {
		return
	}
	err := d.lookForItself()
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		g.inspectorChecked.Store(true)
		g.blind.Store(true)
		g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not woken and return late, and a key in order stands when its next task is deleted; "+
			inspectorHint, "queue", d.queue, "task", d.note)
	case err == nil:
		g.inspectorChecked.Store(true)
	default:
		g.log.Debug("automutex: the Inspector could not look for a task; a later one that parks tries again", "task", d.note, "error", err)
	}
}

// lookForItself asks the Inspector for this task, and waits up to inspectorPatience. An
// Inspector takes no context, so the call runs on a goroutine of its own. The goroutine ends
// with the timeouts of the Inspector's client, and counts as a task until then: Close waits
// for it. An answer that comes later is dropped, since the task may have ended by then.
func (d *delivery) lookForItself() error {
	g := d.guard
	if !g.enter() {
		g.inspectorAsked.Store(false)
		return ErrClosed
	}
	answer := make(chan error, 1)
	go func() {
		defer g.leave()
		defer g.inspectorAsked.Store(false)
		_, err := g.inspector.GetTaskInfo(d.queue, d.id)
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(inspectorPatience):
		return fmt.Errorf("no answer within %s", inspectorPatience)
	}
}
