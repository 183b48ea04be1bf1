package workers

import (
	"slices"
	"time"
)

// Lender is a server's workers as the keys of one scope borrow them: a lock is held beyond its limit while Idle
// workers stay idle. A wait that may end counts as idle, and while the server is behind nobody borrows. An ask borrows,
// for itself, and a call; a release grants by the limit.
//
// Keys share what they borrow: one that runs more here than another, by their limits, borrows no further worker
// while the other has tasks that could begin now.
type Lender struct {
	Server *Server
	Scope  string
	Idle   int
}

type share struct {
	scope       string
	limit, runs int
	ready       bool // it has parked work that could begin now
}

// isFirst, by Webster's method: the next worker is s's.
func (s share) isFirst(o share) bool { return (2*s.runs+1)*o.limit < (2*o.runs+1)*s.limit }

// Lend reports whether the ask about to be sent may borrow. me: the asker's wait, or nil.
func (l *Lender) Lend(key string, limit int, me *Wait) (may bool) {
	w := l.Server
	w.change(func(now time.Time) {
		me.lend(0)
		if may = w.idle(me) >= l.Idle && !w.isBehind(now) && l.isFair(key, limit); may {
			me.lend(1)
		}
	})
	return may
}

// Answered says the answer to the ask of a wait with a Lender; could: a worker more would do.
func (w *Wait) Answered(yours, could bool) {
	w.Lender.Server.change(func(time.Time) {
		w.borrows, w.could = w.lent > 0 && yours, could
		w.lend(0)
	})
}

// What is lent counts as running. Callers of lend, runs, keep hold mu.
func (w *Wait) lend(n int) {
	if w != nil && n != w.lent {
		w.Lender.runs(w.Key, w.Limit, n-w.lent)
		w.lent = n
	}
}

// Calls is how many parked tasks may be called to borrow; releases: the caller's worker is about to be free.
func (l *Lender) Calls(key string, limit int, releases bool) (n int) {
	w := l.Server
	w.change(func(now time.Time) {
		if !w.isBehind(now) && l.isFair(key, limit) {
			if n = w.idle(nil) - l.Idle - w.coming; releases {
				n++
			}
		}
	})
	return max(0, n)
}

// Runs counts a key's tasks that run here.
func (l *Lender) Runs(key string, limit, more int) {
	l.Server.change(func(time.Time) {
		l.runs(key, limit, more)
		l.Server.freed = true
	})
}

func (l *Lender) runs(key string, limit, more int) {
	s := l.Server.shares[key]
	s.runs += more
	l.keep(key, limit, s)
}

// Parked says whether a key has parked work that could begin now. A nil Lender does nothing.
func (l *Lender) Parked(key string, limit int, ready bool) {
	if l != nil {
		l.Server.change(func(time.Time) {
			s := l.Server.shares[key]
			s.ready = ready
			l.keep(key, limit, s)
		})
	}
}

// Most is how much called work a key may have: the keys that borrow here share twice the workers. More would wait
// behind that of another key, which has to borrow first.
func (l *Lender) Most() (most float64) {
	w := l.Server
	w.change(func(time.Time) { most = float64(2*w.Limit) / float64(max(1, len(w.shares))) })
	return max(1, most)
}

// Calling counts called work on its way.
func (l *Lender) Calling(more int) { l.Server.change(func(time.Time) { l.Server.coming += more }) }

// keep forgets who has nothing.
func (l *Lender) keep(key string, limit int, s share) {
	w := l.Server
	s.scope, s.limit = l.Scope, limit
	if delete(w.shares, key); s.runs > 0 || s.ready {
		if w.shares == nil {
			w.shares = map[string]share{}
		}
		w.shares[key] = s
	}
}

// idle is how many workers are free, or in waits that may end, beside me.
func (w *Server) idle(me *Wait) int {
	n := w.Limit - w.busy
	for _, wait := range w.waiting {
		if wait != me && wait.mayStart() {
			n++
		}
	}
	return n
}

func (w *Wait) mayStart() bool { return !w.told && w.lent == 0 && !w.borrows }

func (l *Lender) isFair(key string, limit int) bool {
	w := l.Server
	mine := w.shares[key]
	mine.limit = limit
	for other, s := range w.shares {
		if other != key && s.scope == l.Scope && s.ready && s.isFirst(mine) {
			return false
		}
	}
	return !slices.ContainsFunc(w.waiting, func(a *Wait) bool {
		its := w.shares[a.Key]
		its.limit = a.Limit
		return a.Key != key && a.could && a.mayStart() && a.Lender.Scope == l.Scope && its.isFirst(mine)
	})
}

// borrowers returns waits that ask again; if none, the first key with parked work.
func (w *Server) borrowers() (ask []*Wait, check string) {
	for _, wait := range w.waiting {
		if l := wait.Lender; wait.could && wait.mayStart() && w.idle(wait) >= l.Idle && l.isFair(wait.Key, wait.Limit) {
			wait.lend(1)
			ask = append(ask, wait)
		}
	}
	if len(ask) > 0 || w.idle(nil) <= w.coming {
		return ask, ""
	}
	var first share
	for key, s := range w.shares {
		if s.ready && (check == "" || s.isFirst(first)) {
			check, first = key, s
		}
	}
	return nil, check
}
