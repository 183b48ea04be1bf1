// Package workers decides which waits of a server's workers end, so that none takes a worker that another key's task
// could have, and which keys borrow workers. Its stories: testdata/workers.txt.
package workers

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Server is the workers of one. Safe for concurrent use; the zero value with a Limit is ready.
//
// A server is full when all its workers have been busy for BehindAfter, gaps shorter than Gap included. Then the
// newest wait is told to end. If tasks come that nobody called, asynq has more of them than it can take: it is behind,
// and all waits are told to end. It is full until a worker has been free for Gap and no task has come: asynq pauses
// for longer than Gap only when its queue is empty.
//
// Some waits are kept: those of keys whose slots turn over faster than a parked task comes. While the server is
// behind, they hold at most half of the workers, and leave one that neither works nor waits.
type Server struct {
	Limit int              // of tasks at once
	Gap   time.Duration    // 0: BehindAfter
	Usual time.Duration    // how long a parked task takes to be called and to come, before any has
	Check func(key string) // looks after a key's parked work, which may borrow; on a goroutine of its own; nil: nobody

	// mu guards what follows; never held across I/O. Leave and Ask are called while it is held: they take no lock under
	// which a method of a Server is called.
	mu      sync.Mutex
	timer   *time.Timer // calls change; nil: it never did
	busy    int
	working int // of these, those that work, or wait for as long as they like
	waiting []*Wait
	leaving int // told to end in the last second, workers not free yet
	paces   map[string]pace

	since   time.Time // all are busy since then, gaps included; zero: they are not
	free    time.Time // since when one is free and no task has come; zero: none is
	tellAt  time.Time // while the server is full: when the next kept wait may be told to end
	toldAt  time.Time // when the last was
	endedAt time.Time // when work last did
	fresh   int       // tasks nobody called since it is full, less called ones
	freshAt time.Time // when the last of these came

	shares map[string]*share // by key: who borrows
	coming int               // called work of keys that borrow, on its way
	freed  bool              // a worker has become idle since one was last lent
}

const (
	// BehindAfter is how long all workers are busy until a wait is to end.
	BehindAfter = 20 * time.Millisecond
	// called tasks that come at most until a server is not behind any more
	maxFresh = 16
	// how long a pace is kept after the last grant
	paceLasts = 10 * time.Second
)

// Wait is the wait of one worker in line.
type Wait struct {
	Key   string
	Place int64  // its place in the order of the key; 0: the key is not ordered
	Leave func() // ends the wait; called once at most, maybe after its end. It must not block

	Lender *Lender // nil: it borrows from nobody
	Limit  int     // of the key, for a Lender
	Ask    func()  // with a Lender: has it ask again, since it may borrow. It must not block

	since   time.Time
	told    bool // Leave was called
	asked   bool // Ask was called, and its ask is not answered
	borrows bool // its ask was lent a worker, and has the lock or is not answered
}

// pace is how fast a key's slots turn over here, and parked tasks come.
type pace struct {
	last  time.Time     // the last grant
	every time.Duration // from grant to grant, or a wait if that is less, a moving average; 0: none
	comes time.Duration // from call to arrival, so too
}

// Average moves an average towards what was measured; 0: nothing was before.
func Average(before, measured time.Duration) time.Duration {
	if before == 0 {
		return max(measured, 1)
	}
	return before + (measured-before)/8
}

// Started counts a worker as busy: a task has come.
func (w *Server) Started() {
	w.change(func(now time.Time) { w.busy, w.free = w.busy+1, now })
}

// Came says how long ago a task that has come was called for its key; below 0: it was not. Such a one has the next
// wait of a full server end at once.
func (w *Server) Came(key string, sinceCall time.Duration) {
	w.change(func(now time.Time) { w.came(key, sinceCall, now) })
}

func (w *Server) came(key string, sinceCall time.Duration, now time.Time) {
	switch {
	case sinceCall >= 0:
		w.fresh = max(0, w.fresh-1)
		if p, known := w.paces[key]; known {
			p.comes = Average(p.comes, sinceCall)
			w.paces[key] = p
		}
	case w.isFull(now):
		w.fresh, w.freshAt, w.tellAt = min(w.fresh+2, maxFresh), now, now
	}
}

// Works says that a task works, or waits for as long as it likes.
func (w *Server) Works() { w.change(func(time.Time) { w.working++ }) }

// Ended counts a worker as free; worked: Works was called for its task.
func (w *Server) Ended(worked bool) { w.change(func(now time.Time) { w.ended(worked, now) }) }

func (w *Server) ended(worked bool, now time.Time) {
	if w.busy--; w.free.IsZero() {
		w.free = now
	}
	if w.freed = true; worked {
		w.working, w.endedAt = w.working-1, now
	} else {
		w.leaving = max(0, w.leaving-1)
	}
}

// Granted notes that a task which waited, or was parked, got the lock of the key: a slot has turned over.
func (w *Server) Granted(key string, waited time.Duration) {
	w.change(func(now time.Time) { w.granted(key, waited, now) })
}

func (w *Server) granted(key string, waited time.Duration, now time.Time) {
	p, known := w.paces[key]
	if every := now.Sub(p.last); known && every < paceLasts {
		p.every = Average(p.every, min(every, waited))
	} else {
		p.every = 0
		maps.DeleteFunc(w.paces, func(_ string, old pace) bool { return now.Sub(old.last) >= paceLasts })
	}
	if w.paces == nil {
		w.paces = make(map[string]pace)
	}
	p.last = now
	w.paces[key] = p
}

// MayWait reports whether a task may begin to wait: otherwise it would be told to end its wait at once.
func (w *Server) MayWait(key string, place int64) (may bool) {
	w.change(func(now time.Time) {
		if may = !w.isBehind(now); !may {
			me := &Wait{Key: key, Place: place, since: now}
			may = slices.Contains(w.kept(append(slices.Clone(w.waiting), me), w.room(), now), me)
		}
	})
	return may
}

// Begin adds a wait.
func (w *Server) Begin(me *Wait) {
	w.change(func(now time.Time) {
		me.since = now
		w.waiting = append(w.waiting, me)
	})
}

// End removes a wait, if it began; granted: it has the lock, and its worker works on.
func (w *Server) End(me *Wait, granted bool) {
	w.change(func(time.Time) {
		w.waiting = slices.DeleteFunc(w.waiting, func(other *Wait) bool { return other == me })
		if granted && me.told {
			w.leaving = max(0, w.leaving-1)
		}
	})
}

func (w *Server) change(what func(now time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	leave, ask, check, next := w.at(time.Now(), what)
	for _, wait := range leave {
		wait.Leave()
	}
	for _, wait := range ask {
		wait.Ask()
	}
	if check != "" && w.Check != nil {
		go w.Check(check) // it ends with a look at what is in memory
	}
	switch {
	case next == 0:
	case w.timer == nil:
		w.timer = time.AfterFunc(next, func() { w.change(func(time.Time) {}) })
	default:
		w.timer.Reset(next) // one that runs in vain changes nothing, so it is never stopped
	}
}

// at returns the waits that are to end, those that are to ask again, a key whose parked work may borrow, and when time
// alone changes something; 0: it does not.
func (w *Server) at(now time.Time, what func(time.Time)) (leave, ask []*Wait, check string, next time.Duration) {
	gap := cmp.Or(w.Gap, BehindAfter)
	if !w.since.IsZero() && !w.free.IsZero() && now.Sub(w.free) >= gap {
		w.since, w.tellAt, w.fresh, w.freed = time.Time{}, time.Time{}, 0, true
	}
	what(now)
	if w.busy >= w.Limit {
		w.free = time.Time{}
		if w.since.IsZero() {
			w.since = now
		}
	}
	if now.Sub(w.toldAt) >= time.Second {
		w.leaving = 0 // one may work instead
	}
	if w.isFull(now) && len(w.waiting) > 0 {
		leave = w.giveWay(now)
	}
	if w.freed && !w.isBehind(now) {
		ask, check = w.borrowers()
	}
	switch w.freed = false; {
	case w.since.IsZero() || len(w.waiting) == 0:
	case !w.free.IsZero():
		next = w.free.Add(gap).Sub(now)
	case !w.isFull(now):
		next = w.since.Add(BehindAfter).Sub(now)
	default:
		next = BehindAfter
	}
	return leave, ask, check, next
}

func (w *Server) isFull(now time.Time) bool {
	return !w.since.IsZero() && now.Sub(w.since) >= BehindAfter
}

func (w *Server) isBehind(now time.Time) bool {
	return w.fresh > 2 && now.Sub(w.freshAt) < BehindAfter
}

// giveWay returns the waits of a full server that are to end: if it is behind, all that are not kept. Else one, while
// no worker is free, will be, or just was: the newest that no key needs, or each BehindAfter one that is not kept.
func (w *Server) giveWay(now time.Time) []*Wait {
	leave := w.without(w.kept(w.waiting, w.room(), now))
	if len(leave) > 0 && !w.isBehind(now) {
		needless := w.without(w.kept(w.waiting, w.Limit, now))
		switch {
		case !w.free.IsZero() || w.leaving > 0 || now.Sub(w.endedAt) < BehindAfter/2,
			len(needless) == 0 && w.tellAt.After(now):
			return nil
		case len(needless) > 0:
			leave = needless
		}
		w.tellAt = now.Add(BehindAfter)
		leave = leave[len(leave)-1:]
	}
	for _, wait := range leave {
		wait.told, w.toldAt = true, now
	}
	w.leaving += len(leave)
	return leave
}

// room is how many waits a full server keeps at most: half of its workers, and fewer than do not work. Below 1: none.
func (w *Server) room() int { return min(w.Limit/2, w.Limit-1-w.working) }

// kept returns the waits that need not end, most at most. Of a key they are the first: if an ordered key's next one
// parked, those behind it would wait in their workers.
func (w *Server) kept(waits []*Wait, most int, now time.Time) (kept []*Wait) {
	left := map[string]int{} // by key: how many more it keeps
	for _, wait := range slices.SortedStableFunc(slices.Values(waits), byPlace) {
		if _, known := left[wait.Key]; !known {
			left[wait.Key] = w.keeps(wait, now)
		}
		if !wait.told && left[wait.Key] > 0 && len(kept) < most {
			left[wait.Key]--
			kept = append(kept, wait)
		}
	}
	return kept
}

func byPlace(a, b *Wait) int { return cmp.Compare(a.Place, b.Place) }

// without returns the waits neither kept nor told to end: those of ordered keys last.
func (w *Server) without(kept []*Wait) []*Wait {
	others := slices.DeleteFunc(slices.Clone(w.waiting), func(wait *Wait) bool {
		return wait.told || slices.Contains(kept, wait)
	})
	slices.SortStableFunc(others, byPlace)
	return others
}

// keeps returns how many waits feed the key of its first one while a parked task comes: none if that has waited for so
// long, and no slot has turned over.
func (w *Server) keeps(first *Wait, now time.Time) int {
	p := w.paces[first.Key]
	comes := min(cmp.Or(p.comes, w.Usual), time.Second)
	every := max(p.every, min(now.Sub(first.since), now.Sub(p.last)))
	if p.every > 0 && p.every < comes && every >= comes {
		p.every = 0 // until it turns over again
		w.paces[first.Key] = p
	}
	if p.every == 0 || every >= comes {
		return 0
	}
	return int((comes + every - 1) / every)
}
