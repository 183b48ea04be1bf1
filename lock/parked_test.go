package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// yard is a lock on which notes park.
type yard struct {
	l       *lock.Locker
	name    string
	limit   int
	options []lock.Option
}

func yardOf(t testing.TB, l *lock.Locker, limit int, options ...lock.Option) yard {
	return yard{l, redistest.Name(t), limit, options}
}

// at is the lock on another Locker.
func (y yard) at(l *lock.Locker) yard { y.l = l; return y }

func (y yard) note(text string, options ...lock.Option) *lock.Lock {
	return y.l.Semaphore(y.name, y.limit, slices.Concat(y.options, []lock.Option{lock.Note(text)}, options)...)
}

// plain is the lock for who has no note.
func (y yard) plain(options ...lock.Option) *lock.Lock {
	return y.l.Semaphore(y.name, y.limit, slices.Concat(y.options, options)...)
}

func (y yard) parks(t testing.TB, notes ...string) {
	t.Helper()
	for _, note := range notes {
		mustPark(t, y.note(note))
	}
}

// has wants so many to hold, to wait, and to be parked, called or not.
func (y yard) has(t testing.TB, held, waiting, away int) inside.Info {
	t.Helper()
	info := looksAt(t, y.plain())
	if info.Held != held || info.Waiting != waiting || info.Parked+info.Called != away {
		t.Fatalf("%+v; want %d held, %d waiting, %d parked or called", info, held, waiting, away)
	}
	return info
}

// line are the notes of all who have a place in line, by since when.
func (y yard) line(t testing.TB) (notes []string) {
	t.Helper()
	list, err := insider.Line(t.Context(), y.plain(), inside.Info{}, 100)
	redistest.Must(t, err)
	slices.SortFunc(list, func(a, b inside.Waiter) int { return a.Since.Compare(b.Since) })
	for _, w := range list {
		notes = append(notes, w.Note)
	}
	return notes
}

// parksOnTheWay has a waiter wish to park, and stops its ask on the way.
func parksOnTheWay(t *testing.T, s *redistest.Server) (y yard, held *lock.Lease, w *attempt, p *redistest.Proxy, asks *redistest.Held) {
	t.Helper()
	near, far, p := through(t, s)
	y = yardOf(t, near, 1)
	held = mustTry(t, y.plain())
	w, park := waitsOrParks(t, y.at(far).note("job"))
	waiting(t, y.plain(), 1)
	asks = p.Hold(touches(y.plain()), 1)
	park()
	redistest.Eventually(t, soon, func() bool { return asks.Count() == 1 }, "an ask on its way")
	return y, held, w, p, asks
}

// What was granted before the wish to park reached Redis gets its lease.
func TestPark_crossesAGrant(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		y, held, w, p, asks := parksOnTheWay(t, s)
		p.DropMessages(true)
		mustUnlock(t, held)
		asks.Release()
		mustUnlock(t, w.got(t))
		free(t, y.plain())
	})
}

// The end of ctx ends a wait without a place, and the end of the Locker does, too.
func TestPark_ends(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		y := yardOf(t, newLocker(t, s.Client(t)), 1)
		held, closing := mustTry(t, y.plain()), newLocker(t, s.Client(t))
		w, _ := waitsOrParks(t, y.note("job"))
		other, _ := waitsOrParks(t, y.at(closing).note("other"))
		waiting(t, y.plain(), 2)
		w.cancel()
		redistest.Must(t, closing.Close())
		if err := w.failed(t); wantBusy(t, err).Parked || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that its context has ended", err)
		}
		if err := other.failed(t); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := insider.LockOrPark(ended, y.note("job"), parkNow); wantBusy(t, err).Parked || !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended ctx: %v", err)
		}
		waiting(t, y.plain(), 0)
		y.has(t, 1, 0, 0)
		mustUnlock(t, held)
		free(t, y.plain())
	})
}

// A ctx that ends while the wish to park is on its way: what became of it is what the answer says.
func TestPark_ctxEndsOnTheWay(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		y, held, w, _, asks := parksOnTheWay(t, s)
		w.cancel()
		asks.Release()
		err := w.failed(t)
		busy := wantBusy(t, err)
		if !busy.Parked && !errors.Is(err, context.Canceled) {
			t.Errorf("%+v", busy)
		}
		redistest.Eventually(t, soon, func() bool { // an ask that comes after the error leaves the line when it is answered
			info := looksAt(t, y.plain())
			return info.Parked > 0 == busy.Parked && info.Waiting == 0
		}, "it is parked if the error says so: %+v", busy)
		mustUnlock(t, held)
	})
}

// What is said of a call is about nothing but that call: a note that came and parked anew meanwhile keeps its place, and
// is called again once that call is over, and not beside it.
func TestPark_oneCallAtATimeForANote(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		began, goOn := make(chan string, 100), make(chan inside.Fate)
		var under atomic.Int32
		y := yardOf(t, newCaller(t, s.Client(t), func(_ context.Context, _, note string) inside.Fate {
			began <- note
			if note != "job" {
				return inside.FateUnsure
			}
			if n := under.Add(1); n > 1 {
				t.Errorf("%d calls at once for one note", n)
			}
			defer under.Add(-1)
			select {
			case fate := <-goOn:
				return fate
			case <-t.Context().Done():
				return inside.FateUnsure
			}
		}), 1)
		isCalled := func() {
			t.Helper()
			for come(t, began, "a call of job") != "job" {
			}
		}
		held := mustTry(t, y.plain())
		y.parks(t, "job", "other")
		mustUnlock(t, held)
		isCalled()
		held = mustTry(t, y.plain())
		y.parks(t, "job")       // it came, in vain
		goOn <- inside.FateGone // which is of the past
		mustUnlock(t, held)
		isCalled()
		if line := y.line(t); !slices.Contains(line, "job") {
			t.Errorf("in line: %q; a fate of the past took job out", line)
		}
		close(goOn)
	})
}
