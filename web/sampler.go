package web

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/automutex/automutex/lock"
)

const (
	// minInterval is how often all locks are looked at when there are few.
	minInterval = time.Second
	// pauseTimes is how many times as long as a look the pause after it is...
	pauseTimes = 40
	// ...as long as it is not above maxPause...
	maxPause = time.Minute
	// ...but at least leastPauseTimes: never more than a quarter of the time.
	leastPauseTimes = 3
	// pauseAfterError follows a look that failed, at least.
	pauseAfterError = 2 * time.Second
	// idleAfter is how long nobody must have looked for the sampler to end.
	idleAfter = 15 * time.Second
	// maxRows bounds what is kept of a look: the most contended locks.
	maxRows = 100_000
	// partEvery is how many rows of the first look are shown before it is complete.
	partEvery = 5000
)

// snapshot is what one look at all locks found. Apart from narrowed it never changes.
type snapshot struct {
	at       time.Time // when the look ended
	took     time.Duration
	rows     []row // by contention, at most maxRows
	byKey    map[string]int
	totals   totals
	byScope  map[string]*scopeTotals // "" has the scopes beyond maxScopes
	hot      hot
	complete bool // false: the first look is not done yet
	err      error
	narrowed *narrowed // which rows pass the viewers' filters; it has a lock of its own
}

// freshness says what the numbers of a view are worth.
type freshness struct {
	Age          time.Duration // of the numbers; 0: no look has ended
	Old, Partial bool          // the numbers are old, or of some locks alone
}

func (s *snapshot) freshness(now time.Time) freshness {
	f := freshness{Partial: !s.complete}
	if !s.at.IsZero() {
		f.Age = now.Sub(s.at)
		f.Old = f.Age > 2*minInterval && !f.Partial
	}
	return f
}

// sampler looks at all locks while somebody is interested, for all viewers at once.
//
// One goroutine, started by the first get and ended by idleness or by closed, walks the
// locks and publishes snapshots. Under mu nobody does I/O.
type sampler struct {
	locker *lock.Locker
	logger *slog.Logger
	closed <-chan struct{}
	now    func() time.Time

	mu      sync.Mutex
	asked   time.Time     // when somebody was interested last
	running bool          // the goroutine runs; it sets this back itself, under mu
	ended   chan struct{} // closed when the goroutine has ended; nil: there was none
	current *snapshot     // nil: nothing was looked at since the goroutine began
	changed chan struct{} // closed at the next snapshot, and replaced
	history *pastHour

	single refresher // has a lock of its own
}

func newSampler(locker *lock.Locker, logger *slog.Logger, closed <-chan struct{}) *sampler {
	return &sampler{
		locker: locker, logger: logger, closed: closed, now: time.Now,
		changed: make(chan struct{}), history: newPastHour(),
	}
}

// get gives the newest snapshot, and has the next one made. Without one it waits for the
// first part of it; nil means that ctx ended before.
func (s *sampler) get(ctx context.Context) *snapshot {
	return s.await(ctx, 0, func(*snapshot) bool { return true })
}

// whole gives a snapshot of all locks without having the next one made: where nobody else
// looks, the goroutine ends after this look.
func (s *sampler) whole(ctx context.Context) *snapshot {
	return s.await(ctx, idleAfter, func(snap *snapshot) bool { return snap.complete || snap.err != nil })
}

// await waits for a snapshot that will do. The interest counts as one of that long ago.
func (s *sampler) await(ctx context.Context, ago time.Duration, will func(*snapshot) bool) *snapshot {
	for {
		s.mu.Lock()
		if asked := s.now().Add(-ago); asked.After(s.asked) {
			s.asked = asked
		}
		if !s.running && !s.isClosed() {
			s.running = true
			s.ended = make(chan struct{})
			go s.run(s.ended) //nolint:gosec // it serves all viewers, and outlives this one
		}
		current, changed := s.current, s.changed
		s.mu.Unlock()
		if current != nil && will(current) {
			return current
		}
		select {
		case <-changed:
		case <-s.closed:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// wait returns when the goroutine has ended, after closed.
func (s *sampler) wait() {
	s.mu.Lock()
	ended := s.ended // the last one: await begins none after closed
	s.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

func (s *sampler) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// run is the goroutine. Its context ends with closed.
func (s *sampler) run(ended chan<- struct{}) {
	defer close(ended)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with ctx, which run cancels, or earlier
		select {
		case <-s.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		began := s.now()
		snap := s.look(ctx)
		if ctx.Err() != nil {
			s.idle() // closed
			return
		}
		if snap.err != nil {
			s.logger.Warn("automutex: web: cannot list the locks; will try again", "error", snap.err)
		}
		s.publish(snap)
		pause := pauseAfter(s.now().Sub(began))
		if snap.err != nil {
			pause = max(pauseAfterError, min(pause, 5*pauseAfterError))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if s.idle() {
			return
		}
	}
}

// pauseAfter is how long Redis is left alone after a look that took so long.
func pauseAfter(took time.Duration) time.Duration {
	return max(minInterval-took, min(pauseTimes*took, maxPause), leastPauseTimes*took)
}

// idle ends the goroutine when nobody was interested lately. The list of locks, which
// may be long, goes; the history, which is bounded, stays.
func (s *sampler) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Whoever asks next, under mu, finds either running, or starts anew.
	if s.isClosed() || s.now().Sub(s.asked) > idleAfter {
		s.running, s.current = false, nil
		return true
	}
	return false
}

// publish makes snap the current one and wakes whoever waits for it. After a failed
// look the rows of the one before stay, with the error.
func (s *sampler) publish(snap *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap.err != nil && s.current != nil {
		old := *s.current
		old.err = snap.err
		snap = &old
	}
	s.current = snap
	close(s.changed)
	s.changed = make(chan struct{})
	if snap.complete && snap.err == nil {
		s.history.add(snap)
	}
}

// look walks all locks once.
func (s *sampler) look(ctx context.Context) *snapshot {
	began := s.now()
	s.mu.Lock()
	first := s.current == nil
	s.mu.Unlock()
	snap := &snapshot{byScope: map[string]*scopeTotals{}}
	part := partEvery
	for info, err := range inner.List(ctx, s.locker) {
		if err != nil {
			snap.err = err
			break
		}
		at := s.now()
		r := newRow(info, at)
		snap.count(r)
		snap.rows = append(snap.rows, r)
		if len(snap.rows) >= 2*maxRows {
			snap.trim()
		}
		if first && snap.totals.Locks == part { // doubled each time, so that sorting costs little
			part *= 2
			s.publish(snap.copy(at))
		}
	}
	snap.at, snap.took, snap.complete = s.now(), s.now().Sub(began), snap.err == nil
	snap.sort()
	return snap
}

// failure says what is wrong with a snapshot, nil when there is none in time; "" for nothing.
func (s *snapshot) failure() string {
	switch {
	case s == nil:
		return errNoAnswer.Error()
	case s.err != nil:
		return trouble(s.err, triesAgain)
	}
	return ""
}

// trim keeps the most contended rows.
func (s *snapshot) trim() {
	slices.SortFunc(s.rows, busier)
	clear(s.rows[min(len(s.rows), maxRows):])
	s.rows = s.rows[:min(len(s.rows), maxRows)]
}

// sort makes the rows ready to be read.
func (s *snapshot) sort() {
	s.trim()
	s.narrowed = &narrowed{}
	s.byKey = make(map[string]int, len(s.rows))
	for i, r := range s.rows {
		s.byKey[r.Key] = i
	}
}

// copy is what was found so far, to be shown.
func (s *snapshot) copy(at time.Time) *snapshot {
	part := &snapshot{at: at, totals: s.totals, hot: s.hot.copy(), byScope: make(map[string]*scopeTotals, len(s.byScope)), rows: slices.Clone(s.rows)}
	for scope, t := range s.byScope {
		its := *t
		its.Top = slices.Clone(t.Top)
		part.byScope[scope] = &its
	}
	part.sort()
	return part
}

// errNoAnswer is shown when the first look at the locks does not end in time.
var errNoAnswer = errors.New("Redis does not answer; " + triesAgain)
