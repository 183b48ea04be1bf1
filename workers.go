package automutex

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// cheapWait is how long a worker may be held for a wait although it is the
	// last one: less than going back to asynq and coming again takes.
	cheapWait = 20 * time.Millisecond
	// cheapWaitCheck is when such a wait is looked at again: it was to be over.
	cheapWaitCheck = 2 * cheapWait
)

// workers knows how many workers of one server are busy, and which of them only
// wait in line and would park. While a worker is free they may wait; when the
// last one is taken the newest of them gives way.
type workers struct {
	limit int64
	busy  atomic.Int64

	mu       sync.Mutex     // guards what follows; never held across I/O
	waiting  []*place       // newest last
	inLine   map[string]int // how many of them for each key
	yielding *place         // asked to give way, and not gone yet: one at a time, for it frees one worker
	checking bool           // a check of cheap waits is due; its timer ends by itself
}

// waitable is what is to be known of a lock that workers stand in line for.
type waitable interface {
	Key() string
	HoldTime() time.Duration
}

// place is one worker in line.
type place struct {
	lock  waitable
	since time.Time
	yield chan struct{} // closed when it has to give way
	once  sync.Once
}

func (p *place) giveWay() { p.once.Do(func() { close(p.yield) }) }

func newWorkers(limit int) *workers {
	return &workers{limit: int64(limit), inLine: make(map[string]int)}
}

func (w *workers) enter() {
	if w.busy.Add(1) >= w.limit {
		w.mu.Lock()
		w.press()
		w.mu.Unlock()
	}
}

func (w *workers) leave() { w.busy.Add(-1) }

// wait notes a worker that stands in line for m. Its yield may be closed at once.
func (w *workers) wait(m waitable) *place {
	p := &place{lock: m, since: time.Now(), yield: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, p)
	w.inLine[m.Key()]++
	w.press()
	return p
}

// over notes that it stands there no more. If it got its lock instead of giving
// way, no worker came free for it: another has to go.
func (w *workers) over(p *place, leaves bool) {
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
		if !leaves {
			w.press()
		}
	}
}

// press asks the newest that stands in line to give way, if no worker is free
// and none is giving way already. One whose turn is near stays: it is away
// longer than that when it parks. Callers hold mu.
func (w *workers) press() {
	if w.busy.Load() < w.limit || w.yielding != nil {
		return
	}
	cheap := false
	for _, p := range slices.Backward(w.waiting) {
		if w.cheap(p) {
			cheap = true
			continue
		}
		w.yielding = p
		p.giveWay()
		return
	}
	if cheap && !w.checking {
		w.checking = true
		time.AfterFunc(cheapWaitCheck, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.checking = false
			w.press()
		})
	}
}

// cheap tells whether p's turn is near: by how long its lock is held on average
// and how many wait for it here, unless it has waited for longer than that
// would take. Callers hold mu.
func (w *workers) cheap(p *place) bool {
	hold := p.lock.HoldTime()
	if hold == 0 || time.Since(p.since) > cheapWaitCheck {
		return false
	}
	return time.Duration(w.inLine[p.lock.Key()])*hold <= cheapWait
}
