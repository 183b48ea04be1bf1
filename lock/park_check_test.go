package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// nearly is how soon what is looked after is done, on a machine with nothing
// else to do: twice parking.CheckEvery. Tests that measure it add the machine's own lateness.
const nearly = 2*parking.CheckEvery + 500*time.Millisecond

// A call that is lost with its Locker is made by the one that parked.
func TestALostCallIsMadeByWhoParked(t *testing.T) {
	redistest.RealTime(t)
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
			redistest.Must(t, releaser.Close())
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

// Nobody releases: a holder that died, and a cooldown.
func TestTheEndOfAHolderIsNoticed(t *testing.T) {
	redistest.RealTime(t)
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
	redistest.Long(t)
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
	every := parking.CheckEvery * (1 + lines/parking.MaxChecks)
	scripts.reset()
	began := time.Now()
	redistest.Eventually(t, soon, func() bool { return scripts.count(wire.CallScript) >= 3*lines }, "each line looked after three times")
	took, sizes := time.Since(began), scripts.sizes(wire.CallScript)
	if least := 2 * every; took < least {
		t.Errorf("three looks within %v, want at least %v", took, least)
	}
	if most := int(took/parking.CheckTogether) + 2; len(sizes) > most {
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
		if p.Alarm.Pending().IsZero() {
			t.Fatal("nothing will ever forget a line on which nothing was parked")
		}
		for _, m := range []*Lock{parked, busy} {
			mustTry(t, handle(l, m, TTL(time.Hour)))
			mustPark(t, noted(m, "job"))
		}
		if waited.averageHeld() <= 0 || parked.averageHeld() != 0 {
			t.Errorf("held for %v and %v on average", waited.averageHeld(), parked.averageHeld())
		}
		redistest.Must(t, parked.Delete(t.Context()))
		redistest.Eventually(t, soon, func() bool {
			parkedOn := false
			p.View(func(lines map[string]*parking.Line) { parkedOn = lines[parked.Key()].Parked })
			return !parkedOn
		}, "a look that finds nothing")
		p.View(func(lines map[string]*parking.Line) {
			for _, n := range lines {
				n.UsedAt = n.UsedAt.Add(-parking.ForgetAfter - time.Second)
			}
		})
		p.StartChecks()
		p.View(func(lines map[string]*parking.Line) {
			if len(lines) != 1 || lines[busy.Key()] == nil || !lines[busy.Key()].Parked || p.LineCount.Load() != 1 {
				t.Errorf("%d lines are known, %d counted; want %s alone, parked on", len(lines), p.LineCount.Load(), busy.Key())
			}
		})
	})
}

// Close waits for calls under way, whose ctx ends, makes those that are queued, and nothing runs
// after it. At most parking.MaxCallers calls are made at once, and of one line one after the other.
func TestCloseAndCalls(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lines, notes = parking.MaxCallers + 4, 2
		s = quiet(t, s)
		rdb := s.Client(t)
		scripts := newTap(rdb)
		var under, ended, begun atomic.Int32
		var once atomic.Bool
		var called sync.Map // keys with a call under way
		l := newLocker(t, rdb, calls(func(ctx context.Context, key, _ string) inside.Fate {
			if _, twice := called.LoadOrStore(key, true); twice {
				t.Errorf("two calls of %s at once", key)
			}
			begun.Add(1)
			under.Add(1)
			<-ctx.Done()
			if once.CompareAndSwap(false, true) {
				time.AfterFunc(50*time.Millisecond, func() { ended.Add(1) })
				redistest.Eventually(t, soon, func() bool { return ended.Load() > 0 }, "a call that takes its time")
			}
			under.Add(-1)
			called.Delete(key)
			return inside.FateComing
		}))
		var held []*Lease
		for i := range lines {
			m := l.Mutex(fmt.Sprint(redistest.Name(t), i))
			held = append(held, mustTry(t, m))
			for j := range notes {
				mustPark(t, noted(m, fmt.Sprint(j)))
			}
			l.parking.View(func(lines map[string]*parking.Line) { lines[m.Key()].Inbound = notes })
		}
		for _, le := range held {
			mustUnlock(t, le)
		}
		redistest.Eventually(t, soon, func() bool { return begun.Load() == parking.MaxCallers }, "%d calls at once", parking.MaxCallers)
		redistest.Must(t, l.Close())
		// What the releases owed is called, though Close has begun.
		if under.Load() != 0 || begun.Load() != lines*notes {
			t.Errorf("after Close %d calls are under way, and %d were begun", under.Load(), begun.Load())
		}
		sent := scripts.count(wire.CallScript)
		l.parking.StartChecks() // as the alarm would
		if scripts.count(wire.CallScript) != sent || begun.Load() != lines*notes {
			t.Error("it looked after a line when it was closed")
		}
		far := newLocker(t, s.Client(t))
		for _, le := range held {
			redistest.Must(t, handle(far, le.lock).Delete(t.Context()))
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
	redistest.Must(t, l.Close())
	redistest.Must(t, rdb.Close())
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("github.com/alicebob/miniredis/v2/server.(*Server).servePeer")); err != nil {
		t.Error(err)
	}
}
