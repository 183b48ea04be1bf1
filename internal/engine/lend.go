package engine

import "time"

// Lender is a server's workers as the keys of one scope borrow them: a lock is held beyond its limit while Leave
// workers stay idle. A wait that may end counts as idle, and while the server is behind nobody borrows. An ask borrows,
// for itself, and a call; a release and a check grant by the limit. So one idle server does not empty the line of a
// full one.
//
// Keys share what they borrow: one that runs two more here than another, for each slot of its own limit, borrows no
// further worker while the other has tasks that could begin now. (One more is not told from a task that is on its way.)
type Lender struct {
	Workers *Workers
	Scope   string
	Leave   int
}

type share struct {
	limit, runs int
	ready       bool // it has parked work that could begin now
}

// lend reports whether the ask about to be sent may borrow. me: the asker's wait, or nil; lent a worker, it is not
// idle until it is answered.
func (l *Lender) lend(r *Ref, me *WorkerWait) (may bool) {
	w := l.Workers
	w.change(func(now time.Time) {
		if may = w.idle(me) >= l.Leave && !w.isBehind(now) && w.isFair(l.Scope, r.Key, r.Limit); may && me != nil {
			me.borrows = true
		}
	})
	return may
}

func (l *Lender) answered(me *WorkerWait, yours bool) {
	l.Workers.change(func(time.Time) { me.borrows, me.asked = me.borrows && yours, false })
}

// calls is how many parked tasks may be called to borrow; releases: the caller's worker is about to be free.
func (l *Lender) calls(r *Ref, releases bool) (n int) {
	if l == nil {
		return 0
	}
	w := l.Workers
	w.change(func(now time.Time) {
		if !w.isBehind(now) && w.isFair(l.Scope, r.Key, r.Limit) {
			n = max(0, w.idle(nil)+int(oneOrZero(releases))-l.Leave-w.coming)
		}
	})
	return n
}

// Runs counts the tasks of a key that run here.
func (l *Lender) Runs(key string, limit, more int) {
	l.share(key, limit, func(s *share) { s.runs += more })
}

func (l *Lender) parked(r *Ref, ready bool) {
	if l != nil {
		l.share(r.Key, r.Limit, func(s *share) { s.ready = ready })
	}
}

func (l *Lender) on(more int) { l.Workers.change(func(time.Time) { l.Workers.coming += more }) }

// share forgets one that has nothing.
func (l *Lender) share(key string, limit int, change func(*share)) {
	w := l.Workers
	w.change(func(time.Time) {
		if w.shares == nil {
			w.shares = map[string]map[string]*share{}
		}
		if w.shares[l.Scope] == nil {
			w.shares[l.Scope] = map[string]*share{}
		}
		s := w.shares[l.Scope][key]
		if s == nil {
			s = &share{}
		}
		s.limit, w.shares[l.Scope][key] = limit, s
		if change(s); s.runs == 0 && !s.ready {
			delete(w.shares[l.Scope], key)
		}
	})
}

// idle is how many workers are free, or in waits that may end, beside me.
func (w *Workers) idle(me *WorkerWait) int {
	n := w.Limit - w.busy
	for _, wait := range w.waiting {
		if wait != me && wait.mayStart() {
			n++
		}
	}
	return n
}

func (w *WorkerWait) mayStart() bool { return !w.told && !w.borrows }

func (w *Workers) isFair(scope, key string, limit int) bool {
	mine := w.shares[scope][key]
	if mine == nil || mine.runs < 2 {
		return true
	}
	ready := map[string]bool{}
	for _, wait := range w.waiting {
		ready[wait.Key] = ready[wait.Key] || wait.mayStart()
	}
	for other, s := range w.shares[scope] {
		if other != key && (s.ready || ready[other]) && s.runs*limit < (mine.runs-1)*s.limit {
			return false
		}
	}
	return true
}

// borrowers returns waits that ask again; if none, the key with parked work that runs least here for each slot.
func (w *Workers) borrowers() (ask []*WorkerWait, check string) {
	for _, wait := range w.waiting {
		if l := wait.Lender; l != nil && wait.mayStart() && !wait.asked && w.idle(wait)-len(ask) >= l.Leave &&
			w.isFair(l.Scope, wait.Key, wait.Limit) {
			wait.asked = true
			ask = append(ask, wait)
		}
	}
	if len(ask) > 0 || w.idle(nil) <= w.coming {
		return ask, ""
	}
	var least *share
	for _, keys := range w.shares {
		for key, s := range keys {
			if s.ready && (least == nil || s.runs*least.limit < least.runs*s.limit) {
				check, least = key, s
			}
		}
	}
	return nil, check
}
