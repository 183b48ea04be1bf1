package lock

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// nearly is how soon what is looked after is done, on a machine with nothing
// else to do: twice checkEvery. Tests that measure it add the machine's own lateness.
const nearly = 2*checkEvery + 500*time.Millisecond

// A call that is lost with its Locker is made by the one that parked.
func TestALostCallIsMadeByWhoParked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := answers(map[string]inside.Fate{"job": inside.FateComing})
		parker := newLocker(t, s.Client(t), calls(c.call))
		lost := make(chan struct{})
		for what, releaser := range map[string]*Locker{
			"without a Caller": newLocker(t, s.Client(t)),
			"closed at once": newLocker(t, s.Client(t), calls(func(ctx context.Context, _, _ string) inside.Fate {
				close(lost)
				<-ctx.Done() // the process ends before it has done anything
				return inside.FateUnsure
			})),
		} {
			m := parker.Mutex(redistest.Name(t))
			le := mustTry(t, handle(releaser, m))
			mustPark(t, noted(m, "job"))
			before := len(c.of("job"))
			mustUnlock(t, le)
			if what == "closed at once" {
				come(t, lost, "the call that is lost")
			}
			if err := releaser.Close(); err != nil {
				t.Fatal(err)
			}
			began, late := time.Now(), watchLateness(t, s)
			c.called(t, "job", before+1)
			if d := time.Since(began); d > nearly+late() {
				t.Errorf("%s: called after %v", what, d)
			}
			mustUnlock(t, mustTry(t, noted(m, "job")))
			free(t, m, soon)
		}
	})
}

// A look is set for right after the first holder's end, not for when one would
// come by chance, and travels with no earlier one.
func TestALookForTheEndOfAHolder(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
	m := l.Mutex(redistest.Name(t))
	p := l.parking
	for _, ms := range []int64{0, 1, 40, 249} {
		began := time.Now()
		p.handleCalls(m, []any{int64(0), int64(1), ms})
		took := time.Since(began)
		p.mu.Lock()
		n := p.lines[m.Key()]
		end := time.Duration(ms+1) * time.Millisecond
		if d := n.checkAt.Sub(began); !n.atDeadline || d < end || d > end+took {
			t.Errorf("a look in %v for a holder that ends in %d ms; exact: %v", d, ms, n.atDeadline)
		}
		if at := p.alarm.pending(); at.IsZero() && time.Now().Before(n.checkAt) || at.After(n.checkAt) { // zero: it has rung
			t.Errorf("the alarm is set for %v", at)
		}
		n.checkAt, n.atDeadline = began.Add(time.Hour), false // as with nothing due
		p.mu.Unlock()
	}
	for _, ms := range []int64{-1, time.Hour.Milliseconds()} {
		p.mu.Lock()
		n := p.lines[m.Key()]
		n.checkAt, n.atDeadline = time.Time{}, false
		p.mu.Unlock()
		began := time.Now()
		p.handleCalls(m, []any{int64(0), int64(1), ms})
		took := time.Since(began)
		p.mu.Lock()
		if d := n.checkAt.Sub(began); n.atDeadline || d < checkEvery || d > 2*checkEvery+took {
			t.Errorf("a look in %v for a holder that ends in %d ms; exact: %v", d, ms, n.atDeadline)
		}
		p.mu.Unlock()
	}
	// Due soon, but exact: not with what is due now.
	p.mu.Lock()
	n := p.lines[m.Key()]
	soonDue := time.Now().Add(checkTogether / 2)
	n.checkAt, n.atDeadline = soonDue, true
	p.mu.Unlock()
	p.startChecks()
	p.mu.Lock()
	if left := n.checking; left && time.Now().Before(soonDue) {
		t.Error("it was looked after too early")
	}
	p.mu.Unlock()
}

// Nobody releases: a holder that died, and a cooldown.
func TestTheEndOfAHolderIsNoticed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		for what, hold := range map[string]func(m *Lock){
			"dead":     func(m *Lock) { mustTry(t, handle(m.locker, m, TTL(900*time.Millisecond), NoRenew())) },
			"cooldown": func(m *Lock) { _ = mustTry(t, m).Cooldown(t.Context(), 900*time.Millisecond) },
		} {
			got := make(chan *Lease, 1)
			var job *Lock
			l := newLocker(t, s.Client(t), calls(func(ctx context.Context, _, _ string) inside.Fate {
				if le, err := job.lockOrPark(ctx, closedYield); err == nil {
					got <- le
				}
				return inside.FateComing
			}))
			m := l.Mutex(redistest.Name(t))
			job = noted(m, "job")
			hold(m)
			mustPark(t, job)
			end, late := firstDeadline(t, m), watchLateness(t, s)
			le := come(t, got, "the lock")
			t.Logf("%s: taken %v after its end", what, le.takenAt.Sub(end))
			if d := le.takenAt.Sub(end); d < 0 || d > nearly+late() {
				t.Errorf("%s: taken %v after its end", what, d)
			}
			mustUnlock(t, le)
			free(t, m, 0)
		}
	})
}

// firstDeadline is the end of the first holder, or when the gate opens, by Redis' clock.
func firstDeadline(t testing.TB, m *Lock) time.Time {
	t.Helper()
	if _, opens, ok := gateOf(t, m); ok {
		return opens
	}
	for _, score := range stored(t, m) {
		if score > 1e11 && score < 1e14 {
			return time.UnixMilli(int64(score))
		}
	}
	t.Fatalf("nobody holds it; %s", dump(m))
	return time.Time{}
}

// Many lines are looked after together, each less often.
func TestManyLines(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	scripts := newTap(rdb)
	l := newLocker(t, rdb, calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
	name := redistest.Name(t)
	const lines = 600
	for i := range lines {
		m := l.Mutex(fmt.Sprint(name, i), TTL(time.Hour))
		if _, err := m.TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if busy := wantBusy(t, second(noted(m, "job").lockOrPark(t.Context(), closedYield))); !busy.Parked {
			t.Fatalf("%+v", busy)
		}
	}
	every := checkEvery * (1 + lines/maxChecks)
	scripts.reset()
	began := time.Now()
	redistest.Eventually(t, soon, func() bool { return scripts.count(callScript) >= 3*lines }, "each line looked after three times")
	took, sizes := time.Since(began), scripts.sizes(callScript)
	if least := 2 * every; took < least {
		t.Errorf("three looks within %v, want at least %v", took, least)
	}
	if most := int(took/checkTogether) + 2; len(sizes) > most {
		t.Errorf("%d looks at lines took %d pipelines within %v, want at most %d", 3*lines, len(sizes), took, most)
	}
	if n := slices.Max(sizes); n > exchange.MaxBatch {
		t.Errorf("a pipeline of %d", n)
	}
}

// What was learned of a lock is forgotten a minute after its last use, whether
// anything was parked on it or not; the clock is moved instead of waiting.
func TestLinesAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
		p := l.parking
		waited, parked, busy := l.Mutex(redistest.Name(t)), l.Mutex(redistest.Name(t)), l.Mutex(redistest.Name(t))
		// One that only waited, one that has parked, one that is parked on still.
		held := mustTry(t, waited)
		a, _ := orParkBeside(t, noted(waited, "job"))
		waiting(t, waited, 1)
		mustUnlock(t, held)
		mustUnlock(t, a.got(t))
		if p.alarm.pending().IsZero() {
			t.Fatal("nothing will ever forget a line on which nothing was parked")
		}
		for _, m := range []*Lock{parked, busy} {
			mustTry(t, handle(l, m, TTL(time.Hour)))
			mustPark(t, noted(m, "job"))
		}
		if waited.averageHeld() <= 0 || parked.averageHeld() != 0 {
			t.Errorf("held for %v and %v on average", waited.averageHeld(), parked.averageHeld())
		}
		if err := parked.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, soon, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return !p.lines[parked.Key()].parked
		}, "a look that finds nothing")
		p.mu.Lock()
		for _, n := range p.lines {
			n.usedAt = n.usedAt.Add(-forgetAfter - time.Second)
		}
		p.mu.Unlock()
		p.startChecks()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.lines) != 1 || p.lines[busy.Key()] == nil || p.parkedN != 1 || p.lineCount.Load() != 1 {
			t.Errorf("%d lines are known, %d parked on, %d counted; want %s alone", len(p.lines), p.parkedN, p.lineCount.Load(), busy.Key())
		}
	})
}

// pending is when a is set for.
func (a *alarm) pending() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// Close waits for calls under way, whose ctx ends, makes none of those queued,
// and nothing runs after it.
func TestCloseAndCalls(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		rdb := s.Client(t)
		scripts := newTap(rdb)
		var under, ended, begun atomic.Int32
		var once atomic.Bool
		l := newLocker(t, rdb, calls(func(ctx context.Context, _, _ string) inside.Fate {
			begun.Add(1)
			under.Add(1)
			<-ctx.Done()
			if once.CompareAndSwap(false, true) {
				time.AfterFunc(50*time.Millisecond, func() { ended.Add(1) })
				redistest.Eventually(t, soon, func() bool { return ended.Load() > 0 }, "a call that takes its time")
			}
			under.Add(-1)
			return inside.FateComing
		}))
		m := l.Mutex(redistest.Name(t))
		far := handle(newLocker(t, s.Client(t)), m)
		held := mustTry(t, m)
		for i := range 40 {
			mustPark(t, noted(m, fmt.Sprint(i)))
		}
		l.parking.mu.Lock()
		l.parking.lines[m.Key()].inbound = 40
		l.parking.mu.Unlock()
		mustUnlock(t, held)
		redistest.Eventually(t, soon, func() bool { return begun.Load() == maxCallers }, "%d calls at once", maxCallers)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// What the release owed is called, though Close has begun.
		if under.Load() != 0 || begun.Load() != 40 {
			t.Errorf("after Close %d calls are under way, and %d were begun", under.Load(), begun.Load())
		}
		sent := scripts.count(callScript)
		l.parking.startChecks() // as the alarm would
		if scripts.count(callScript) != sent || begun.Load() != 40 {
			t.Error("it looked after a line when it was closed")
		}
		if err := far.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestParkingLeaksNothing(t *testing.T) {
	// Not parallel: it looks at all goroutines.
	s := redistest.StartMini(t)
	before := goleak.IgnoreCurrent()
	rdb := s.Client(t)
	c := answers(map[string]inside.Fate{"a": inside.FateUnsure, "b": inside.FateLater})
	l := newLocker(t, rdb, calls(c.call))
	m := l.Mutex(redistest.Name(t))
	held := mustTry(t, m)
	parkAll(t, m, "a", "b")
	mustUnlock(t, held)
	c.called(t, "a", 2)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Close(); err != nil {
		t.Fatal(err)
	}
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("github.com/alicebob/miniredis/v2/server.(*Server).servePeer")); err != nil {
		t.Error(err)
	}
}
