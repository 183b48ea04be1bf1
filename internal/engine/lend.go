package engine

import (
	"cmp"
	"time"
)

// Lender is a server's workers as the keys of one scope borrow them: a lock is held beyond its limit while Leave
// workers stay idle. A wait that may end counts as idle, and while the server is behind nobody borrows. An ask borrows,
// for itself, and a call; a release and a check grant by the limit. So one idle server does not empty the line of a
// full one.
//
// Keys share what they borrow: the one that runs more here, for each slot of its own limit, borrows no further worker
// while another has tasks that could begin now. What is lent for work that runs comes back when that ends.
type Lender struct {
	Workers *Workers
	Scope   string
	Leave   int
}

// share is what a key that may borrow has of a server's workers. Workers.mu guards it.
type share struct {
	limit, runs int
	ready       bool // it has parked work that could begin now
}

// lend reports whether the ask that is about to be sent may borrow. me is the asker's wait; nil: it does not wait. One
// that was lent a worker is no idle one until it is answered.
func (l *Lender) lend(r *Ref, me *WorkerWait) (may bool) {
	l.Workers.change(func(now time.Time) {
		c := &l.Workers.crew
		if may = c.idle(me) >= l.Leave && !c.isBehind(now) && c.isFair(l.Scope, r.Key, r.Limit); may && me != nil {
			me.borrows = true
		}
	})
	return may
}

// answered says what came of an ask that was lent a worker, or was not.
func (l *Lender) answered(me *WorkerWait, yours bool) {
	l.Workers.change(func(time.Time) { me.borrows, me.asked = me.borrows && yours, false })
}

// calls is how many parked tasks may be called to borrow a worker each; releases: the caller's own is about to be free.
func (l *Lender) calls(r *Ref, releases bool) (n int) {
	if l == nil {
		return 0
	}
	l.Workers.change(func(now time.Time) {
		c := &l.Workers.crew
		if n = c.idle(nil) + int(oneOrZero(releases)) - l.Leave - c.coming; c.isBehind(now) ||
			!c.isFair(l.Scope, r.Key, r.Limit) {
			n = 0
		}
	})
	return max(0, n)
}

// Runs counts the tasks of a key that run here.
func (l *Lender) Runs(key string, limit, more int) {
	l.Workers.change(func(time.Time) { l.Workers.crew.shareOf(l.Scope, key, limit, func(s *share) { s.runs += more }) })
}

// parked says whether the key has parked work that could begin now.
func (l *Lender) parked(r *Ref, ready bool) {
	if l != nil {
		l.Workers.change(func(time.Time) {
			l.Workers.crew.shareOf(l.Scope, r.Key, r.Limit,
				func(s *share) { s.ready = ready })
		})
	}
}

// idle is how many workers nobody needs, beside that of me: those that are free, and those of waits that may end.
func (c *crew) idle(me *WorkerWait) int {
	n := c.limit - c.busy
	for _, wait := range c.waiting {
		if wait != me && !wait.told && !wait.borrows {
			n++
		}
	}
	return n
}

// shareOf changes the share of a key, and forgets one that has nothing.
func (c *crew) shareOf(scope, key string, limit int, change func(*share)) {
	keys := c.shares[scope]
	if keys == nil {
		if c.shares == nil {
			c.shares = map[string]map[string]*share{}
		}
		keys = map[string]*share{}
		c.shares[scope] = keys
	}
	s := keys[key]
	if s == nil {
		s = &share{}
		keys[key] = s
	}
	s.limit = limit
	if change(s); s.runs == 0 && !s.ready {
		delete(keys, key)
	}
}

// isFair reports whether no other key of the scope that could begin a task now runs less here, for each slot of its own
// limit. A key that runs nothing need not look.
func (c *crew) isFair(scope, key string, limit int) bool {
	mine := c.shares[scope][key]
	if mine == nil || mine.runs == 0 {
		return true
	}
	for other, s := range c.shares[scope] {
		if other != key && c.isReady(other, s) && s.runs*limit < (mine.runs-1)*s.limit {
			return false
		}
	}
	return true
}

func (c *crew) isReady(key string, s *share) bool {
	if s.ready {
		return true
	}
	for _, wait := range c.waiting {
		if wait.Key == key && !wait.told && !wait.borrows {
			return true
		}
	}
	return false
}

// borrowers returns who may borrow the workers that have become idle: waits, that ask again; if there are none, a key
// with parked work.
func (c *crew) borrowers() (ask []*WorkerWait, check string) {
	for _, wait := range c.waiting {
		if wait.Lender == nil || wait.told || wait.asked || wait.borrows || c.idle(wait)-len(ask) < wait.Lender.Leave ||
			!c.isFair(wait.Lender.Scope, wait.Key, wait.Limit) {
			continue
		}
		wait.asked = true
		ask = append(ask, wait)
	}
	if len(ask) == 0 && c.idle(nil) > c.coming {
		check = c.poorest()
	}
	return ask, check
}

// poorest returns the key of a scope that has parked work, and runs least here for each slot of its limit.
func (c *crew) poorest() (poorest string) {
	var least *share
	for _, keys := range c.shares {
		for key, s := range keys {
			if s.ready && (least == nil || cmp.Or(s.runs*least.limit-least.runs*s.limit, cmp.Compare(key, poorest)) < 0) {
				poorest, least = key, s
			}
		}
	}
	return poorest
}
