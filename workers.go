package automutex

import (
	"slices"
	"sync"
	"time"

	"github.com/automutex/automutex/lock"
)

const (
	// nearTurn is how long a wait may keep the server's last worker: less than it takes to
	// park and return.
	nearTurn = 20 * time.Millisecond
	// nearTurnInOrder is nearTurn for an ordered key. A task that parks has all behind it park as well, and
	// comes back behind what is pending.
	nearTurnInOrder = 5 * nearTurn
	// nearTurnCheck is when askOneToPark looks again at such a wait, which should be over.
	nearTurnCheck = 2 * nearTurn
	// undecidedFor is how long a task has to ask for its own lock before one that came before it
	// parks; undecidedCheck is how often to look.
	undecidedFor   = 10 * time.Millisecond
	undecidedCheck = time.Millisecond
	// comingFor is how long a task under Park waits for those that started before it to come
	// to their keys, so that tasks of one key ask in the order of their starts.
	comingFor = 5 * time.Millisecond
)

// workers counts the busy workers of one server, and knows which of them only wait in
// line and could park. While a worker is free they may wait. When the last worker is
// taken, the task that came last parks, of those that wait. Of an ordered key it is the task whose turn
// comes last.
//
// A task counts from when asynq makes its context, whether or not its handler is wrapped in the
// Middleware, until the Middleware returns. The end of a task that is not wrapped is not known:
// it counts until more tasks have started than there are workers. So a server that wraps only
// some of its handlers may have more workers free than this counts, and never less.
type workers struct {
	limit int64

	mu             sync.Mutex           // guards what follows; never held across I/O
	busy           int64                // at most limit
	started        int64                // how many tasks have started
	startedAt      time.Time            // when the last of them did
	coming         []comingTask         // those that started a moment ago and have not come to their key, oldest first
	waiting        []*waitingWorker     // in the order in which their tasks started
	inLine         map[string]int       // how many of them for each key
	lastTurn       map[string]time.Time // for each ordered key in inLine: when one of them last got its lock, or the first came
	parking        *waitingWorker       // was asked to park, and has not yet: one at a time, since it frees one worker
	checkScheduled bool                 // a timer will call askOneToPark again; it fires once
}

// waitedLock is the lock that a worker waits for.
type waitedLock interface {
	Key() string
	AverageHeld() time.Duration
	// Turn is the waiter's place in the order of the key, math.MaxInt64 for a task that joins at its arrival; 0: the
	// key is not ordered.
	Turn() int64
}

// measuredLock is a lock of package lock as a waitedLock.
type measuredLock struct {
	*lock.Lock

	turn int64
}

// Turn returns the waiter's place in the order of the key; 0: the key is not ordered.
func (l measuredLock) Turn() int64 { return l.turn }

// AverageHeld returns how long the lock is held on average; 0: not known.
func (l measuredLock) AverageHeld() time.Duration { return inner.AverageHeld(l.Lock) }

// waitingWorker is a worker that waits in line.
type waitingWorker struct {
	lock    waitedLock
	number  int64 // of its task, in the order of starts
	since   time.Time
	parkNow chan struct{} // closed when its task is to park
	once    sync.Once
}

func (waiter *waitingWorker) askToPark() { waiter.once.Do(func() { close(waiter.parkNow) }) }

func newWorkers(limit int) *workers {
	return &workers{limit: int64(limit), inLine: make(map[string]int), lastTurn: make(map[string]time.Time)}
}

// taskStarted counts a worker as busy. It returns the number of the task, in the order of starts.
func (w *workers) taskStarted() (number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = min(w.busy+1, w.limit)
	w.started++
	w.startedAt = time.Now()
	w.coming = append(w.pruneComing(), comingTask{w.started, w.startedAt})
	w.askOneToPark()
	return w.started
}

func (w *workers) taskEnded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = max(w.busy-1, 0)
}

// comingTask is a task that may yet come to a key.
type comingTask struct {
	number int64
	at     time.Time
}

// pruneComing returns coming without the tasks that started too long ago to be waited for.
// Callers hold mu.
func (w *workers) pruneComing() []comingTask {
	n := 0
	for n < len(w.coming) && time.Since(w.coming[n].at) > comingFor {
		n++
	}
	return slices.Delete(w.coming, 0, n)
}

// cameToKey notes that the task of that number has come to its key, or needs none.
func (w *workers) cameToKey(number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.coming = slices.DeleteFunc(w.coming, func(c comingTask) bool { return c.number == number })
}

// isFirst reports whether no task that started before that one may yet come to its key. asynq
// starts its tasks in order, each on a goroutine of its own, and these overtake each other.
func (w *workers) isFirst(number int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.coming = w.pruneComing()
	return len(w.coming) == 0 || w.coming[0].number >= number
}

// enterLine adds a worker that waits in line for m, with the task of that number. Its parkNow
// may be closed already.
func (w *workers) enterLine(m waitedLock, number int64) *waitingWorker {
	waiter := &waitingWorker{lock: m, number: number, since: time.Now(), parkNow: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := len(w.waiting)
	for at > 0 && w.waiting[at-1].number > number {
		at--
	}
	w.waiting = slices.Insert(w.waiting, at, waiter)
	if w.inLine[m.Key()]++; w.inLine[m.Key()] == 1 && m.Turn() != 0 {
		w.lastTurn[m.Key()] = waiter.since
	}
	w.askOneToPark()
	return waiter
}

// leaveLine removes a worker that waits no more. workerFree is false when it got its lock:
// then no worker comes free, and if leaveLine's worker was asked to park, another is asked.
func (w *workers) leaveLine(waiter *waitingWorker, workerFree bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.waiting, waiter); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
		key := waiter.lock.Key()
		if w.inLine[key]--; w.inLine[key] == 0 {
			delete(w.inLine, key)
			delete(w.lastTurn, key)
		} else if !workerFree && waiter.lock.Turn() != 0 {
			w.lastTurn[key] = time.Now()
		}
	}
	if w.parking == waiter {
		w.parking = nil
		if !workerFree {
			w.askOneToPark()
		}
	}
}

// askOneToPark asks the newest waiting worker to park its task, if no worker is free
// and none was asked already. A worker whose turn is near stays: parking and coming
// back would take longer. While a task that started later may yet find its own key busy, nobody
// is asked for a moment: that task is to park then, so that those before it stay in line. Callers
// hold mu.
func (w *workers) askOneToPark() {
	if w.busy < w.limit || w.parking != nil || len(w.waiting) == 0 {
		return
	}
	if newest := w.waiting[len(w.waiting)-1]; newest.number < w.started && time.Since(w.startedAt) < undecidedFor {
		w.checkSoon(undecidedCheck)
		return
	}
	someNear := false
	for _, waiter := range slices.Backward(w.waiting) {
		if w.isTurnNear(waiter) {
			someNear = true
			continue
		}
		w.parking = w.lastInOrder(waiter)
		w.parking.askToPark()
		return
	}
	if someNear {
		w.checkSoon(nearTurnCheck)
	}
}

// checkSoon has askOneToPark called after d, unless a call is scheduled. Callers hold mu.
func (w *workers) checkSoon(d time.Duration) {
	if w.checkScheduled {
		return
	}
	w.checkScheduled = true
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.checkScheduled = false
		w.askOneToPark()
	})
}

// lastInOrder returns the waiter whose turn is the last one among those for the same ordered key: if another one parked,
// those behind it would wait in their workers until it is back. Callers hold mu.
func (w *workers) lastInOrder(last *waitingWorker) *waitingWorker {
	for _, waiter := range w.waiting {
		if waiter.lock.Turn() > last.lock.Turn() && waiter.lock.Key() == last.lock.Key() {
			last = waiter
		}
	}
	return last
}

// isTurnNear reports whether the waiter's turn should come soon, by the average held time of
// its lock and the number of workers here that wait for it. It is false when the waiter has
// waited for longer than nearTurnCheck, or on an ordered key when no turn has gone by here for a while. Callers hold mu.
func (w *workers) isTurnNear(waiter *waitingWorker) bool {
	key, heldTime := waiter.lock.Key(), waiter.lock.AverageHeld()
	if waiter.lock.Turn() != 0 {
		// As long as turns go by, however long this one has waited. An average that is not known yet counts as 0.
		patience := 2 * nearTurnInOrder
		if int64(len(w.waiting)) >= w.limit {
			patience = nearTurnCheck // no task runs here, so whoever has the turn is elsewhere, or is yet to come
		}
		return time.Since(w.lastTurn[key]) <= patience && time.Duration(w.inLine[key])*heldTime <= nearTurnInOrder
	}
	if heldTime == 0 || time.Since(waiter.since) > nearTurnCheck {
		return false
	}
	return time.Duration(w.inLine[key])*heldTime <= nearTurn
}
