package automutex

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/tasknote"
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
		lease, err := m.LockOrPark(a.ctx, parkAtOnce)
		return a.keepLease(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	p := a.server.workers.enterLine(m)
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
	lease, err := m.LockOrPark(ctx, p.yield)
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
	delay := busy.parkDelay(a.lockOf(t).HoldTime())
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
	wait := max(e.ExpiresIn, minParkDelay, e.inLine) + time.Duration(min(e.Place, 1e6))*min(hold, maxParkDelay)
	return min(wait+rand.N(wait/4), maxParkDelay-rand.N(maxParkDelay/2)) //nolint:gosec // jitter, no secret
}

// checkInspector warns once of an Inspector that does not see the server's tasks: the
// locks are on another Redis, or database, than asynq, and parked tasks are not woken.
// It looks for the task that is about to park, which is active and so must be there. It
// does so for each task that parks until Redis has answered once.
func (a *attempt) checkInspector() {
	g := a.guard
	if g.inspectorChecked.Load() {
		return
	}
	_, err := g.inspector.GetTaskInfo(a.queue, a.id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		g.inspectorChecked.Store(true)
		g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not called and come back late; "+
			"set it to an asynq.Inspector on the Redis and database of asynq (nil means the Redis of the locks)", "queue", a.queue, "task", a.note)
	case err == nil:
		g.inspectorChecked.Store(true)
	default:
		g.log.Debug("automutex: the Inspector could not look for a task; the next one that parks tries again", "task", a.note, "error", err)
	}
}

// parkedOnText is in the last error of a task that is parked on the key. wakeParked
// recognizes the task by it.
func parkedOnText(key string) string { return "parked on " + key + "," }

// filingTime is how long wakeParked waits for asynq to file the retry of a task that
// was parked a moment ago.
const filingTime = 4 * time.Millisecond

// wakeParked is the lock.Caller: it has asynq run a task, if the task is still parked.
// RunTask runs whatever it finds, also a task that is done, scheduled or archived, so
// wakeParked looks at the task first. What changes between the two is covered by
// asynq's "at least once".
func (g *Guard) wakeParked(ctx context.Context, key, note string) lock.Fate {
	queue, id, ok := tasknote.Parse(note)
	if !ok {
		return lock.FateGone
	}
	if g.paused.isPaused(queue, g.inspector) {
		return lock.FateLater
	}
	var failed error
	for pause := 500 * time.Microsecond; pause <= filingTime; pause *= 2 {
		info, err := g.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound):
			return lock.FateGone
		case err != nil:
			g.log.Debug("automutex: a parked task could not be looked at; it is tried again", "key", key, "task", note, "error", err)
			return lock.FateUnsure
		case info.State == asynq.TaskStatePending:
			return lock.FateComing
		case info.State == asynq.TaskStateRetry && strings.Contains(info.LastErr, parkedOnText(key)):
			// RunTask has no typed errors, so the state is read again.
			if failed = g.inspector.RunTask(queue, id); failed == nil {
				g.moveToFront(ctx, queue, id)
				return lock.FateComing
			}
		case info.State != asynq.TaskStateActive:
			return lock.FateGone // an operator ran, archived or deleted the task
		}
		// Active: asynq has not filed the retry yet, or the task has come back already.
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	if failed != nil {
		g.log.Debug("automutex: a parked task could not be run; it is tried again", "key", key, "task", note, "error", failed)
	}
	return lock.FateUnsure
}

// frontLua moves a task to the end of asynq's pending list from which servers take.
// RunTask has just put the task at the other end, so LREM finds it at once.
var frontLua = redis.NewScript(`
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return 0`)

func (g *Guard) moveToFront(ctx context.Context, queue, id string) {
	if g.frontClient == nil {
		return
	}
	if err := frontLua.Run(ctx, g.frontClient, []string{"asynq:{" + queue + "}:pending"}, id).Err(); err != nil {
		g.log.Debug("automutex: a parked task could not be moved to the front; it runs after what is pending", "queue", queue, "task", id, "error", err)
	}
}

// pausedQueues remembers for a second which queues are paused.
type pausedQueues struct {
	mu    sync.Mutex // guards known; not held across I/O
	known map[string]pausedQueue
}

type pausedQueue struct {
	paused bool
	asked  time.Time
}

// pausedFor is how long the answer for a queue is used.
const pausedFor = time.Second

func (p *pausedQueues) isPaused(queue string, inspector *asynq.Inspector) bool {
	p.mu.Lock()
	q, found := p.known[queue]
	if found && time.Since(q.asked) < pausedFor {
		p.mu.Unlock()
		return q.paused
	}
	if p.known == nil {
		p.known = make(map[string]pausedQueue)
	}
	if found { // this caller asks, the others meanwhile use the old answer
		p.known[queue] = pausedQueue{q.paused, time.Now()}
	}
	p.mu.Unlock()

	info, err := inspector.GetQueueInfo(queue)
	q = pausedQueue{err == nil && info.Paused, time.Now()} // after an error, the look at the task tells
	p.mu.Lock()
	p.known[queue] = q
	p.mu.Unlock()
	return q.paused
}
