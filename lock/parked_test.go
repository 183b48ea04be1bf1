package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

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

// places are all who have a place in line, by since when.
func (y yard) places(t testing.TB) []inside.Waiter {
	t.Helper()
	list, err := insider.Line(t.Context(), y.plain(), inside.Info{}, 100)
	redistest.Must(t, err)
	slices.SortFunc(list, func(a, b inside.Waiter) int { return a.Since.Compare(b.Since) })
	return list
}

// line are the notes of those.
func (y yard) line(t testing.TB) (notes []string) {
	t.Helper()
	for _, w := range y.places(t) {
		notes = append(notes, w.Note)
	}
	return notes
}

// A free lock is taken at once, whatever says when to park; what is wrong with the lock is told.
func TestPark_takesAFreeLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := yardOf(t, newLocker(t, s.Client(t)), 1).note("job")
		for _, yield := range []<-chan struct{}{nil, parkNow, make(chan struct{})} {
			le, err := insider.LockOrPark(t.Context(), m, yield)
			if err != nil || !le.Held() || insider.Parked(le) != 0 {
				t.Fatalf("LockOrPark of a free lock: %v, parked for %v", err, insider.Parked(le))
			}
			mustUnlock(t, le)
			free(t, m)
		}
	})
	l := newLocker(t, redistest.Mini(t).Client(t))
	for want, m := range map[string]*lock.Lock{"needs a Note": l.Mutex("x"), "the name is empty": l.Mutex("", lock.Note("x"))} {
		for _, yield := range []<-chan struct{}{nil, parkNow} {
			if _, err := insider.LockOrPark(t.Context(), m, yield); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "lock: ") {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
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
			if !strings.Contains(busy.Error(), "parked at place") {
				t.Errorf("%v", busy)
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
			return func(m *lock.Lock) (*lock.Lease, error) { return insider.LockOrPark(t.Context(), m, yield) }
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
			if busy := mustBeBusy(t, y.note("job")); busy.Parked {
				t.Errorf("%s: TryLock that found it busy: %+v", way, busy)
			}
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

// A note that holds neither waits nor parks, whatever the limit.
func TestPark_notBehindItself(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), owner("me"))
		for _, limit := range []int{1, 2} {
			y := yardOf(t, l, limit)
			for range limit - 1 {
				mustTry(t, y.note("earlier deadline", lock.TTL(10*time.Second)))
			}
			mustTry(t, y.note("job"))
			for what, yield := range map[string]<-chan struct{}{"closed": parkNow, "open": make(chan struct{})} {
				le, err := insider.LockOrPark(t.Context(), y.note("job"), yield)
				if busy := wantBusy(t, err); le != nil || busy.Parked || busy.Note != "job" || busy.Holder != "me" {
					t.Errorf("limit %d, yield %s: %+v", limit, what, busy)
				}
				redistest.Eventually(t, soon, func() bool { info := looksAt(t, y.plain()); return info.Waiting+info.Parked == 0 }, "nothing of it in line")
			}
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
		busy := wantBusy(t, w.failed(t))
		if !busy.Parked || busy.Holder != "far" || busy.Waited <= 0 || busy.InLine <= 0 {
			t.Errorf("%+v", busy)
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
		held := mustTry(t, y.plain())
		nothing := func() {
			t.Helper()
			redistest.Eventually(t, soon, func() bool { info := looksAt(t, y.plain()); return info.Waiting+info.Parked == 0 }, "nothing of it in line")
		}
		w, _ := waitsOrParks(t, y.note("job"))
		waiting(t, y.plain(), 1)
		w.cancel()
		if err := w.failed(t); wantBusy(t, err).Parked || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		nothing()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := insider.LockOrPark(ended, y.note("job"), parkNow)
		if wantBusy(t, err).Parked || !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended ctx: %v", err)
		}
		nothing()
		closing := newLocker(t, s.Client(t))
		w, _ = waitsOrParks(t, y.at(closing).note("job"))
		waiting(t, y.plain(), 1)
		redistest.Must(t, closing.Close())
		if err := w.failed(t); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		nothing()
		if _, err := insider.LockOrPark(t.Context(), y.at(closing).note("job"), parkNow); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
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

// Without a channel that says when to park it waits like Lock, also behind its own note; a short cooldown is waited for,
// a long one parks.
func TestPark_orWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		y := yardOf(t, newLocker(t, s.Client(t)), 1)
		le := mustTry(t, y.note("job"))
		w := beside(t, y.note("job"), func(ctx context.Context) (*lock.Lease, error) { return insider.LockOrPark(ctx, y.note("job"), nil) })
		waiting(t, y.plain(), 1)
		redistest.Must(t, le.Cooldown(t.Context(), 1200*time.Millisecond))
		mustUnlock(t, w.got(t))
		free(t, y.plain())

		redistest.Must(t, mustTry(t, y.plain()).Cooldown(t.Context(), 600*time.Millisecond))
		w, _ = waitsOrParks(t, y.note("job"))
		le = w.got(t)
		redistest.Must(t, le.Cooldown(t.Context(), time.Minute))
		w, _ = waitsOrParks(t, y.note("job"))
		busy := wantBusy(t, w.failed(t))
		if !busy.Parked || busy.Reason != lock.ReasonCooldown || busy.Holder != "" || busy.ExpiresIn < 50*time.Second {
			t.Errorf("%+v", busy)
		}
		y.has(t, 0, 0, 1)
	})
}

// A release calls the first that are parked, those that come take their turn, and the last one out leaves nothing.
func TestPark_callsInOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, limit := range []int{1, 2} {
			var turns []string
			var mu sync.Mutex
			var y yard
			done := make(chan struct{}, 10)
			y = yardOf(t, newCaller(t, s.Client(t), func(_ context.Context, _, note string) inside.Fate {
				go func() {
					defer func() { done <- struct{}{} }()
					le, err := y.note(note).TryLock(context.Background())
					if err != nil {
						return // called again
					}
					mu.Lock()
					if !slices.Contains(turns, note) {
						turns = append(turns, note)
					}
					mu.Unlock()
					_ = le.Unlock(context.Background())
				}()
				return inside.FateComing
			}), limit)
			var held []*lock.Lease
			for range limit {
				held = append(held, mustTry(t, y.plain()))
			}
			y.parks(t, "d", "a", "c", "b", "e")
			mustUnlock(t, held[0])
			redistest.Eventually(t, soon, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(turns) == 5
			}, "all had their turns")
			for _, le := range held[1:] {
				mustUnlock(t, le)
			}
			mu.Lock()
			if turns[0] != "d" {
				t.Errorf("turns %q, want d first", turns)
			}
			mu.Unlock()
			free(t, y.plain())
		}
	})
}

// No slot is kept for what is parked or called: newcomers and waiters take it, and what is called takes none from the limit.
func TestPark_noSlotIsReserved(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{fates: map[string]inside.Fate{"old": inside.FateComing, "older": inside.FateComing}}
		for _, limit := range []int{1, 2} {
			y := yardOf(t, newCaller(t, s.Client(t), c.call), limit)
			var held []*lock.Lease
			for range limit {
				held = append(held, mustTry(t, y.plain()))
			}
			y.parks(t, "old", "older")
			before := c.of("old")
			w := inLine(t, y.plain(), 1)
			mustUnlock(t, held[0])
			mustUnlock(t, w.got(t))
			takesAndUnlocks(t, y.plain()) // a newcomer
			c.called(t, "old", before+1)
			takesAndUnlocks(t, y.plain()) // another
			y.parksAndComes(t, "old", "older")
			for _, le := range held[1:] {
				mustUnlock(t, le)
			}
			free(t, y.plain())
		}
	})
}

// While no slot is free nobody is called: neither by a release that grants to a waiter, nor by one with a cooldown.
func TestPark_callsNobodyInVain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{}
		y := yardOf(t, newCaller(t, s.Client(t), c.call), 1)
		held := mustTry(t, y.plain())
		y.parks(t, "a", "b", "c")
		redistest.Must(t, held.Cooldown(t.Context(), time.Hour))
		if info := y.has(t, 0, 0, 3); info.Called != 0 {
			t.Errorf("after a cooldown: %+v", info)
		}
		if _, err := y.plain().BreakAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.called(t, "a", 1)
		redistest.Must(t, y.plain().Delete(t.Context()))
		free(t, y.plain())
	})
}

// What a call led to: work that is gone loses its place, work that cannot run goes to the end, and what is not known, or
// is on its way and does not come, is called again.
func TestPark_fates(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{fates: map[string]inside.Fate{"gone": inside.FateGone, "later": inside.FateLater, "unsure": inside.FateUnsure, "coming": inside.FateComing}}
		y := yardOf(t, newCaller(t, s.Client(t), c.call), 1)
		held := mustTry(t, y.plain())
		y.parks(t, "gone", "later", "unsure", "coming")
		mustUnlock(t, held)
		c.called(t, "gone", 1)
		c.called(t, "later", 1)
		c.called(t, "unsure", 3)
		redistest.Eventually(t, soon, func() bool { return looksAt(t, y.note("gone")).Place == -1 }, "gone is gone")
		redistest.Eventually(t, soon, func() bool {
			return looksAt(t, y.note("later")).Place > looksAt(t, y.note("coming")).Place
		}, "later is behind those that came after it")
		c.set("unsure", inside.FateGone)
		c.called(t, "coming", 2)
		c.set("coming", inside.FateGone)
		c.set("later", inside.FateGone)
		free(t, y.plain())
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

// Two processes that look at parked work have it run once; one that dies over a call does not keep the others from it.
func TestPark_oneCallAtATimeInAllProcesses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		began, goOn := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(began) })
		var under atomic.Bool
		y := yardOf(t, newCaller(t, s.Client(t), func(ctx context.Context, _, _ string) inside.Fate {
			under.Store(true)
			defer under.Store(false)
			begin()
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the call may go on for ever")
			}
			select {
			case <-goOn:
			case <-ctx.Done():
			}
			return inside.FateUnsure
		}), 1)
		held := mustTry(t, y.plain())
		y.parks(t, "job")
		mustUnlock(t, held)
		come(t, began, "the first call")
		called := make(chan struct{}, 100)
		other := y.at(newCaller(t, s.Client(t), func(context.Context, string, string) inside.Fate {
			if under.Load() {
				t.Error("a call beside the first")
			}
			called <- struct{}{}
			return inside.FateComing
		}))
		for range 3 {
			takesAndUnlocks(t, other.plain()) // which learns that job is called
		}
		close(goOn)
		come(t, called, "the second call")
		y.parksAndComes(t, "job")
		free(t, y.plain())
	})
}

// A call that was owed by a Locker that has no Caller, or that closed over it, is made by the one that parked.
func TestPark_aLostCallIsMade(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{fates: map[string]inside.Fate{"job": inside.FateComing}}
		parker := newCaller(t, s.Client(t), c.call)
		lost := make(chan struct{})
		for what, releaser := range map[string]*lock.Locker{
			"without a Caller": newLocker(t, s.Client(t)),
			"closed at once": newCaller(t, s.Client(t), func(ctx context.Context, _, _ string) inside.Fate {
				close(lost)
				<-ctx.Done() // the process ends before it has done anything
				return inside.FateUnsure
			}),
		} {
			y := yardOf(t, parker, 1)
			le := mustTry(t, y.at(releaser).plain())
			y.parks(t, "job")
			before := c.of("job")
			mustUnlock(t, le)
			if what == "closed at once" {
				come(t, lost, "the call that is lost")
			}
			redistest.Must(t, releaser.Close())
			c.called(t, "job", before+1)
			y.parksAndComes(t, "job")
			free(t, y.plain())
		}
	})
}

// Nobody releases: parked work is called at the end of a holder that died, of a cooldown, and of what Break took away.
func TestPark_theEndOfAHolderIsNoticed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		for what, hold := range map[string]func(y yard) (end func() error){
			"dead": func(y yard) func() error {
				mustTry(t, y.plain(lock.TTL(900*time.Millisecond), lock.NoRenew()))
				return nil
			},
			"cooldown": func(y yard) func() error {
				_ = mustTry(t, y.plain()).Cooldown(t.Context(), 900*time.Millisecond)
				return nil
			},
			"Break": func(y yard) func() error {
				le := mustTry(t, y.plain(lock.TTL(time.Hour)))
				return func() error { _, err := y.plain().Break(t.Context(), le.Token()); return err }
			},
			"BreakAll": func(y yard) func() error {
				mustTry(t, y.plain(lock.TTL(time.Hour)))
				return func() error { _, err := y.plain().BreakAll(t.Context()); return err }
			},
		} {
			got := make(chan *lock.Lease, 1)
			var job *lock.Lock
			l := newCaller(t, s.Client(t), func(ctx context.Context, _, _ string) inside.Fate {
				if le, err := insider.LockOrPark(ctx, job, parkNow); err == nil {
					got <- le
				}
				return inside.FateComing
			})
			y := yardOf(t, newLocker(t, s.Client(t)), 1)
			job = y.at(l).note("job")
			end := hold(y)
			mustPark(t, job)
			if end != nil {
				redistest.Must(t, end())
			}
			mustUnlock(t, come(t, got, "the lock after "+what))
			free(t, y.plain())
		}
	})
}

// Close ends the ctx of calls under way, waits for them, makes those that are queued, and nothing runs after it.
func TestPark_closeWaitsForCalls(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const locks = 20
		s = calmServer(t, s)
		var under, begun atomic.Int32
		var called sync.Map // keys with a call under way
		l := newCaller(t, s.Client(t), func(ctx context.Context, key, _ string) inside.Fate {
			if _, twice := called.LoadOrStore(key, true); twice {
				t.Errorf("two calls of %s at once", key)
			}
			begun.Add(1)
			if n := under.Add(1); n > 16 {
				t.Errorf("%d calls at once", n)
			}
			<-ctx.Done()
			under.Add(-1)
			called.Delete(key)
			return inside.FateComing
		})
		var held []*lock.Lease
		for range locks {
			y := yardOf(t, l, 1)
			held = append(held, mustTry(t, y.plain()))
			y.parks(t, "job")
		}
		for _, le := range held {
			mustUnlock(t, le)
		}
		redistest.Eventually(t, soon, func() bool { return begun.Load() >= 16 }, "16 calls at once")
		redistest.Must(t, l.Close())
		if n := begun.Load(); under.Load() != 0 || n != locks {
			t.Errorf("after Close %d calls are under way, and %d were begun", under.Load(), n)
		}
	})
}

func TestPark_leaksNothing(t *testing.T) {
	// Not parallel: it looks at all goroutines.
	s := redistest.StartMini(t)
	before := goleak.IgnoreCurrent()
	rdb := s.Client(t)
	c := &callbook{fates: map[string]inside.Fate{"b": inside.FateLater}}
	y := yardOf(t, newCaller(t, rdb, c.call), 1)
	held := mustTry(t, y.plain())
	y.parks(t, "a", "b")
	mustUnlock(t, held)
	c.called(t, "a", 2)
	redistest.Must(t, y.l.Close())
	redistest.Must(t, rdb.Close())
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("github.com/alicebob/miniredis/v2/server.(*Server).servePeer")); err != nil {
		t.Error(err)
	}
}

// The reply to a wish to park is lost, and go-redis sends it again: it ends as the first did, also for one who waits, and
// one that takes the lock. The reply to the release is lost, too: the calls are made all the same.
func TestPark_lostReplies(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{fates: map[string]inside.Fate{"job": inside.FateComing, "other": inside.FateComing}}
		p := redistest.NewProxy(t, s.Addr())
		y := yardOf(t, newLocker(t, s.Client(t)), 1)
		far := y.at(newCaller(t, p.Client(t), c.call))
		key := touches(y.plain())
		takesAndUnlocks(t, far.plain())
		held := mustTry(t, far.plain())
		p.DropReplyTo(key, 2)
		far.parks(t, "job")
		y.has(t, 1, 0, 1)
		p.DropReplyTo(key, 2)
		far.parks(t, "job") // anew
		y.has(t, 1, 0, 1)
		w, park := waitsOrParks(t, far.note("other"))
		waiting(t, y.plain(), 1)
		p.DropReplyTo(key, 1)
		park()
		if busy := wantBusy(t, w.failed(t)); !busy.Parked {
			t.Errorf("%+v", busy)
		}
		if line := y.line(t); !slices.Equal(line, []string{"job", "other"}) {
			t.Errorf("in line: %q", line)
		}
		p.DropReplyTo(key, 1)
		mustUnlock(t, held)
		c.called(t, "job", 1)
		p.DropReplyTo(key, 1)
		le, err := insider.LockOrPark(t.Context(), far.note("job"), parkNow)
		redistest.Must(t, err)
		y.has(t, 1, 0, 1)
		mustUnlock(t, le)
		far.parksAndComes(t, "other")
		free(t, y.plain())
	})
}

// A wish to park of which nothing was heard: what it may leave is a place, and the first call of it ends that.
func TestPark_unheard(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		c := &callbook{fates: map[string]inside.Fate{"job": inside.FateGone}}
		p := redistest.NewProxy(t, s.Addr())
		y := yardOf(t, newCaller(t, s.Client(t), c.call), 1)
		held := mustTry(t, y.plain())
		far := y.at(newLocker(t, p.Client(t, impatient)))
		mustBeBusy(t, far.plain())
		p.DropReplyTo(touches(y.plain()), 1)
		_, err := insider.LockOrPark(t.Context(), far.note("job"), parkNow)
		if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
			t.Fatalf("%v, want ErrBackend", err)
		}
		mustUnlock(t, held)
		free(t, y.plain())
	})
}

// Redis is away when a fate is to be told, and when a line is to be looked after.
func TestPark_outlivesAnOutage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		var down atomic.Bool
		var failed, calls atomic.Int32
		var hook redistest.FailHook
		rdb := s.Client(t)
		rdb.AddHook(&hook)
		l := newCaller(t, rdb, func(context.Context, string, string) inside.Fate {
			if calls.Add(1) == 1 {
				down.Store(true) // the fate is told in vain, and then looks fail
			}
			return inside.FateGone
		})
		y := yardOf(t, l, 1)
		hook.Before(func(cmd redis.Cmder) error {
			if down.Load() && slices.Contains(cmd.Args(), any(y.plain().Key())) {
				failed.Add(1)
				return errors.New("the network is down")
			}
			return nil
		})
		held := mustTry(t, y.plain())
		y.parks(t, "job")
		mustUnlock(t, held)
		redistest.Eventually(t, soon, func() bool { return failed.Load() >= 3 }, "the fate and two looks sent")
		down.Store(false)
		free(t, y.plain())
		if n := calls.Load(); n < 2 {
			t.Errorf("%d calls; a fate that was told in vain was believed", n)
		}
	})
}

func TestPark_throughScriptFlush(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	c := &callbook{fates: map[string]inside.Fate{}}
	y := yardOf(t, newCaller(t, rdb, c.call), 1)
	held := mustTry(t, y.plain())
	flush := func() { redistest.Must(t, rdb.ScriptFlush(t.Context()).Err()) }
	flush()
	y.parks(t, "job")
	flush()
	mustUnlock(t, held)
	for i := range 4 {
		flush()
		c.called(t, "job", i+1)
	}
	c.set("job", inside.FateGone)
	flush()
	free(t, y.plain())
}

// Redis loses everything: what parks afterwards is looked after as before.
func TestPark_throughRestart(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	c := &callbook{fates: map[string]inside.Fate{"a": inside.FateComing}}
	y := yardOf(t, newCaller(t, s.Client(t), c.call), 1, lock.TTL(time.Hour))
	mustTry(t, y.plain())
	y.parks(t, "a", "b")
	s.Restart(t)
	var held *lock.Lease
	redistest.Eventually(t, soon, func() (ok bool) {
		le, err := y.plain().TryLock(t.Context())
		held = le
		return err == nil
	}, "the lock is free")
	before := c.of("a")
	y.parks(t, "a")
	mustUnlock(t, held)
	c.called(t, "a", before+1)
	y.parksAndComes(t, "a")
	free(t, y.plain())
}

// A call is not made while its note is not there to be called: nor is a Locker without a Caller troubled by what others park.
func TestPark_withoutACaller(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		y := yardOf(t, newLocker(t, s.Client(t)), 1)
		held := mustTry(t, y.plain())
		y.parks(t, "n")
		if free, err := held.Release(t.Context()); err != nil || free != 1 {
			t.Errorf("%d free, %v", free, err)
		}
		y.has(t, 0, 0, 1)
		y.parksAndComes(t, "n")
		free(t, y.plain())
	})
}

// What operators see of a lock with parked and called work, and what a sweep, Break and Delete do to it.
func TestPark_operators(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		c := &callbook{fates: map[string]inside.Fate{"a": inside.FateComing}}
		l := newCaller(t, s.Client(t), c.call, ownPrefix(t))
		y := yardOf(t, l, 1)
		held := mustTry(t, y.plain())
		y.parks(t, "a", "b")
		mustUnlock(t, held)
		c.called(t, "a", 1)
		shows := func(what string, held int) {
			t.Helper()
			listed := 0
			for info, err := range insider.List(t.Context(), l) {
				listed++
				if err != nil || info.Key != y.plain().Key() || info.Held != held || info.Parked+info.Called != 2 || info.Called == 0 || info.Waiting != 0 {
					t.Errorf("%s: listed as %+v, %v", what, info, err)
				}
			}
			if listed != 1 {
				t.Errorf("%s: %d listed", what, listed)
			}
			for note, place := range map[string]int{"a": 0, "b": 1, "c": -1, "": -1} {
				if info := looksAt(t, y.note(note)); info.Held != held || info.Place != place {
					t.Errorf("%s: %q is shown as %+v", what, note, info)
				}
			}
			if line := y.places(t); len(line) != 2 || !line[0].Called || line[0].Note != "a" || !line[1].Parked || line[1].Note != "b" {
				t.Errorf("%s: %+v", what, line)
			}
			if n, err := y.plain().Waiting(t.Context()); n != 0 || err != nil {
				t.Errorf("%s: waiting %d, %v", what, n, err)
			}
			if n, err := y.plain().Available(t.Context()); n != 1-held || err != nil {
				t.Errorf("%s: available %d, %v", what, n, err)
			}
		}
		shows("free", 0)
		for range 2 {
			if n, err := insider.Sweep(t.Context(), l); n != 0 || err != nil {
				t.Errorf("Sweep: %d, %v", n, err)
			}
		}
		shows("swept", 0)
		mustTry(t, y.plain())
		shows("held", 1)
		if n, err := y.plain().BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
		shows("broken", 0)
		redistest.Must(t, y.plain().Delete(t.Context()))
		free(t, y.plain())
	})
}

// However many hold a lock, an ask that finds it busy answers, and shows the asker's own earlier attempt where it is among
// the first.
func TestPark_behindManyHolders(t *testing.T) {
	t.Parallel()
	s := calmServer(t, redistest.Mini(t))
	y := yardOf(t, newLocker(t, s.Client(t, func(o *redis.UniversalOptions) { o.PoolSize = 20 })), 60, lock.TTL(time.Hour))
	for i := range 60 {
		mustTry(t, y.note(fmt.Sprint("note-", i)))
	}
	for _, note := range []string{"note-0", "note-59"} {
		if busy := mustBeBusy(t, y.note(note)); busy.Note != note {
			t.Errorf("%s: the holder shown is %s", note, busy.Note)
		}
		if busy := mustBeBusy(t, y.note(note, insider.OnePerNote())); busy.Note != note {
			t.Errorf("%s, with OnePerNote: the holder shown is %s", note, busy.Note)
		}
	}
}
