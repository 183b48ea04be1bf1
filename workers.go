package automutex

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/lock"
)

const (
	// nearTurn is how long a wait may keep the server's last worker: less than it takes to
	// park and return.
	nearTurn = 20 * time.Millisecond
	// nearTurnCheck is when askOneToPark looks again at such a wait, which should be over.
	nearTurnCheck = 2 * nearTurn
)

// workers counts the busy workers of one server, and knows which of them only wait in
// line and could park. While a worker is free they may wait. When the last worker is
// taken, the one that has waited for the shortest time parks its task.
type workers struct {
	limit int64
	busy  atomic.Int64

	mu             sync.Mutex       // guards what follows; never held across I/O
	waiting        []*waitingWorker // newest last
	inLine         map[string]int   // how many of them for each key
	parking        *waitingWorker   // was asked to park, and has not yet: one at a time, since it frees one worker
	checkScheduled bool             // a timer will call askOneToPark again; it fires once
}

// waitedLock is the lock that a worker waits for.
type waitedLock interface {
	Key() string
	AverageHeld() time.Duration
}

// measuredLock is a lock of package lock as a waitedLock.
type measuredLock struct{ *lock.Lock }

// AverageHeld returns how long the lock is held on average; 0: not known.
func (l measuredLock) AverageHeld() time.Duration { return inner.AverageHeld(l.Lock) }

// waitingWorker is a worker that waits in line.
type waitingWorker struct {
	lock    waitedLock
	since   time.Time
	parkNow chan struct{} // closed when its task is to park
	once    sync.Once
}

func (waiter *waitingWorker) askToPark() { waiter.once.Do(func() { close(waiter.parkNow) }) }

func newWorkers(limit int) *workers {
	return &workers{limit: int64(limit), inLine: make(map[string]int)}
}

func (w *workers) taskStarted() {
	if w.busy.Add(1) >= w.limit {
		w.mu.Lock()
		w.askOneToPark()
		w.mu.Unlock()
	}
}

func (w *workers) taskEnded() { w.busy.Add(-1) }

// enterLine adds a worker that waits in line for m. Its parkNow may be closed already.
func (w *workers) enterLine(m waitedLock) *waitingWorker {
	waiter := &waitingWorker{lock: m, since: time.Now(), parkNow: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, waiter)
	w.inLine[m.Key()]++
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
// back would take longer. Callers hold mu.
func (w *workers) askOneToPark() {
	if w.busy.Load() < w.limit || w.parking != nil {
		return
	}
	someNear := false
	for _, waiter := range slices.Backward(w.waiting) {
		if w.isTurnNear(waiter) {
			someNear = true
			continue
		}
		w.parking = waiter
		waiter.askToPark()
		return
	}
	if someNear && !w.checkScheduled {
		w.checkScheduled = true
		time.AfterFunc(nearTurnCheck, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.checkScheduled = false
			w.askOneToPark()
		})
	}
}

// isTurnNear reports whether the waiter's turn should come soon, by the average held time of
// its lock and the number of workers here that wait for it. It is false when the waiter has
// waited for longer than nearTurnCheck. Callers hold mu.
func (w *workers) isTurnNear(waiter *waitingWorker) bool {
	heldTime := waiter.lock.AverageHeld()
	if heldTime == 0 || time.Since(waiter.since) > nearTurnCheck {
		return false
	}
	return time.Duration(w.inLine[waiter.lock.Key()])*heldTime <= nearTurn
}
