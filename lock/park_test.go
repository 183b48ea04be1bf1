package lock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// closedYield has whoever waits with it park at once.
var closedYield = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// noted is m with that note, on the Locker of m.
func noted(m *Lock, note string) *Lock { return handle(m.locker, m, Note(note)) }

// mustPark parks m's note at once.
func mustPark(t testing.TB, m *Lock) *BusyError {
	t.Helper()
	le, err := m.lockOrPark(t.Context(), closedYield)
	if le != nil || err == nil {
		t.Fatalf("LockOrPark took the lock; want parked; %s", dump(m))
	}
	audit(t, m)
	busy := wantBusy(t, err)
	if !busy.Parked {
		t.Fatalf("not parked: %v; %s", err, dump(m))
	}
	return busy
}

// orParkBeside calls LockOrPark on a goroutine, and gives what makes it yield.
func orParkBeside(t testing.TB, m *Lock) (a *attempt, yield func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	a = &attempt{lock: m, cancel: cancel, done: make(chan struct{})}
	y := make(chan struct{})
	go func() {
		defer close(a.done)
		a.lease, a.err = m.lockOrPark(ctx, y)
	}()
	t.Cleanup(func() { cancel(); <-a.done })
	return a, sync.OnceFunc(func() { close(y) })
}

// lineTicket is the ticket of the one goroutine in line.
func lineTicket(t testing.TB, m *Lock) float64 {
	t.Helper()
	for member, score := range stored(t, m) {
		if strings.HasPrefix(member, "e:") {
			return score - 2e15
		}
	}
	t.Fatalf("nobody in line; %s", dump(m))
	return 0
}

// away is the ticket of m's note, and whether it is called; ok is false when it
// is not parked at all.
func away(t testing.TB, m *Lock) (ticket float64, called, ok bool) {
	t.Helper()
	score, ok := stored(t, m)["p:"+m.note]
	switch {
	case ok && score >= 6e15:
		return score - 6e15, true, true
	case ok && (score < 4e15 || score >= 8e15):
		t.Fatalf("p:%s has the score %.0f", m.note, score)
	}
	return score - 4e15, false, ok
}

// nothingOf wants no member of m's note but a holder, and that soon: who gives up
// while an ask is on its way leaves when that has its answer.
func nothingOf(t testing.TB, m *Lock) {
	t.Helper()
	left := ""
	redistest.Eventually(t, soon, func() bool {
		left = ""
		for member := range stored(t, m) {
			if member == "p:"+m.note || member == "l:"+m.note || strings.HasPrefix(member, "e:") || strings.HasPrefix(member, "d:") {
				left = member
			}
		}
		return left == ""
	}, "nothing of note %q: %v", m.note, text(func() string { return left + "; " + dump(m) }))
}

// text is written when it is printed.
type text func() string

func (f text) String() string { return f() }

func TestLockOrParkTakesAFreeLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Note("job"))
		for _, yield := range []chan struct{}{nil, closedYield, make(chan struct{})} {
			le, err := m.lockOrPark(t.Context(), yield)
			if err != nil || !le.Held() || le.parked != 0 {
				t.Fatalf("LockOrPark of a free lock: %v, parked for %v", err, le.parked)
			}
			if _, ok := holds(t, le); !ok {
				t.Errorf("stored: %v", stored(t, m))
			}
			mustUnlock(t, le)
			free(t, m, 0)
		}
	})
}

func TestLockOrParkParksAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), owner("me"))
		m := l.Mutex(redistest.Name(t), TTL(5*time.Second))
		held := mustTry(t, noted(m, "first"))
		for i, note := range []string{"a", "b", "c"} {
			before := serverNow(t, m)
			busy := mustPark(t, noted(m, note))
			after := serverNow(t, m)
			if busy.Place != i || busy.Holder != "me" || busy.Note != "first" || busy.Reason != ReasonHeld ||
				busy.ExpiresIn <= 0 || busy.ExpiresIn > 5*time.Second+2*time.Millisecond+after.Sub(before) || busy.Name != m.name {
				t.Errorf("%s: %+v, want place %d behind first", note, busy, i)
			}
			if !strings.Contains(busy.Error(), "parked at place") || !errors.Is(busy, ErrBusy) {
				t.Errorf("%v", busy)
			}
			ticket, called, ok := away(t, noted(m, note))
			if at := time.UnixMicro(int64(ticket) + 16e14); !ok || called || at.Before(before) || at.After(after) {
				t.Errorf("%s: ticket of %v, called %v, parked %v; between %v and %v", note, at, called, ok, before, after)
			}
			if life := raw(m).PTTL(t.Context(), m.Key()).Val(); life < 15*time.Minute || life > 30*time.Minute {
				t.Errorf("with %s parked the key lives for %v", note, life)
			}
		}
		if n := band(t, m, "e:") + band(t, m, "d:") + band(t, m, "l:"); n != 0 {
			t.Errorf("%d members of a line; %s", n, dump(m))
		}
		mustUnlock(t, held)
	})
}

// A key that is to live longer for another reason does not live shorter for
// what is parked.
func TestParkingShortensNoTTL(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Hour))
		mustTry(t, m)
		mustPark(t, noted(m, "a"))
		if life := raw(m).PTTL(t.Context(), m.Key()).Val(); life < 59*time.Minute {
			t.Errorf("the key lives for %v", life)
		}
	})
}

func TestWaiterThatYieldsKeepsItsTicket(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		rdb := s.Client(t)
		scripts := newTap(rdb)
		l := newLocker(t, rdb, owner("near"))
		m := newLocker(t, s.Client(t), owner("far")).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		a, yield := orParkBeside(t, handle(l, m, Note("job")))
		waiting(t, m, 1)
		calm(t, l, 1)
		ticket := lineTicket(t, m)
		younger := inLine(t, m, 2)
		scripts.reset()
		yield()
		busy := wantBusy(t, a.failed(t))
		if !busy.Parked || busy.Holder != "far" || busy.Place != 1 || busy.Waited <= 0 {
			t.Errorf("%+v", busy)
		}
		got, called, ok := away(t, a.lock)
		if got != ticket || called || !ok {
			t.Errorf("parked %v, called %v, with the ticket %.0f, before %.0f", ok, called, got, ticket)
		}
		if n := band(t, m, "e:") + band(t, m, "d:"); n != 2 {
			t.Errorf("%d members of the line, want those of one; %s", n, dump(m))
		}
		if asks, others := scripts.count(wire.AskScript), scripts.count(wire.ReleaseScript)+scripts.count(wire.CallScript); asks != 1 || others != 0 {
			t.Errorf("it took %d asks and %d other scripts to park", asks, others)
		}
		mustUnlock(t, held)
		mustUnlock(t, younger.got(t))
	})
}

// What was granted before the wish to park reached Redis gets its lease.
func TestYieldThatCrossesAGrant(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		a, yield := orParkBeside(t, handle(far, m, Note("job")))
		waiting(t, m, 1)
		calm(t, far, 1)
		p.DropMessages(true)
		asks := p.Hold(isScript(wire.AskScript, m), 1)
		yield()
		redistest.Eventually(t, soon, func() bool { return asks.Count() == 1 }, "an ask on its way")
		mustUnlock(t, held)
		asks.Release()
		le := a.got(t)
		nothingOf(t, a.lock)
		mustUnlock(t, le)
		free(t, m, soon)
	})
}

func TestLockOrParkUntilCtxEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		a, _ := orParkBeside(t, noted(m, "job"))
		waiting(t, m, 1)
		a.cancel()
		err := a.failed(t)
		if busy := wantBusy(t, err); busy.Parked || !errors.Is(err, context.Canceled) {
			t.Errorf("%+v", busy)
		}
		nothingOf(t, a.lock)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = noted(m, "job").lockOrPark(ended, closedYield)
		if busy := wantBusy(t, err); busy.Parked || !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended ctx: %+v", busy)
		}
		nothingOf(t, a.lock)
		mustUnlock(t, held)
		free(t, m, 0)
	})
}

// A ctx that ends while the wish to park is on its way: the answer says what
// became of it, where it comes in time.
func TestCtxEndsWhileItParks(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		a, yield := orParkBeside(t, handle(far, m, Note("job")))
		waiting(t, m, 1)
		calm(t, far, 1)
		asks := p.Hold(isScript(wire.AskScript, m), 1)
		yield()
		redistest.Eventually(t, soon, func() bool { return asks.Count() == 1 }, "an ask on its way")
		a.cancel()
		redistest.Eventually(t, soon, func() bool {
			far.line.mu.Lock()
			defer far.line.mu.Unlock()
			return len(far.line.waiters) == 0
		}, "the waiter gone")
		asks.Release()
		err := a.failed(t)
		busy := wantBusy(t, err)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%+v", busy)
		}
		// An ask that comes after the error leaves the line when it is answered.
		redistest.Eventually(t, soon, func() bool {
			_, _, parked := away(t, a.lock)
			return parked == busy.Parked
		}, "it is parked if the error says so: %+v", busy)
		mustUnlock(t, held)
	})
}

func TestLockOrParkEndsWithItsLocker(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		l := newLocker(t, s.Client(t))
		a, yield := orParkBeside(t, handle(l, m, Note("job")))
		waiting(t, m, 1)
		redistest.Must(t, l.Close())
		if err := a.failed(t); !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
		nothingOf(t, a.lock)
		yield()
		if _, err := a.lock.lockOrPark(t.Context(), closedYield); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
		mustUnlock(t, held)
		free(t, m, 0)
	})
}

func TestLockOrParkRefuses(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	name := redistest.Name(t)
	for want, m := range map[string]*Lock{
		"needs a Note":      l.Mutex(name),
		"the name is empty": l.Mutex("", Note("x")),
	} {
		for _, yield := range []chan struct{}{nil, closedYield} {
			if _, err := m.lockOrPark(t.Context(), yield); err == nil || !strings.Contains(err.Error(), want) ||
				!strings.HasPrefix(err.Error(), "lock: ") {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

// A nil yield: it waits like Lock, also behind a cooldown and behind its own note.
func TestLockOrParkWithoutYieldIsLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Note("job"))
		le := mustTry(t, m)
		done := make(chan *Lease, 1)
		go func() {
			defer close(done)
			next, err := m.lockOrPark(context.Background(), nil)
			if err != nil {
				t.Errorf("LockOrPark: %v", err)
			}
			done <- next
		}()
		waiting(t, m, 1)
		redistest.Must(t, le.Cooldown(t.Context(), 1200*time.Millisecond))
		next := come(t, done, "the lock after a cooldown")
		nothingOf(t, m)
		mustUnlock(t, next)
		free(t, m, 0)
	})
}

// Of a cooldown: a long one parks by itself, a short one is waited for.
func TestCooldownParks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), time.Minute))
		a, _ := orParkBeside(t, noted(m, "job"))
		busy := wantBusy(t, a.failed(t))
		if !busy.Parked || busy.Reason != ReasonCooldown || busy.Holder != "" || busy.ExpiresIn < 50*time.Second {
			t.Errorf("%+v", busy)
		}
		if _, _, ok := away(t, a.lock); !ok {
			t.Errorf("not parked; %s", dump(m))
		}
		redistest.Must(t, m.Delete(t.Context()))
		redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), 600*time.Millisecond))
		a, _ = orParkBeside(t, noted(m, "job"))
		mustUnlock(t, a.got(t))
		free(t, m, 0)
	})
}
