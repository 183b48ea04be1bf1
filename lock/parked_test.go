package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

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

// A free lock is taken at once, whatever says when to park.
func TestPark_takesAFreeLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := yardOf(t, newLocker(t, s.Client(t)), 1).note("job")
		for _, yield := range []<-chan struct{}{nil, parkNow, make(chan struct{})} {
			le, err := lock.LockOrPark(t.Context(), m, yield)
			if err != nil || !le.Held() || insider.Parked(le) != 0 {
				t.Fatalf("LockOrPark of a free lock: %v, parked for %v", err, insider.Parked(le))
			}
			mustUnlock(t, le)
			free(t, m)
		}
	})
}

// Who parks learns its place and whom it is behind, keeps one place however often it parks, and waits in no line.
func TestPark_atOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		y := yardOf(t, newLocker(t, rdb, owner("me")), 1, lock.TTL(10*time.Second))
		held := mustTry(t, y.note("first"))
		for i, note := range []string{"a", "b", "c"} {
			busy := mustPark(t, y.note(note))
			if busy.Place != i || busy.Holder != "me" || busy.Note != "first" || busy.Reason != lock.ReasonHeld || busy.Name != y.name || busy.ExpiresIn <= 0 || busy.ExpiresIn > 11*time.Second {
				t.Errorf("%s: %+v, want place %d behind first", note, busy, i)
			}
			if life := rdb.PTTL(t.Context(), y.plain().Key()).Val(); life < 15*time.Minute {
				t.Errorf("with %s parked the key lives for %v", note, life)
			}
		}
		other := y.at(newLocker(t, s.Client(t)))
		for _, again := range []*lock.Lock{y.note("a"), other.note("a"), y.note("a")} {
			if busy := mustPark(t, again); busy.Place != 0 {
				t.Errorf("place %d after parking anew", busy.Place)
			}
		}
		y.has(t, 1, 0, 3)
		// Coming back as a goroutine it stands where it stood.
		w := inLine(t, y.note("a"), 1)
		if info := looksAt(t, y.note("b")); info.Parked != 2 || info.Waiting != 1 || info.Place != 1 {
			t.Errorf("%+v", info)
		}
		w.cancel()
		wantBusy(t, w.failed(t))
		redistest.Eventually(t, soon, func() bool { info := looksAt(t, y.plain()); return info.Waiting == 0 && info.Parked == 2 }, "b and c alone are left")
		mustUnlock(t, held)
		y.parksAndComes(t, "b", "c")
		free(t, y.plain())
	})
}

// parksAndComes has what is parked under these notes take its turn.
func (y yard) parksAndComes(t testing.TB, notes ...string) {
	t.Helper()
	for _, note := range notes {
		takesAndUnlocks(t, y.note(note))
	}
}

// However it comes back, a lock that is taken leaves nothing of the note, and its lease says how long it was in line.
func TestPark_comesBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		park := func(yield <-chan struct{}) func(m *lock.Lock) (*lock.Lease, error) {
			return func(m *lock.Lock) (*lock.Lease, error) { return lock.LockOrPark(t.Context(), m, yield) }
		}
		for way, take := range map[string]func(m *lock.Lock) (*lock.Lease, error){
			"TryLock":         func(m *lock.Lock) (*lock.Lease, error) { return m.TryLock(t.Context()) },
			"Lock":            func(m *lock.Lock) (*lock.Lease, error) { return m.Lock(t.Context()) },
			"LockOrPark":      park(make(chan struct{})),
			"LockOrPark, now": park(parkNow),
		} {
			y := yardOf(t, l, 1)
			held := mustTry(t, y.note("holder"))
			began, before := time.Now(), clockOf(t, rdb)
			y.parks(t, "job", "other")
			passes(t, rdb, before.Add(2*time.Millisecond))
			mustBeBusy(t, y.note("job"))
			y.has(t, 1, 0, 2)
			mustUnlock(t, held)
			le, err := take(y.note("job"))
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			if d := insider.Parked(le); d <= 0 || d > time.Since(began)+time.Millisecond {
				t.Errorf("%s: parked for %v, of %v", way, d, time.Since(began))
			}
			if line := y.line(t); !slices.Equal(line, []string{"other"}) {
				t.Errorf("%s: %q are parked", way, line)
			}
			mustUnlock(t, le)
			y.parksAndComes(t, "other")
			free(t, y.plain())
		}
	})
}

// A waiter that is told to parks, and keeps its place before those that came later.
func TestPark_aWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		y := yardOf(t, newLocker(t, s.Client(t), owner("far")), 1)
		held := mustTry(t, y.plain())
		w, park := waitsOrParks(t, y.at(newLocker(t, s.Client(t))).note("job"))
		waiting(t, y.plain(), 1)
		younger := inLine(t, y.note("younger"), 2)
		park()
		var busy *lock.Refused
		if err := w.failed(t); !errors.As(err, &busy) || !busy.Parked || busy.Holder != "far" || busy.Waited <= 0 || busy.InLine <= 0 {
			t.Errorf("%+v", err)
		}
		if line := y.line(t); !slices.Equal(line, []string{"job", "younger"}) {
			t.Errorf("in line are %q", line)
		}
		if info := looksAt(t, y.note("job")); info.Waiting != 1 || info.Parked != 1 || info.Place > 1 {
			t.Errorf("%+v", info)
		}
		mustUnlock(t, held)
		mustUnlock(t, younger.got(t)) // no slot is kept for what is parked
		y.parksAndComes(t, "job")
		free(t, y.plain())
	})
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
		if err := w.failed(t); isParked(err) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that its context has ended", err)
		}
		if err := other.failed(t); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := lock.LockOrPark(ended, y.note("job"), parkNow); isParked(err) || !errors.Is(err, context.Canceled) {
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
		if !isParked(err) && !errors.Is(err, context.Canceled) {
			t.Errorf("%+v", err)
		}
		redistest.Eventually(t, soon, func() bool { // an ask that comes after the error leaves the line when it is answered
			info := looksAt(t, y.plain())
			return info.Parked > 0 == isParked(err) && info.Waiting == 0
		}, "it is parked if the error says so: %+v", err)
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
