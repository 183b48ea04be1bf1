package web

import (
	"context"
	"sync"
	"time"
)

const (
	// freshFor is how long what was found of one lock is good enough to be shown.
	freshFor = 900 * time.Millisecond
	// refreshBudget is how long one second's refreshing of single locks may take.
	refreshBudget = 200 * time.Millisecond
	// maxFresh bounds how many single locks are remembered.
	maxFresh = 1000
)

// refresher asks for single locks that are on somebody's screen, where the look at all
// locks is too old. One caller at a time asks; what it finds serves all viewers.
type refresher struct {
	mu   sync.Mutex // held while Redis is asked, within refreshBudget, so that asks are shared
	seen map[string]refreshed
	// spent of the budget of the second that began at since.
	since time.Time
	spent time.Duration
}

type refreshed struct {
	row row
	at  time.Time
}

// refresh gives rows as they are now, as far as the budget allows. Rows of a snapshot that
// is fresh stay as they are. The others keep their places.
func (s *sampler) refresh(ctx context.Context, rows []row, at time.Time) []row {
	if s.now().Sub(at) < 2*freshFor || len(rows) == 0 {
		return rows
	}
	f := &s.single
	f.mu.Lock()
	defer f.mu.Unlock()
	now := s.now()
	if now.Sub(f.since) >= time.Second {
		f.since, f.spent = now, 0
	}
	if f.seen == nil || len(f.seen) > maxFresh {
		f.seen = map[string]refreshed{}
	}
	fresh := make([]row, 0, len(rows))
	for _, r := range rows {
		known, ok := f.seen[r.Key]
		if ok && now.Sub(known.at) < freshFor {
			fresh = append(fresh, known.row)
			continue
		}
		if f.spent >= refreshBudget {
			fresh = append(fresh, r)
			continue
		}
		began := s.now()
		bound, cancel := context.WithTimeout(ctx, refreshBudget)
		info, err := inner.Inspect(bound, inner.ByKey(s.locker, r.Key))
		cancel()
		now = s.now()
		f.spent += now.Sub(began)
		if err == nil {
			r = newRow(info, now)
			f.seen[r.Key] = refreshed{r, now}
		}
		fresh = append(fresh, r)
	}
	return fresh
}

// lastHour gives the history of a key, "" for all locks together. nil: there is none.
func (s *sampler) lastHour(key string, slot int64) []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.history.all
	if key != "" {
		of = s.history.keys[key]
	}
	if of == nil {
		return nil
	}
	return of.lastHour(slot)
}

// follow adds what was found of one lock that somebody looks at to its history.
func (s *sampler) follow(r row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history.follow(r, slotOf(s.now()))
}
