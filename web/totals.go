package web

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inspect"
)

const (
	// maxScopes bounds the scopes that a look counts apart: a rule whose Scope a program makes
	// of values could have any number.
	maxScopes = 10_000
	// topKeys is how many keys of a scope are named, and hottest how many of all in the Overview.
	topKeys = 3
	hottest = 6
	// mostHeads is how many blocked keys the page names. asynq is asked for the task of each.
	mostHeads = mostStates
)

// totals are counts over all locks, those beyond maxRows included.
type totals struct{ Locks, Held, Waiting, Parked, Queued, Blocked int }

// Line is how many are in line: those that wait in workers, that are parked, and that are in order.
func (t totals) Line() int { return t.Waiting + t.Parked + t.Queued }

// with returns t and the lock of r.
func (t totals) with(r row) totals { return t.plus(r.totals()) }

func (r row) totals() totals {
	return totals{1, r.Held, r.Waiting, r.Parked, r.Queued, boolInt(r.Blocked())}
}

func (t totals) plus(o totals) totals {
	return totals{t.Locks + o.Locks, t.Held + o.Held, t.Waiting + o.Waiting, t.Parked + o.Parked, t.Queued + o.Queued, t.Blocked + o.Blocked}
}

// scopeTotals is what a look found of one scope.
type scopeTotals struct {
	totals
	Oldest time.Time // when the lock was taken that one holder has had longest; zero: none
	Stands time.Time // since when a task of a blocked key has kept others waiting; zero: none does
	Top    []row     // its keys with a line, the most contended first
}

// hot is what a look found to be worth a look.
type hot struct {
	Waited  []row // the longest lines
	Longest []row // held longest, of those with one holder
	Gates   []row // closed gates, the first to open first
	Closed  int   // gates
	Heads   []row // ordered keys whose next task may keep others waiting: held ones first, then by age
}

func (h hot) copy() hot {
	h.Waited, h.Longest, h.Gates, h.Heads = slices.Clone(h.Waited), slices.Clone(h.Longest), slices.Clone(h.Gates), slices.Clone(h.Heads)
	return h
}

// Holds reports whether an archived task holds its key.
func (h hot) Holds() bool { return len(h.Heads) > 0 && h.Heads[0].Head.Held() }

// MostWaited is the length of the longest line.
func (h hot) MostWaited() int {
	if len(h.Waited) == 0 {
		return 0
	}
	return h.Waited[0].line()
}

// count adds a lock to the numbers of a look.
func (s *snapshot) count(r row) {
	s.totals = s.totals.with(r)
	scope := inspect.ScopeOf(r.Key)
	its := s.byScope[scope]
	if its == nil {
		if len(s.byScope) >= maxScopes {
			scope = ""
		}
		if its = s.byScope[scope]; its == nil {
			its = &scopeTotals{}
			s.byScope[scope] = its
		}
	}
	its.totals = its.with(r)
	if !r.Since.IsZero() {
		if its.Oldest.IsZero() || r.Since.Before(its.Oldest) {
			its.Oldest = r.Since
		}
		s.hot.Longest = keepFirst(s.hot.Longest, r, hottest, func(a, b row) int {
			return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Key, b.Key))
		})
	}
	if r.line() > 0 {
		its.Top = keepFirst(its.Top, r, topKeys, busier)
		s.hot.Waited = keepFirst(s.hot.Waited, r, hottest, busier)
	}
	if r.Head != nil {
		s.hot.Heads = keepFirst(s.hot.Heads, r, mostHeads, func(a, b row) int { return blocked.First(*a.Head, *b.Head) })
		if since := r.Head.Since; r.Blocked() && (its.Stands.IsZero() || since.Before(its.Stands)) {
			its.Stands = since
		}
	}
	if r.Closed != "" {
		s.hot.Closed++
		s.hot.Gates = keepFirst(s.hot.Gates, r, hottest, func(a, b row) int {
			return cmp.Or(a.Opens.Compare(b.Opens), strings.Compare(a.Key, b.Key))
		})
	}
}

// keepFirst inserts a row where the order wants it, and keeps the first few.
func keepFirst(list []row, r row, most int, order func(a, b row) int) []row {
	if len(list) == most && order(r, list[most-1]) >= 0 {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, r, order)
	list = slices.Insert(list, at, r)
	return list[:min(len(list), most)]
}
