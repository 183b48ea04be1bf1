package web

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inside"
)

const (
	// mostBars is how many runs and waits of a key are read of its history, and kept of what looks saw.
	mostBars = 200
	// seenWithin is how far what looks saw may be from what the history says of the same run.
	seenWithin = 2 * time.Second
)

// run is a run of a task, a wait, or both: the history of the key tells of it, or looks saw it. Times are by the clock
// of this process.
type run struct {
	history.Run      // Came is zero where it is not known
	Open        bool // it goes on; its End is now
}

// begin is when it came, or was seen first.
func (r run) begin() time.Time {
	if r.Came.IsZero() {
		return r.Start
	}
	return r.Came
}

// seenRuns is what the looks of the key views saw: without a history, it is all that is known of the past. Under mu nobody
// does I/O.
type seenRuns struct {
	mu   sync.Mutex
	keys map[string]*seenKey // at most maxSeries
}

// seenKey is what looks at one key saw.
type seenKey struct {
	first, last time.Time // looks
	open        map[string]run
	past        []run // at most mostBars, the newest last
}

// look adds a look at a key, and returns all that is known of it and since when. since is when the one holder took the
// lock; zero: there are none or several. ahead is how far Redis' clock, by which the line's times are, is ahead.
func (s *seenRuns) look(key string, now, since time.Time, ahead time.Duration, holders []inside.Holder, line []inside.Waiter) (runs []run, first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of(key, now)
	open := map[string]run{}
	for _, h := range holders {
		r, known := k.open[h.Token]
		if !known {
			r.Run = history.Run{Task: h.Note, Worker: h.Owner, Start: cmp.Or(since, now)}
			for _, waited := range k.open {
				if waited.Start.IsZero() && waited.Task == h.Note && h.Note != "" {
					r.Came = waited.Came
				}
			}
		}
		open[h.Token] = r
	}
	for _, w := range line {
		// Two that wait may have the same note, or none, and not the same ticket.
		open[w.Note+" "+strconv.FormatInt(w.Since.UnixNano(), 10)] = run{Run: history.Run{Task: w.Note, Worker: w.Owner, Came: w.Since.Add(-ahead)}}
	}
	for id, r := range k.open {
		if _, still := open[id]; still || r.Start.IsZero() && slices.ContainsFunc(holders, func(h inside.Holder) bool { return h.Note == r.Task && h.Note != "" }) {
			continue // the wait of a holder is in its run
		}
		r.Open, r.End = false, k.last
		k.past = append(k.past, r)
	}
	k.past = k.past[max(0, len(k.past)-mostBars):]
	k.open, k.last = open, now
	for id, r := range open {
		r.Open, r.End = true, now
		open[id] = r
		runs = append(runs, r)
	}
	return append(runs, k.past...), k.first
}

// of is what is known of a key. The key that nobody looked at for longest makes room for a new one.
func (s *seenRuns) of(key string, now time.Time) *seenKey {
	k := s.keys[key]
	if k != nil {
		return k
	}
	if len(s.keys) >= maxSeries {
		oldest := key
		for other, is := range s.keys {
			if oldest == key || is.last.Before(s.keys[oldest].last) {
				oldest = other
			}
		}
		delete(s.keys, oldest)
	}
	if s.keys == nil {
		s.keys = map[string]*seenKey{}
	}
	k = &seenKey{first: now, last: now}
	s.keys[key] = k
	return k
}

// joined is what the history of a key tells, and of what looks saw that which it does not tell, the newest first.
func joined(kept []history.Run, ahead time.Duration, seen []run) []run {
	all := make([]run, 0, len(kept)+len(seen))
	for _, r := range kept {
		r.Came, r.End = r.Came.Add(-ahead), r.End.Add(-ahead)
		if !r.Start.IsZero() {
			r.Start = r.Start.Add(-ahead)
		}
		all = append(all, run{Run: r})
	}
	for _, s := range seen {
		// What goes on is in no history yet: that was read before the look.
		if s.Open || !slices.ContainsFunc(all[:len(kept)], func(r run) bool {
			return r.Task == s.Task && r.Came.Before(s.End.Add(seenWithin)) && r.End.After(s.begin().Add(-seenWithin))
		}) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b run) int {
		return cmp.Or(boolInt(b.Open)-boolInt(a.Open), b.End.Compare(a.End), b.begin().Compare(a.begin()), strings.Compare(a.Task, b.Task))
	})
	return all[:min(len(all), mostBars)]
}
