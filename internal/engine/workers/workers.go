// Package workers decides which waits of a server's workers end, so that none takes a worker that another key's task
// could have, and which keys borrow workers. Its stories: testdata/workers.txt.
package workers

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Server is the workers of one. Safe for concurrent use.
//
// A server is full when all its workers have been busy for FullAfter, gaps shorter than Gap included. Then the
// newest wait is told to end. If tasks come that nobody called, asynq has more of them than it can take: it is behind,
// and all waits are told to end. It is full until a worker has been free for Gap and no task has come: asynq pauses
// for longer than Gap only when its queue is empty. Some waits are kept, see unkept.
type Server struct {
	Limit int              // of tasks at once
	Gap   time.Duration    // 0: FullAfter
	Usual time.Duration    // how long a parked task takes to be called and to come, before any has
	Check func(key string) // looks after a key's parked work, which may borrow; on a goroutine of its own; nil: nobody

	// mu guards what follows; never held across I/O. Leave and Ask are called while it is held: they take no lock under
	// which a method of a Server is called.
	mu      sync.Mutex
	timer   *time.Timer // calls change; nil: it never did
	busy    int
	working int     // of these, those that work, or wait for as long as they like
	waiting []*Wait // by place, then by age
	leaving int     // told to end in the last second, workers not free yet
	paces   map[string]pace

	since   time.Time // all are busy since then, gaps included; zero: they are not
	free    time.Time // since when one is free and no task has come; zero: none is
	tellAt  time.Time // when the next wait that its key needs may be told to end
	toldAt  time.Time // when the last was
	endedAt time.Time // when work last did
	fresh   int       // tasks nobody called since it is full, less called ones
	freshAt time.Time // when the last of these came

	shares map[string]share // by key: who borrows
	coming int              // called work of keys that borrow, on its way
	freed  bool             // somebody may borrow who might not
}

const (
	// FullAfter is how long all workers are busy until a wait is to end.
	FullAfter = 20 * time.Millisecond // the next four follow it
	tellEvery = FullAfter             // where it is full
	behindFor = FullAfter             // after an uncalled task
	soon      = FullAfter / 2         // a wait that ends within that is let be, and one of a new key
	brief     = FullAfter / 10
	// called tasks that come at most until a server is not behind any more
	maxFresh = 16
	// for how long a pace counts
	paceLasts = 10 * time.Second
	// beyond so many all are forgotten
	maxPaces = 1000
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
	lent    int  // 1: a worker, until its ask is answered
	borrows bool // so it got the lock
	could   bool // it could begin with a worker more, by the last answer
}

// pace is how fast a key's slots turn over here, and parked tasks come.
type pace struct {
	last  time.Time     // the last grant, or before the first one a refusal
	every time.Duration // from grant to grant, or a wait if that is less, a moving average; 0: none
	comes time.Duration // from call to arrival, so too
}

// comesIn is how long a parked task of the key takes to be called and to come.
func (w *Server) comesIn(p pace) time.Duration { return min(cmp.Or(p.comes, w.Usual), time.Second) }

// Average moves an average towards a measure; 0: there was none.
func Average(before, measured time.Duration) time.Duration {
	if before == 0 {
		return max(measured, 1)
	}
	return before + (measured-before)/8
}

// Started counts a worker as busy: a task has come.
func (w *Server) Started() { w.change(func(now time.Time) { w.busy, w.free = w.busy+1, now }) }

// Came says how long ago a task that has come was called for its key; below 0: it was not. Then the next wait of a
// full server ends at once.
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

// Asked says whether a task got the lock of the key, maybe after a time in line. A key is known once one did not get it
// at once.
func (w *Server) Asked(key string, got, inLine bool, waited time.Duration) {
	w.change(func(now time.Time) { w.asked(key, got, inLine, waited, now) })
}

func (w *Server) asked(key string, got, inLine bool, waited time.Duration, now time.Time) {
	p, known := w.pace(key, now)
	switch {
	case got && known && inLine:
		p.every = Average(p.every, min(now.Sub(p.last), waited))
	case got && known: // at once
	case known, got && !inLine:
		return
	}
	if w.paces == nil || len(w.paces) >= maxPaces {
		w.paces = make(map[string]pace)
	}
	p.last = now
	w.paces[key] = p
}

func (w *Server) pace(key string, now time.Time) (p pace, known bool) {
	if p, known = w.paces[key]; now.Sub(p.last) >= paceLasts {
		return pace{}, false
	}
	return p, known
}

// MayWait reports whether a task may begin to wait, and is not told to end that at once.
func (w *Server) MayWait(key string, place int64) (may bool) {
	w.change(func(now time.Time) {
		if may = !w.isBehind(now); !may {
			me := &Wait{Key: key, Place: place, since: now}
			w.add(me)
			may = !slices.Contains(w.unkept(w.room(), now), me)
			w.remove(me)
		}
	})
	return may
}

// Begin adds a wait.
func (w *Server) Begin(me *Wait) { w.change(func(now time.Time) { w.begin(me, now) }) }

func (w *Server) begin(me *Wait, now time.Time) {
	me.since = now
	w.add(me)
	w.asked(me.Key, false, false, 0, now)
}

func (w *Server) add(me *Wait) {
	i := len(w.waiting)
	for i > 0 && w.waiting[i-1].Place > me.Place {
		i--
	}
	w.waiting = slices.Insert(w.waiting, i, me)
}

func (w *Server) remove(me *Wait) {
	w.waiting = slices.DeleteFunc(w.waiting, func(other *Wait) bool { return other == me })
}

// End removes a wait; granted: it has the lock, and its worker works on.
func (w *Server) End(me *Wait, granted bool) {
	w.change(func(now time.Time) { w.end(me, granted, now) })
}

func (w *Server) end(me *Wait, granted bool, now time.Time) {
	w.remove(me)
	me.lend(0)
	switch p, known := w.pace(me.Key, now); {
	case granted && me.told:
		w.leaving = max(0, w.leaving-1)
	case !granted && known && !me.since.IsZero() && me.stands(p, now) >= w.comesIn(p):
		p.every = 0 // until it turns over again
		w.paces[me.Key] = p
	}
}

// stands is for how long the wait has stood, and no slot has turned over.
func (w *Wait) stands(p pace, now time.Time) time.Duration {
	return min(now.Sub(w.since), now.Sub(p.last))
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
		w.timer.Reset(next) // it is never stopped: run in vain it changes nothing
	}
}

// at returns the waits that are to end, those that are to ask again, a key whose parked work may borrow, and when time
// alone changes something; 0: it does not.
func (w *Server) at(now time.Time, what func(time.Time)) (leave, ask []*Wait, check string, next time.Duration) {
	gap := cmp.Or(w.Gap, FullAfter)
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
		next = w.since.Add(FullAfter).Sub(now)
	default:
		next = tellEvery
	}
	return leave, ask, check, next
}

func (w *Server) isFull(now time.Time) bool {
	return !w.since.IsZero() && now.Sub(w.since) >= FullAfter
}

func (w *Server) isBehind(now time.Time) bool {
	return w.fresh > 2 && now.Sub(w.freshAt) < behindFor
}

// giveWay returns the waits of a full server that are to end: if it is behind, all that are not kept. Else one, while
// no worker is free, will be, or just was: the newest that no key needs, or each tellEvery one that is not kept.
func (w *Server) giveWay(now time.Time) []*Wait {
	isBehind := w.isBehind(now)
	if !isBehind && (!w.free.IsZero() || w.leaving > 0) {
		return nil
	}
	leave := w.unkept(w.room(), now)
	if len(leave) > 0 && !isBehind {
		if needless := w.unkept(w.Limit, now); len(needless) > 0 {
			leave = needless
		} else if w.tellAt.After(now) {
			return nil
		}
		leave = leave[len(leave)-1:]
		if now.Sub(w.endedAt) < soon && w.comesIn(w.paces[leave[0].Key]) <= 2*w.Usual {
			return nil // else too much is called
		}
		w.tellAt = now.Add(tellEvery)
	}
	for _, wait := range leave {
		wait.told, w.toldAt = true, now
	}
	w.leaving += len(leave)
	return leave
}

// room is how many waits a full server keeps at most: half of its workers, and fewer than do not work.
func (w *Server) room() int { return min(w.Limit/2, w.Limit-1-w.working) }

// unkept returns the waits that are not kept, nor told to end. Kept are the first of a key whose slots turn over faster
// than a parked task comes (if an ordered key's next one parked, those behind it would wait), and one
// of a new key. They are most at most, beside the only ones of keys whose waits are brief.
func (w *Server) unkept(most int, now time.Time) (leave []*Wait) {
	left := map[string]int{} // by key: how many more it keeps
	for _, wait := range w.waiting {
		keeps, known := left[wait.Key]
		isBrief := false
		if !known {
			keeps, isBrief = w.keeps(wait, now)
		}
		switch {
		case wait.told:
		case keeps == 0, most <= 0 && !isBrief:
			leave = append(leave, wait)
		default:
			if keeps--; !isBrief {
				most--
			}
		}
		left[wait.Key] = keeps
	}
	return leave
}

// keeps returns how many waits feed the key of its first one while a parked task comes.
func (w *Server) keeps(first *Wait, now time.Time) (n int, isBrief bool) {
	p, known := w.pace(first.Key, now)
	comes, every := w.comesIn(p), max(p.every, first.stands(p, now))
	switch {
	case p.every == 0 && now.Sub(first.since) < soon && (!known || now.Sub(p.last) < soon):
		return 1, false
	case p.every == 0, every >= comes:
		return 0, false
	}
	return int((comes + every - 1) / every), every < brief && !slices.ContainsFunc(w.waiting, func(a *Wait) bool {
		return a != first && a.Key == first.Key && a.mayStart()
	})
}
