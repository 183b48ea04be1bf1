package engine

import (
	"cmp"
	"sync"
	"time"
)

const (
	// BehindAfter is how long all workers of a server are busy until a wait is to end.
	BehindAfter = 20 * time.Millisecond
	// maxFresh bounds how many called tasks may come until a server is not behind any more.
	maxFresh = 16
	// paceLasts is how long the pace of a key is remembered after its last grant.
	paceLasts = 10 * time.Second
)

// Workers is what a process knows of the workers of one asynq server: how many are busy, and which of them wait for a
// lock. Safe for concurrent use; the zero value with a Limit is ready. crew.go decides; Workers carries it out.
type Workers struct {
	Limit int           // of tasks at once
	Gap   time.Duration // asynq's pause when its queue is empty is longer; 0: BehindAfter
	Usual time.Duration // how long a parked task takes to be called and to come, before any has
	// Check has the parked work of a key looked at, since it may borrow. Called on a goroutine of its own.
	Check func(key string)

	mu    sync.Mutex // guards what follows; never held across I/O. No other lock is taken while it is held
	crew  crew
	timer *time.Timer // runs look when time alone may change something; nil: it never did
}

// WorkerWait is the wait of one worker in line.
type WorkerWait struct {
	Key   string
	Place int64  // its place in the order of the key; 0: the key is not ordered
	Leave func() // ends the wait; called once at most, maybe after its end. It must not block
	told  bool   // Leave was called

	// With a Lender, Ask has it ask again, since it may borrow. It must not block.
	Lender  *Lender
	Ask     func()
	Limit   int  // of the key, for this wait
	asked   bool // Ask was called, and its ask is not answered
	borrows bool // its ask was lent a worker, and has the lock or is not answered
}

// Started counts a worker as busy: a task has come.
func (w *Workers) Started() { w.change(func(now time.Time) { w.crew.started(now) }) }

// Came says what the first exchange with Redis has told of a task that has come: how long ago it was called for its
// key; below 0: it was not called.
func (w *Workers) Came(key string, sinceCall time.Duration) {
	w.change(func(now time.Time) { w.crew.came(key, sinceCall, now) })
}

// Works says that a task works, or waits for as long as it likes.
func (w *Workers) Works() { w.change(func(time.Time) { w.crew.working++ }) }

// Ended counts a worker as free; worked: Works was called for its task.
func (w *Workers) Ended(worked bool) { w.change(func(now time.Time) { w.crew.ended(worked, now) }) }

// Granted notes that a task which had to wait, or was parked, got the lock of the key: a slot has turned over.
func (w *Workers) Granted(key string) { w.change(func(now time.Time) { w.crew.granted(key, now) }) }

// MayWait reports whether a task may begin to wait for the key, in that place: otherwise it would be told to end its
// wait at once.
func (w *Workers) MayWait(key string, place int64) (may bool) {
	w.change(func(now time.Time) { may = w.crew.mayWait(key, place, now) })
	return may
}

// Begin adds a wait.
func (w *Workers) Begin(me *WorkerWait) {
	w.change(func(time.Time) { w.crew.waiting = append(w.crew.waiting, me) })
}

// End removes a wait, if it began; granted: it has the lock, and its worker works on.
func (w *Workers) End(me *WorkerWait, granted bool) {
	w.change(func(time.Time) { w.crew.endWait(me, granted) })
}

// Coming counts called work that is on its way to the server.
func (w *Workers) Coming(more int) { w.change(func(time.Time) { w.crew.coming += more }) }

// change changes the crew, and does what follows.
func (w *Workers) change(what func(now time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, c := time.Now(), &w.crew
	c.limit, c.gap, c.usual = w.Limit, cmp.Or(w.Gap, BehindAfter), w.Usual
	c.settle(now)
	what(now)
	leave, ask, check := c.follows(now)
	for _, wait := range leave {
		wait.Leave()
	}
	for _, wait := range ask {
		wait.Ask()
	}
	if check != "" && w.Check != nil {
		go w.Check(check) // ends with a look at a line in memory
	}
	switch next := c.next(now); {
	case next == 0:
	case w.timer == nil:
		w.timer = time.AfterFunc(next, func() { w.change(func(time.Time) {}) })
	default:
		w.timer.Reset(next) // one that runs in vain changes nothing, so it is never stopped
	}
}
