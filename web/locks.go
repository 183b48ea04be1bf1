package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/printable"
)

const (
	// leastPause follows a look at all locks, and mostPause is the longest.
	leastPause, mostPause = time.Second, time.Minute
	// pausePerLock keeps Redis free where there are many locks: it takes some 50 us for each.
	pausePerLock = 2 * time.Millisecond
	// pauseTimes is how many times as long as a look the pause after it is, at least: Redis may have few locks and
	// millions of other keys.
	pauseTimes = 9
	walkWithin = 2 * time.Minute
	// maxRows bounds what is kept of a look: the most contended locks.
	maxRows = 50_000

	// newFor is how old a look may be before its age is shown.
	newFor = 2 * time.Second
)

// timeouts are how long a view waits before it shows what it knows.
type timeouts struct {
	redis time.Duration // for the first look at all locks, and for what else it shows
	next  time.Duration // for a further look at all locks
	asynq time.Duration
}

var usualTimeouts = timeouts{redis: 3 * time.Second, next: 300 * time.Millisecond, asynq: time.Second}

// pauseAfter is how long Redis is left alone after a look at so many locks.
func pauseAfter(locks int, took time.Duration) time.Duration {
	return min(max(leastPause-took, time.Duration(locks)*pausePerLock, pauseTimes*took), mostPause)
}

// totals are counts over all locks, those beyond maxRows included.
type totals struct{ Locks, Held, Line, Parked, Queued, Gates, Blocked int }

// snapshot is what one look at all locks found. It never changes.
type snapshot struct {
	totals
	rows []row     // the most contended first
	at   time.Time // when the look ended, by the clock of this process
}

func (s *snapshot) add(r row) {
	s.totals = s.with(r)
	if s.rows = append(s.rows, r); len(s.rows) >= 2*maxRows {
		s.trim()
	}
}

func (t totals) with(r row) totals {
	t.Locks++
	t.Held += r.Held
	t.Line += r.Line
	t.Parked += r.Parked
	t.Queued += r.Queued
	if r.Gate != nil {
		t.Gates++
	}
	if r.Blocked() {
		t.Blocked++
	}
	return t
}

func (s *snapshot) trim() {
	slices.SortFunc(s.rows, busier)
	clear(s.rows[min(len(s.rows), maxRows):])
	s.rows = s.rows[:min(len(s.rows), maxRows)]
}

// busier orders rows: the longest line first, then the one taken longest ago, then by key, so that rows keep their
// places.
func busier(a, b row) int {
	taken := func(r row) int64 {
		if r.Since == nil {
			return math.MaxInt64 // held by nobody: the last
		}
		return r.Since.UnixMicro()
	}
	return cmp.Or(cmp.Compare(b.Line, a.Line), cmp.Compare(taken(a), taken(b)), strings.Compare(a.Key, b.Key))
}

// errLooking is shown while the first look goes on: Redis does not answer, or has very many locks.
var errLooking = errors.New("Redis has not told yet which locks there are; " + triesAgain)

// snapshot gives the last look at all locks, and has the next one made if it is too old. nil: there was none in time.
// The error is for the viewer.
func (p *page) snapshot(ctx context.Context) (*snapshot, error) {
	wait := p.within.redis
	if last := p.locks.last(); last != nil && time.Since(last.at) < 2*mostPause {
		wait = p.within.next
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s, err := p.locks.get(bound, p.walk)
	if err != bound.Err() { //nolint:errorlint // the end of this wait itself, and no error of Redis
		return s, err
	} else if s == nil {
		return nil, errLooking
	}
	return s, nil // the next look goes on: age says how old this one is
}

// age is shown beside the numbers of an old look, which are shown as they were; empty: they are new.
func (s *snapshot) age() string {
	if age := time.Since(s.at); age > newFor {
		return printable.Duration(age.Round(time.Second))
	}
	return ""
}

// Blocked reports whether a task of the key has failed or is archived, and keeps others waiting.
func (r row) Blocked() bool { return r.Next != nil && r.Next.Blocked }

// held is for how long the lock had been held; 0: by nobody, or by several, of whom only the newest one's time is
// known.
func (r row) held() time.Duration {
	if r.Held != 1 || r.Since == nil {
		return 0
	}
	return max(r.At.Sub(*r.Since), time.Millisecond)
}

// endsIn is when the first known lease ends; the highest number: nobody holds the lock.
func (r row) endsIn() time.Duration {
	if len(r.Holders) == 0 {
		return math.MaxInt64
	}
	return r.Holders[0].Until.Sub(r.At)
}

// HeldFor is for how long the lock had been held when somebody looked: what is old is not made older. Empty: not known.
func (r row) HeldFor() string {
	if r.held() == 0 {
		return ""
	}
	return printable.Duration(r.held())
}

// OpensIn is how long the gate had to stay closed.
func (r row) OpensIn() string { return printable.Duration(r.Gate.Opens.Sub(r.At)) }

// keepFirst inserts a row where the order wants it, and keeps the first few.
func keepFirst(list []row, r row, most int, order func(a, b row) int) []row {
	byKey := func(a, b row) int { return cmp.Or(order(a, b), strings.Compare(a.Key, b.Key)) }
	if len(list) == most && byKey(r, list[most-1]) >= 0 {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, r, byKey)
	list = slices.Insert(list, at, r)
	return list[:min(len(list), most)]
}

// pointEvery is how far the points of the last hour are apart, in seconds.
const pointEvery = 10

type hour struct {
	mu     sync.Mutex // guards points
	points [][4]int64 // when, in seconds since 1970; held, waiting in workers, parked or in order
}

func (h *hour) add(at time.Time, t totals) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, apart := at.Unix(), int64(t.Parked+t.Queued)
	if n := len(h.points); n > 1 && now-h.points[n-2][0] <= pointEvery {
		h.points = h.points[:n-1]
	}
	// the clock may go back
	h.points = slices.DeleteFunc(h.points, func(p [4]int64) bool { return p[0] <= now-3600 || p[0] >= now })
	h.points = append(h.points, [4]int64{now, int64(t.Held), int64(t.Line) - apart, apart})
}

// json gives the points for the script that draws them.
func (h *hour) json() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	text, err := json.Marshal(h.points)
	if err != nil {
		panic(err) // they are numbers
	}
	return string(text)
}
