package web

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/inspect"
)

const (
	// maxNarrowed bounds the bytes that the lists of one snapshot keep together, but for the
	// last of them.
	maxNarrowed = 4 << 20
	// narrowedCost is what a list takes beside its text and its row numbers, about.
	narrowedCost = 200
)

// narrowing is the part of a filter whose result is the same as long as the snapshot is:
// all but "longer than", which depends on the time.
type narrowing struct {
	search, rule string
	waiting      bool
}

// narrowed keeps which rows of one snapshot pass which filters, for all viewers. A look at
// 100,000 locks is shown for many seconds, and each viewer's list is made once a second.
type narrowed struct {
	mu   sync.Mutex // guards the rest; nobody filters under it
	all  map[narrowing]*narrowedList
	kept int // bytes in all, about
}

// narrowedList has the numbers of the rows that pass one filter.
type narrowedList struct {
	once sync.Once // the first viewer filters; the others wait for the result
	rows []int32
}

// get gives the numbers of the rows that pass, in order. The slice is shared: read only.
func (n *narrowed) get(rows []row, by narrowing, namesFor func(scope string) string) []int32 {
	n.mu.Lock()
	list := n.all[by]
	if list == nil {
		if n.all == nil || n.kept > maxNarrowed {
			n.all, n.kept = map[narrowing]*narrowedList{}, 0 // whoever has a list goes on with it
		}
		list = &narrowedList{}
		n.all[by] = list
		n.kept += narrowedCost + len(by.search) + len(by.rule)
	}
	n.mu.Unlock()
	list.once.Do(func() {
		list.rows = by.filter(rows, namesFor)
		n.mu.Lock()
		n.kept += 4 * cap(list.rows)
		n.mu.Unlock()
	})
	return list.rows
}

// filter gives the numbers of the rows that pass.
func (by narrowing) filter(rows []row, namesFor func(scope string) string) (passing []int32) {
	byScope := map[string]bool{} // whether one of the scope's rules is the one asked for
	for i, r := range rows {
		if by.waiting && r.line() == 0 || by.search != "" && !inspect.Matches(inspect.InBraces(r.Key), by.search) && !inspect.Matches(r.Key, by.search) {
			continue
		}
		if by.rule != "" {
			scope := scopeOf(r.Key)
			passes, known := byScope[scope]
			if !known {
				passes = slices.Contains(strings.Split(namesFor(scope), ", "), by.rule)
				byScope[scope] = passes
			}
			if !passes {
				continue
			}
		}
		passing = append(passing, int32(i))
	}
	return passing
}

// find gives the rows of one page of the list, and how many pass the filter in all.
func (s *snapshot) find(q keysQuery, now time.Time, namesFor func(scope string) string) (shown []row, found int) {
	skip := (q.Page - 1) * perPage
	by := narrowing{q.Search, q.Rule, q.Waiting}
	if by == (narrowing{}) && q.longer == 0 {
		first, last := min(skip, len(s.rows)), min(skip+perPage, len(s.rows))
		return slices.Clone(s.rows[first:last]), len(s.rows)
	}
	take := func(r row) {
		if q.longer > 0 && r.Held <= 1 && (r.Since.IsZero() || now.Sub(r.Since) <= q.longer) {
			return
		}
		if found++; found > skip && len(shown) < perPage {
			shown = append(shown, r)
		}
	}
	if by == (narrowing{}) {
		for _, r := range s.rows {
			take(r)
		}
		return shown, found
	}
	for _, i := range s.narrowed.get(s.rows, by, namesFor) {
		take(s.rows[i])
	}
	return shown, found
}
