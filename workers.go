package automutex

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/lock"
)

const (
	// nearTurn is how long a wait may keep the server's last worker: less than parking
	// and coming back takes.
	nearTurn = 20 * time.Millisecond
	// nearTurnCheck is after how long such a wait should be over, and is looked at again.
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
	yielding       *waitingWorker   // was asked to park, and has not yet: one at a time, since it frees one worker
	checkScheduled bool             // a look at waits whose turn was near is due; its timer fires once
}

// waitedLock is the lock that a worker waits for.
type waitedLock interface {
	Key() string
	HoldTime() time.Duration
}

// measuredLock is a lock of package lock as a waitedLock.
type measuredLock struct{ *lock.Lock }

// HoldTime returns how long the lock is held on average; 0: not known.
func (l measuredLock) HoldTime() time.Duration { return inner.HoldTime(l.Lock) }

// waitingWorker is a worker that waits in line.
type waitingWorker struct {
	lock  waitedLock
	since time.Time
	yield chan struct{} // closed when its task is to park
	once  sync.Once
}

func (p *waitingWorker) giveWay() { p.once.Do(func() { close(p.yield) }) }

func newWorkers(limit int) *workers {
	return &workers{limit: int64(limit), inLine: make(map[string]int)}
}

func (w *workers) taskStarted() {
	if w.busy.Add(1) >= w.limit {
		w.mu.Lock()
		w.askOneToYield()
		w.mu.Unlock()
	}
}

func (w *workers) taskEnded() { w.busy.Add(-1) }

// enterLine adds a worker that waits in line for m. Its yield may be closed at once.
func (w *workers) enterLine(m waitedLock) *waitingWorker {
	p := &waitingWorker{lock: m, since: time.Now(), yield: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, p)
	w.inLine[m.Key()]++
	w.askOneToYield()
	return p
}

// leaveLine removes a worker that waits no more. workerFree is false when it got its
// lock: then no worker came free, and if this one was asked to park, another one is.
func (w *workers) leaveLine(p *waitingWorker, workerFree bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.waiting, p); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
		key := p.lock.Key()
		if w.inLine[key]--; w.inLine[key] == 0 {
			delete(w.inLine, key)
		}
	}
	if w.yielding == p {
		w.yielding = nil
		if !workerFree {
			w.askOneToYield()
		}
	}
}

// askOneToYield asks the newest waiting worker to park its task, if no worker is free
// and none was asked already. A worker whose turn is near stays: parking and coming
// back would take longer. Callers hold mu.
func (w *workers) askOneToYield() {
	if w.busy.Load() < w.limit || w.yielding != nil {
		return
	}
	someNear := false
	for _, p := range slices.Backward(w.waiting) {
		if w.isTurnNear(p) {
			someNear = true
			continue
		}
		w.yielding = p
		p.giveWay()
		return
	}
	if someNear && !w.checkScheduled {
		w.checkScheduled = true
		time.AfterFunc(nearTurnCheck, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.checkScheduled = false
			w.askOneToYield()
		})
	}
}

// isTurnNear reports whether p's turn should come soon, by how long its lock is held on
// average and how many workers wait for it here. It is false when p has waited for
// longer than that. Callers hold mu.
func (w *workers) isTurnNear(p *waitingWorker) bool {
	hold := p.lock.HoldTime()
	if hold == 0 || time.Since(p.since) > nearTurnCheck {
		return false
	}
	return time.Duration(w.inLine[p.lock.Key()])*hold <= nearTurn
}
