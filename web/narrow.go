package web

import (
	"cmp"
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
	// narrowWithin is how long a viewer waits for the rows to be walked through. What was found until then is
	// shown, and said to be a part.
	narrowWithin = 40 * time.Millisecond
	// narrowAtOnce is how many rows the first viewer walks through itself: that takes some milliseconds.
	narrowAtOnce = 5000
	// narrowEvery is after how many rows a part is handed over.
	narrowEvery = 4096
)

// narrowing is the part of a filter whose result is the same as long as the snapshot is:
// all but "longer than", which depends on the time.
type narrowing struct {
	search, rule    string
	waiting, closed bool
	sort            string
	known           *known // the rules by which rule is decided; nil without one
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
	done  chan struct{} // closed when all rows are walked through; the goroutine that walks ends then
	rows  []int32       // those that pass; in order only if nobody asked for another order
	first []int32       // the first firstSorted of them, in order

	mu   sync.Mutex // guards part
	part []int32    // of rows, until done is closed: it only grows

	sortOnce sync.Once // sorts all of them, for pages far back
	sorted   []int32
}

// soFar waits for the list for as long as a viewer does, and gives it or a part of it.
func (l *narrowedList) soFar(rows []row, order func(a, b *row) int) (list *narrowedList, partial bool) {
	select {
	case <-l.done:
		return l, false
	case <-time.After(narrowWithin):
	}
	l.mu.Lock()
	part := &narrowedList{rows: slices.Clip(l.part)}
	l.mu.Unlock()
	if order != nil {
		part.first = firstOf(firstSorted, part.rows, rows, order)
	}
	return part, true
}

// walk finds the rows that pass. It does no I/O, so it ends soon, and nothing waits for it.
func (l *narrowedList) walk(rows []row, by narrowing) {
	defer close(l.done)
	l.rows = by.filter(rows, func(part []int32) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.part = part
	})
	if order := sorts[by.sort].order; order != nil {
		l.first = firstOf(firstSorted, l.rows, rows, order)
	}
}

// firstSorted is how many rows of a sorted list are put in order at once: most viewers look at
// the first pages, and to sort 100,000 rows takes a while.
const firstSorted = 20 * perPage

// upTo gives the rows in order, the first n of them at least.
func (l *narrowedList) upTo(n int, rows []row, order func(a, b *row) int) []int32 {
	if order == nil {
		return l.rows
	}
	if n <= firstSorted {
		return l.first
	}
	l.sortOnce.Do(func() {
		l.sorted = slices.Clone(l.rows)
		slices.SortFunc(l.sorted, func(a, b int32) int { return order(&rows[a], &rows[b]) })
	})
	return l.sorted
}

// firstOf gives the first n rows in an order.
func firstOf(n int, passing []int32, rows []row, order func(a, b *row) int) []int32 {
	by := func(a, b int32) int { return order(&rows[a], &rows[b]) }
	kept, worst := make([]int32, 0, 2*n), int32(-1) // worst: the n-th of those kept so far
	for _, i := range passing {
		if worst >= 0 && by(i, worst) >= 0 {
			continue
		}
		if kept = append(kept, i); len(kept) == 2*n {
			slices.SortFunc(kept, by)
			kept, worst = kept[:n], kept[n-1]
		}
	}
	slices.SortFunc(kept, by)
	return kept[:min(n, len(kept))]
}

// get gives the numbers of the rows that pass, in order, or those of a part of the rows. The slices are shared: read only.
func (n *narrowed) get(rows []row, by narrowing) (list *narrowedList, partial bool) {
	n.mu.Lock()
	list = n.all[by]
	if list == nil {
		if n.all == nil || n.kept > maxNarrowed {
			n.all, n.kept = map[narrowing]*narrowedList{}, 0 // viewers that have a list go on with it
		}
		list = &narrowedList{done: make(chan struct{})}
		n.all[by] = list
		n.kept += narrowedCost + len(by.search) + len(by.rule)
		walk := func(walked *narrowedList) {
			walked.walk(rows, by)
			n.mu.Lock()
			n.kept += 4 * cap(walked.rows)
			n.mu.Unlock()
		}
		if len(rows) > narrowAtOnce {
			go walk(list) // ends when it has walked through the rows
		} else {
			n.mu.Unlock()
			walk(list)
			return list, false
		}
	}
	n.mu.Unlock()
	if len(rows) <= narrowAtOnce {
		<-list.done // another viewer walks
		return list, false
	}
	return list.soFar(rows, sorts[by.sort].order)
}

// filter gives the numbers of the rows that pass, and now and then those found so far.
func (by narrowing) filter(rows []row, some func([]int32)) (passing []int32) {
	byScope := map[string]bool{} // whether one of the scope's rules is the one asked for
	search := inspect.Compile(by.search)
	for i := range rows {
		if i%narrowEvery == 0 {
			some(passing)
		}
		r := &rows[i]
		if by.waiting && r.line() == 0 || by.closed && r.Closed == "" || by.search != "" && !matches(r, search) {
			continue
		}
		if by.rule != "" {
			scope := inspect.ScopeOf(r.Key)
			passes, known := byScope[scope]
			if !known {
				passes = slices.Contains(by.known.rulesFor(scope), by.rule)
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

// matches reports whether r has a text: in its key, or of its first holder in the label or
// the task, or of the next task in order.
func matches(r *row, text inspect.Pattern) bool {
	return text.Matches(inspect.InBraces(r.Key)) || text.Matches(r.Key) || r.Owner != "" && text.Matches(r.Owner) || r.Note != "" && text.Matches(r.Note) ||
		r.Head != nil && text.Matches(r.Head.Note)
}

// sorting is an order of the list.
type sorting struct {
	name  string // of the first row: "the most contended"
	order func(a, b *row) int
}

// sorts are the orders that a viewer can ask for. The empty one is that of the rows.
var sorts = map[string]sorting{
	"":       {"the most contended", nil},
	"key":    {"by key, A", func(a, b *row) int { return strings.Compare(a.Key, b.Key) }},
	"holder": {"by holder, A", func(a, b *row) int { return cmp.Or(strings.Compare(a.Owner, b.Owner), strings.Compare(a.Key, b.Key)) }},
	"held":   {"held longest", func(a, b *row) int { return cmp.Or(earlier(a.Since, b.Since), strings.Compare(a.Key, b.Key)) }},
	"left":   {"the next lease to end", func(a, b *row) int { return cmp.Or(earlier(a.Until, b.Until), strings.Compare(a.Key, b.Key)) }},
}

// earlier orders times, and puts those that are not known last.
func earlier(a, b time.Time) int {
	return cmp.Or(cmp.Compare(boolInt(a.IsZero()), boolInt(b.IsZero())), a.Compare(b))
}

// find gives the rows of one page of the list, and how many pass the filter in all. partial: so far, since the
// rows are still walked through.
func (s *snapshot) find(q keysQuery, now time.Time, k *known) (shown []row, found int, partial bool) {
	skip := (q.Page - 1) * perPage
	by := narrowing{search: q.Search, rule: q.Rule, waiting: q.Waiting, closed: q.Closed, sort: q.Sort}
	if by.rule != "" {
		by.known = k
	}
	if by == (narrowing{}) && q.longer == 0 {
		first, last := min(skip, len(s.rows)), min(skip+perPage, len(s.rows))
		return slices.Clone(s.rows[first:last]), len(s.rows), false
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
		return shown, found, false
	}
	list, partial := s.narrowed.get(s.rows, by)
	order := sorts[q.Sort].order
	if q.longer > 0 { // which of them pass is decided row by row
		for _, i := range list.upTo(len(list.rows), s.rows, order) {
			take(s.rows[i])
		}
		return shown, found, partial
	}
	passing := list.upTo(skip+perPage, s.rows, order)
	for _, i := range passing[min(skip, len(passing)):min(skip+perPage, len(passing))] {
		shown = append(shown, s.rows[i])
	}
	return shown, len(list.rows), partial
}
