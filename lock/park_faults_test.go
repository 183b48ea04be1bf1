package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// The reply to a wish to park is lost, and go-redis sends it again: it ends as
// the first did.
func TestResentPark(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		job := handle(far, m, Note("job"))
		warm(t, m)
		held := mustTry(t, m)
		asked := serverNow(t, m)
		p.DropReplyTo(isScript(wire.AskScript, m), 1)
		mustPark(t, job)
		first, called, _ := away(t, job)
		if called || time.UnixMicro(int64(first)+16e14).Before(asked) || band(t, m, "p:") != 1 {
			t.Errorf("stored: %s", dump(m))
		}
		// Anew, and called in between: it keeps its ticket.
		looksAfter(t, m, 1, time.Hour)
		p.DropReplyTo(isScript(wire.AskScript, m), 2)
		mustPark(t, job)
		if ticket, called, ok := away(t, job); !ok || called || ticket != first {
			t.Errorf("parked %v, called %v, ticket %.0f, at first %.0f", ok, called, ticket, first)
		}
		// A waiter's.
		other := handle(far, m, Note("other"))
		a, yield := orParkBeside(t, other)
		waiting(t, m, 1)
		calm(t, far, 1)
		ticket := lineTicket(t, m)
		p.DropReplyTo(isScript(wire.AskScript, m), 1)
		yield()
		if busy := wantBusy(t, a.failed(t)); !busy.Parked {
			t.Errorf("%+v", busy)
		}
		if got, _, ok := away(t, other); !ok || got != ticket {
			t.Errorf("parked %v, ticket %.0f, in line %.0f", ok, got, ticket)
		}
		// One that takes the lock.
		mustUnlock(t, held)
		p.DropReplyTo(isScript(wire.AskScript, m), 1)
		le, err := job.lockOrPark(t.Context(), closedYield)
		redistest.Must(t, err)
		nothingOf(t, job)
		mustUnlock(t, le)
		mustUnlock(t, mustTry(t, other))
		free(t, m, 0)
	})
}

// A wish to park of which nothing was heard: what it may leave is a place, and
// the first call of it ends that.
func TestAbandonedPark(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		c := answers(map[string]inside.Fate{"job": inside.FateGone})
		p := redistest.NewProxy(t, s.Addr())
		l := newLocker(t, s.Client(t), calls(c.call))
		far := newLocker(t, p.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 }))
		m := l.Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		job := handle(far, m, Note("job"))
		p.DropReplyTo(isScript(wire.AskScript, m), 1)
		_, err := job.lockOrPark(t.Context(), closedYield)
		if _, busy := asBusy(err); busy || !errors.Is(err, ErrBackend) {
			t.Fatalf("%v, want ErrBackend", err)
		}
		if n := len(stored(t, m)); n > 3 {
			t.Errorf("more than a place is left; %s", dump(m))
		}
		mustUnlock(t, held)
		free(t, m, soon)
		if n := len(c.of("job")); n > 1 {
			t.Errorf("called %d times", n)
		}
	})
}

// The first copy of an ask is held up on its way, the second finds the lock busy.
// When the first one runs after all, nobody waits for what it takes.
func TestAnAskThatComesLate(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s, func(o *redis.UniversalOptions) { o.ReadTimeout = time.Second })
		for what, ask := range map[string]func(m *Lock) error{
			"park": func(m *Lock) error { return second(m.lockOrPark(t.Context(), closedYield)) },
			"try":  func(m *Lock) error { return second(m.TryLock(t.Context())) },
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				m := near.Mutex(redistest.Name(t), TTL(time.Minute))
				warm(t, m)
				held := mustTry(t, m)
				asks := p.Hold(isScript(wire.AskScript, m), 1)
				if busy := wantBusy(t, ask(handle(far, m, Note("job")))); busy.Parked != (what == "park") {
					t.Errorf("%+v", busy)
				}
				mustUnlock(t, held)
				if what == "park" {
					mustUnlock(t, mustTry(t, handle(near, m, Note("job"))))
				}
				free(t, m, 0)
				asks.Release()
				redistest.Eventually(t, soon, func() bool { return band(t, m, "h:") == 1 }, "the late ask")
				free(t, m, releaseAgainAfter[stepReleased]+soon)
			})
		}
	})
}

// The reply to a release is lost: the second one finds nothing to release, and
// tells of the calls all the same.
func TestResentReleaseCalls(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		c := answers(map[string]inside.Fate{"job": inside.FateComing})
		p := redistest.NewProxy(t, s.Addr())
		far := newLocker(t, p.Client(t), calls(c.call))
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, handle(far, m))
		mustPark(t, noted(m, "job"))
		p.DropReplyTo(isScript(wire.ReleaseScript, m), 1)
		redistest.Must(t, held.Unlock(t.Context()))
		c.called(t, "job", 1)
		mustUnlock(t, mustTry(t, noted(m, "job")))
		free(t, m, 0)
	})
}

// Redis is away when a fate is to be told, and when a line is to be looked after.
func TestLookingAfterOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s.Addr())
		called, tell := make(chan struct{}), make(chan struct{})
		rdb := p.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
		scripts := newTap(rdb)
		l := newLocker(t, rdb,
			calls(func(ctx context.Context, _, _ string) inside.Fate {
				select {
				case called <- struct{}{}:
					<-tell
				case <-ctx.Done():
				}
				return inside.FateGone
			}))
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, handle(l, m))
		mustPark(t, handle(l, m, Note("job")))
		mustUnlock(t, held)
		come(t, called, "the call")
		p.Refuse(true)
		p.Cut()
		sent := scripts.count(wire.CallScript)
		tell <- struct{}{} // in vain
		redistest.Eventually(t, soon, func() bool { return scripts.count(wire.CallScript) >= sent+3 }, "the fate and two looks sent")
		p.Heal()
		come(t, called, "a call when Redis is back")
		tell <- struct{}{}
		free(t, m, soon)
	})
}

func TestParkedThroughScriptFlush(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	c := answers(map[string]inside.Fate{"job": inside.FateUnsure})
	m := newLocker(t, rdb, calls(c.call)).Mutex(redistest.Name(t))
	held := mustTry(t, m)
	flush := func() {
		t.Helper()
		redistest.Must(t, rdb.ScriptFlush(t.Context()).Err())
	}
	flush()
	mustPark(t, noted(m, "job"))
	flush()
	mustUnlock(t, held)
	for i := range 4 { // looks, in pipelines
		flush()
		c.called(t, "job", i+1)
	}
	c.set("job", inside.FateGone)
	flush()
	free(t, m, soon)
}

// Redis loses everything: who looks after lines forgets them without a word,
// and what parks afterwards is looked after again.
func TestParkedThroughRestart(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	c := answers(map[string]inside.Fate{})
	l := newLocker(t, s.Client(t), calls(c.call))
	m := l.Mutex(redistest.Name(t), TTL(time.Hour))
	mustTry(t, m)
	parkAll(t, m, "a", "b")
	s.Restart(t)
	redistest.Eventually(t, soon, func() bool {
		nothing := false
		l.parking.View(func(lines map[string]*parking.Line) {
			n := lines[m.Key()]
			nothing = !n.Parked && len(n.Calls) == 0
		})
		return nothing
	}, "nothing parked")
	if got := stored(t, m); len(got) != 0 {
		t.Errorf("looking made %v", got)
	}
	before := len(c.of("a"))
	held := mustTry(t, m)
	mustPark(t, noted(m, "a"))
	mustUnlock(t, held)
	c.called(t, "a", before+2)
	mustUnlock(t, mustTry(t, noted(m, "a")))
	free(t, m, 0)
}

// What looks at locks from outside, with one parked and one called.
func TestAdminOfWhatIsParked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := newLocker(t, s.Client(t), func(o *Options) { o.Prefix = redistest.Name(t) })
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "a", "b")
		releases(t, held, 1, time.Hour)
		shows := func(what string, held, parked, called int) {
			t.Helper()
			if ok, err := m.existsNow(t.Context()); !ok || err != nil {
				t.Errorf("%s: exists %v, %v", what, ok, err)
			}
			listed := 0
			for info, err := range l.list(t.Context()) {
				listed++
				if err != nil || info.Key != m.Key() || info.Held != held || info.Parked != parked || info.Called != called || info.Waiting != 0 {
					t.Errorf("%s: listed as %+v, %v", what, info, err)
				}
			}
			if listed != 1 {
				t.Errorf("%s: %d listed", what, listed)
			}
			for note, place := range map[string]int{"a": 0, "b": 1, "c": -1, "": -1} {
				if info := inspected(t, noted(m, note)); info.Held != held || info.Parked != parked || info.Called != called || info.Place != place {
					t.Errorf("%s: %q is shown as %+v", what, note, info)
				}
			}
			if n, err := m.Waiting(t.Context()); n != 0 || err != nil {
				t.Errorf("%s: waiting %d, %v", what, n, err)
			}
			if n, err := m.Available(t.Context()); n != 1-held || err != nil {
				t.Errorf("%s: available %d, %v", what, n, err)
			}
		}
		shows("free", 0, 1, 1)
		for range 2 {
			if n, err := l.sweep(t.Context()); n != 0 || err != nil {
				t.Errorf("Sweep: %d, %v", n, err)
			}
		}
		shows("swept", 0, 1, 1)
		mustTry(t, m)
		shows("held", 1, 1, 1)
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
		shows("broken", 0, 1, 1)
		if err := m.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		if ok, err := m.existsNow(t.Context()); ok || err != nil || len(stored(t, m)) != 0 {
			t.Errorf("deleted: exists %v, %v; %s", ok, err, dump(m))
		}
	})
}

// A slot that Break or BreakAll freed is called for by whoever looks after the line.
func TestABrokenSlotIsCalledFor(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, breaks := range map[string]func(m *Lock, le *Lease) error{
			"Break":    func(m *Lock, le *Lease) error { return second(m.Break(t.Context(), le.Token())) },
			"BreakAll": func(m *Lock, _ *Lease) error { return second(m.BreakAll(t.Context())) },
		} {
			got := make(chan *Lease, 1)
			var job *Lock
			l := newLocker(t, s.Client(t), calls(func(ctx context.Context, _, _ string) inside.Fate {
				if le, err := job.lockOrPark(ctx, closedYield); err == nil {
					got <- le
				}
				return inside.FateComing
			}))
			m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
			job = handle(l, m, Note("job"))
			held := mustTry(t, m)
			mustPark(t, job)
			began := time.Now()
			redistest.Must(t, breaks(m, held))
			le := come(t, got, "the lock after "+what)
			if d := le.takenAt.Sub(began); d > DefaultTTL/2 { // the end of the lease would have it called, too
				t.Errorf("%s: taken after %v", what, d)
			}
			mustUnlock(t, le)
			free(t, m, 0)
		}
	})
}
