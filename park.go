package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// How long a parked task stays away if nobody calls it.
const (
	// assumedHold is how long each place in line is assumed to hold the key before any
	// hold was measured.
	assumedHold = time.Second
	minAway     = 5 * time.Second
	maxAway     = 10 * time.Minute
)

// parkWith is what Park needs: the Inspector that wakes tasks, and the client
// that moves them to the front. Both are nil where they are not needed.
func parkWith(rdb lock.Client, cfg Config) (inspector *asynq.Inspector, front redis.UniversalClient, err error) {
	i := 0
	for i < len(cfg.Rules) && cfg.Rules[i].Busy != Park {
		i++
	}
	client, universal := rdb.(redis.UniversalClient)
	switch {
	case i == len(cfg.Rules):
		return nil, nil, nil
	case cfg.Inspector == nil && !universal:
		return nil, nil, fmt.Errorf("automutex: Config.Inspector: is nil, and none can be made from a %T for the policy park of Rules[%d]; "+
			"give one, or a redis.UniversalClient as the client", rdb, i)
	case cfg.WakeAtFront && !universal:
		return nil, nil, fmt.Errorf("automutex: Config.WakeAtFront: needs a redis.UniversalClient, not a %T", rdb)
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

// acquireOrPark takes a lock, standing in line in the worker while the server
// has another one free. The error is a *BusyError with parked set when the
// task's place in line is kept for it.
func (a *attempt) acquireOrPark(t target, m *lock.Lock) (*lock.Lease, error) {
	if a.server == nil || !a.join() {
		// Nobody knows the server's workers, or MaxWaiting stand in line.
		lease, err := m.LockOrPark(a.ctx, now)
		return a.own(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	p := a.server.workers.wait(m)
	var lease *lock.Lease // stays nil when an observer panics
	defer func() { a.server.workers.over(p, lease == nil) }()
	defer a.stepOut(t)
	// cancel ends the wait, and so the call below, when a newer task replaces
	// this one on a lock that it holds already.
	defer a.pursue(t, m, cancel)()
	if by, ok := a.parkBy(); ok {
		// A timer that fires as it is stopped gives way for a call that is over.
		defer time.AfterFunc(time.Until(by), p.giveWay).Stop()
	}
	granted, err := m.LockOrPark(ctx, p.yield)
	lease, err = a.own(t, granted, err)
	var busy *BusyError
	if a.guard.closing.Err() != nil && errors.As(err, &busy) && !busy.parked {
		return nil, ErrClosed
	}
	return lease, err
}

// parkBy is when a task that waits in its worker goes back to asynq: when half
// of the time is over that it had when it came, and the margin before its
// deadline at the latest. Its handler so has at least the other half, and a task
// that parked has its whole Timeout again when it comes back. not ok: the task
// has no deadline.
func (a *attempt) parkBy() (by time.Time, ok bool) {
	deadline, ok := a.ctx.Deadline()
	if !ok {
		return time.Time{}, false
	}
	half := a.came.Add(deadline.Sub(a.came) / 2)
	if latest := deadline.Add(-margin); latest.Before(half) {
		return latest, true
	}
	return half, true
}

// now is a yield that is closed.
var now = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// park hands the task back with its place in line kept. Its delay matters only if
// nobody calls the task.
func (a *attempt) park(t target, busy *BusyError) *verdict {
	away := busy.away(a.lockOf(t).HoldTime())
	a.checkInspector()
	a.observe(Event{Kind: EventParked, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: away, Busy: busy})
	return &verdict{answer: &handBack{guard: a.guard, err: busy, delay: away}}
}

// away is after how long a parked task comes back if nobody calls it: about when its
// turn would come if the holder's process had died. hold is how long the key was held
// on average, 0 where that is not known. The present holder counts for more: one that
// has worked for a minute is taken to need a minute yet, and so is each before the
// task. A task that came back in vain stays away for as long as it has been in line,
// so the time doubles. Jitter keeps tasks from coming back together.
func (e *BusyError) away(hold time.Duration) time.Duration {
	if hold == 0 {
		hold = assumedHold
	}
	if !e.cooldown {
		hold = max(hold, e.takenFor)
	}
	wait := max(e.ExpiresIn, minAway, e.inLine) + time.Duration(min(e.Place, 1e6))*min(hold, maxAway)
	return min(wait+rand.N(wait/4), maxAway-rand.N(maxAway/2)) //nolint:gosec // jitter, no secret
}

// checkInspector warns once of an Inspector that does not see the tasks of the
// server, for want of which parked tasks are not called: the locks are on another
// Redis, or database, than asynq. It looks for the task that is about to park,
// which is active and so must be there, until it has had an answer.
func (a *attempt) checkInspector() {
	g := a.guard
	if g.inspectorSeen.Load() {
		return
	}
	_, err := g.inspector.GetTaskInfo(a.queue, a.id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		g.inspectorSeen.Store(true)
		g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not called and come back late; "+
			"set it to an asynq.Inspector on the Redis and database of asynq (nil means the Redis of the locks)", "queue", a.queue, "task", a.note)
	case err == nil:
		g.inspectorSeen.Store(true)
	default:
		g.log.Debug("automutex: the Inspector could not look for a task; the next one that parks tries again", "task", a.note, "error", err)
	}
}

// parkedOn is how the last error of a parked task says so: call knows the task
// by it.
func parkedOn(key string) string { return "parked on " + key + "," }

// filing is how long a call waits for asynq to file the retry of a task that
// was parked a moment ago.
const filing = 4 * time.Millisecond

// call is the lock.Caller: it runs a parked task, if it is still that. asynq's
// RunTask runs whatever it finds, also what is done, scheduled or archived, so
// the task is looked at first; what changes between the two is asynq's "at
// least once".
func (g *Guard) call(ctx context.Context, key, note string) lock.Fate {
	queue, id, ok := parseNote(note)
	if !ok {
		return lock.FateGone
	}
	if g.paused.is(queue, g.inspector) {
		return lock.FateLater
	}
	var failed error
	for pause := 500 * time.Microsecond; pause <= filing; pause *= 2 {
		info, err := g.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound):
			return lock.FateGone
		case err != nil:
			g.log.Debug("automutex: a parked task could not be looked at; it is tried again", "key", key, "task", note, "error", err)
			return lock.FateUnsure
		case info.State == asynq.TaskStatePending:
			return lock.FateComing
		case info.State == asynq.TaskStateRetry && strings.Contains(info.LastErr, parkedOn(key)):
			// Its refusals differ in text alone: the next look tells.
			if failed = g.inspector.RunTask(queue, id); failed == nil {
				g.moveToFront(ctx, queue, id)
				return lock.FateComing
			}
		case info.State != asynq.TaskStateActive:
			return lock.FateGone // it was run, archived or deleted and enqueued anew by somebody else
		}
		// Active: asynq has not filed the retry yet, or it came already.
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

// frontLua moves a task to the end of asynq's pending list from which it takes.
// RunTask has just put it to the other one, so it is found at once.
var frontLua = redis.NewScript(`
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return 0`)

func (g *Guard) moveToFront(ctx context.Context, queue, id string) {
	if g.front == nil {
		return
	}
	if err := frontLua.Run(ctx, g.front, []string{"asynq:{" + queue + "}:pending"}, id).Err(); err != nil {
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

// pausedFor is how long it is believed.
const pausedFor = time.Second

func (p *pausedQueues) is(queue string, inspector *asynq.Inspector) bool {
	p.mu.Lock()
	q, found := p.known[queue]
	if found && time.Since(q.asked) < pausedFor {
		p.mu.Unlock()
		return q.paused
	}
	if p.known == nil {
		p.known = make(map[string]pausedQueue)
	}
	if found { // one asks, the others go by what was known
		p.known[queue] = pausedQueue{q.paused, time.Now()}
	}
	p.mu.Unlock()

	info, err := inspector.GetQueueInfo(queue)
	q = pausedQueue{err == nil && info.Paused, time.Now()} // an error: the look at the task will tell
	p.mu.Lock()
	p.known[queue] = q
	p.mu.Unlock()
	return q.paused
}
