package engine

import (
	"slices"
	"sync"
	"time"
)

// yieldAfter is how long a wait may keep the server's last worker.
const yieldAfter = 20 * time.Millisecond

// Workers counts the busy workers of one asynq server, and knows which of them only wait and may give way. When all
// have been busy for yieldAfter, the newest wait ends. Of an ordered key that is the one with the last place: if
// another one parked, those behind it would wait in their workers until it is back. The zero value with a Limit is
// ready. Safe for concurrent use.
//
// As long as no wait of the server has ended with its lock since, the next ones end at once: a backlog of 10,000 tasks
// of one key that is held for long would else keep the queue for 200 s.
type Workers struct {
	Limit int // of tasks at once; it does not change

	mu       sync.Mutex // guards what follows; never held across I/O
	busy     int
	waiting  []*WorkerWait // in the order in which they began to wait
	yielding *WorkerWait   // was told to leave, and its worker is not free: one at a time
	crowded  bool          // a wait was told to end, and none has got its lock since
	full     *time.Timer   // runs while all workers are busy and one may give way; else nil
}

// WorkerWait is the wait of one worker in line.
type WorkerWait struct {
	Key   string
	Place int64  // its place in the order of the key; 0: the key is not ordered
	Leave func() // ends the wait; may be called again, and when the wait is over
}

// Started counts a worker as busy.
func (w *Workers) Started() { w.change(false, func() { w.busy++ }) }

// Works says that one of them runs its task now.
func (w *Workers) Works() { w.change(true, func() {}) }

// Ended counts it as free.
func (w *Workers) Ended() {
	w.change(false, func() {
		w.busy--
		if !slices.Contains(w.waiting, w.yielding) {
			w.yielding = nil
		}
	})
}

// Begin adds a wait.
func (w *Workers) Begin(me *WorkerWait) { w.change(true, func() { w.waiting = append(w.waiting, me) }) }

// End removes a wait, if it began; granted: it has the lock, and its worker works on.
func (w *Workers) End(me *WorkerWait, granted bool) {
	w.change(false, func() {
		w.waiting = slices.DeleteFunc(w.waiting, func(other *WorkerWait) bool { return other == me })
		if granted {
			w.crowded = false
			if w.yielding == me {
				w.yielding = nil
			}
		}
	})
}

// change changes the counts, and begins or ends the time of yieldAfter. A timer that was replaced does
// nothing. told: a task waits or works from now on.
func (w *Workers) change(told bool, counts func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts()
	isFull, after := w.busy >= w.Limit && len(w.waiting) > 0 && w.yielding == nil, yieldAfter
	if w.crowded && told {
		after = 0
	}
	if w.full != nil && (!isFull || after == 0) {
		w.full.Stop()
		w.full = nil
	}
	if isFull && w.full == nil {
		var mine *time.Timer
		mine = time.AfterFunc(after, func() { w.yieldOne(&mine) }) // mu is held, so yieldOne sees mine
		w.full = mine
	}
}

// yieldOne tells the newest wait to end, if the timer is still the one that runs.
func (w *Workers) yieldOne(timer **time.Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full != *timer {
		return
	}
	w.full, w.crowded = nil, true
	w.yielding = w.waiting[len(w.waiting)-1]
	for _, other := range w.waiting {
		if other.Key == w.yielding.Key && other.Place > w.yielding.Place {
			w.yielding = other
		}
	}
	w.yielding.Leave()
}
