package lock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

func calls(c inside.Caller) func(*Options) { return func(o *Options) { o.call = c } }

// releases runs release for le as a Locker would that wants so many inbound,
// and gives the notes of those that are called and have not come.
func releases(t testing.TB, le *Lease, inbound int, life time.Duration) []string {
	t.Helper()
	m := le.lock
	m.locker.renewer.drop(le, time.Now())
	return runs(t, m, wire.ReleaseScript, []any{le.body, inbound, m.limit, 0, life.Milliseconds()})
}

// looks runs call as a Locker would that looks after m.
func looksAfter(t testing.TB, m *Lock, inbound int, life time.Duration) []string {
	t.Helper()
	// As after the fate of a call: a look alone calls nobody while the slots are taken.
	return runs(t, m, wire.CallScript, []any{m.limit, inbound, life.Milliseconds(), "nobody's", 1})
}

func runs(t testing.TB, m *Lock, s *exchange.Script, args []any) (notes []string) {
	t.Helper()
	reply, err := m.locker.conn.Run(t.Context(), s, m.keys, args)
	redistest.Must(t, err)
	audit(t, m)
	rest := m.locker.line.handleGrants(reply)
	if r, ok := rest.([]any); ok {
		for _, note := range r[3:] {
			notes = append(notes, note.(string))
		}
	}
	return notes
}

func parkAll(t testing.TB, m *Lock, notes ...string) {
	t.Helper()
	for _, note := range notes {
		mustPark(t, noted(m, note))
	}
}

func want[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestReleaseCallsByTicket(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "d", "a", "c", "b", "e")
		want(t, "with 0 inbound", releases(t, held, 0, time.Hour), nil)
		held = mustTry(t, m)
		want(t, "with 2", releases(t, held, 2, time.Hour), []string{"d", "a"})
		held = mustTry(t, m)
		// Outstanding ones are told each time, and counted.
		want(t, "with 2 again", releases(t, held, 2, time.Hour), []string{"d", "a"})
		want(t, "with 3", looksAfter(t, m, 3, time.Hour), []string{"d", "a", "c"})
		want(t, "with 0 again", looksAfter(t, m, 0, time.Hour), []string{"d", "a", "c"})
		// One that comes is outstanding no more, and makes room for another.
		held = mustTry(t, noted(m, "a"))
		want(t, "after one came", looksAfter(t, m, 3, time.Hour), []string{"d", "c", "b"})
		// A goroutine in line counts.
		w := inLine(t, m, 1)
		want(t, "with one in line", looksAfter(t, m, 4, time.Hour), []string{"d", "c", "b"})
		want(t, "and the release that grants it", releases(t, held, 4, time.Hour), []string{"d", "c", "b", "e"})
		mustUnlock(t, w.got(t))
	})
}

// No slot is kept for what is parked or called, however old its ticket.
func TestNoSlotIsReserved(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, limit := range []int{1, 2} {
			m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), limit)
			var held []*Lease
			for range limit {
				held = append(held, mustTry(t, m))
			}
			parkAll(t, m, "old", "older")
			w := inLine(t, m, 1)
			want(t, "called", releases(t, held[0], 2, time.Hour), []string{"old", "older"})
			le := w.got(t)
			mustUnlock(t, le)
			mustUnlock(t, mustTry(t, m)) // a newcomer
			// What is called takes no slot away from the limit.
			mustUnlock(t, mustTry(t, noted(m, "old")))
			mustUnlock(t, mustTry(t, noted(m, "older")))
			for _, le := range held[1:] {
				mustUnlock(t, le)
			}
			free(t, m, 0)
		}
	})
}

// A release gives each call the time to arrive that its caller says.
func TestReleaseHeedsTheLifeOfACall(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "a", "b", "c")
		want(t, "called", releases(t, held, 1, time.Hour), []string{"a"})
		redistest.Must(t, raw(m).ZIncrBy(t.Context(), m.Key(), float64(time.Minute.Milliseconds()), "l:a").Err()) // called a minute ago
		want(t, "by a release within its life", releases(t, mustTry(t, m), 1, time.Hour), []string{"a"})
		want(t, "by a release after its life", releases(t, mustTry(t, m), 1, time.Second), []string{"a", "b"})
	})
}

// Nobody came within life: it keeps its place, and the next one is called beside it. It is
// named again, and what was called in vain is known when it comes late after all.
func TestACallThatIsOverdue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "a", "b", "c")
		want(t, "called", releases(t, held, 1, parking.MinCallLife), []string{"a"})
		since := stored(t, m)["l:a"]
		want(t, "before its life is over", looksAfter(t, m, 1, time.Hour), []string{"a"})
		if got := stored(t, m)["l:a"]; got != since {
			t.Errorf("a repeat moved the time of the call: %.0f, %.0f", since, got)
		}
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).Sub(time.UnixMilli(int64(-since-1e14))) > 0 }, "a millisecond")
		want(t, "after it", looksAfter(t, m, 1, 0), []string{"a", "b"})
		ticket, called, ok := away(t, noted(m, "a"))
		if next, _, _ := away(t, noted(m, "b")); !called || !ok || ticket >= next {
			t.Errorf("overdue: called %v, %v, ticket %.0f, the next in line %.0f", called, ok, ticket, next)
		}
		if got := stored(t, m)["l:a"]; got != since {
			t.Errorf("l:a is %.0f, was %.0f", got, since)
		}
		if info := inspected(t, noted(m, "a")); info.Parked != 1 || info.Called != 2 || info.Place != 0 {
			t.Errorf("%+v", info)
		}
		// It comes late: the trip is what it really was.
		m = noted(m, "a")
		le := m.newLease()
		asked := serverNow(t, m)
		a, err := m.ask(t.Context(), le, turn.Try)
		if err != nil || !a.Yours || !a.Returned {
			t.Fatalf("%+v, %v", a, err)
		}
		least := asked.Sub(time.UnixMilli(int64(-since - 1e14)))
		if most := serverNow(t, m).Sub(time.UnixMilli(int64(-since-1e14))) + time.Millisecond; a.SinceCall < least-time.Millisecond || a.SinceCall > most {
			t.Errorf("the trip took %v, want %v to %v", a.SinceCall, least, most)
		}
		nothingOf(t, m)
	})
}

// Of more than 64 calls that are overdue the rest goes to the end of the line, so that a line
// with many tasks that nobody fetches calls the others in turn.
func TestACallThatLapses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "a")
		if called := releases(t, held, 1, parking.MinCallLife); len(called) != 1 {
			t.Fatalf("called %v", called)
		}
		first := serverNow(t, m)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).Sub(first) > 2*time.Millisecond }, "a later time")
		held = mustTry(t, m)
		for i := range 65 {
			mustPark(t, noted(m, fmt.Sprint("job", i)))
		}
		since := stored(t, m)["l:a"]
		if called := releases(t, held, 66, time.Hour); len(called) != 66 {
			t.Fatalf("%d are called", len(called))
		}
		then := serverNow(t, m)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).Sub(then) > 2*time.Millisecond }, "a later time")
		looksAfter(t, m, 1, 0) // and calls the first of the two anew, a
		if info := inspected(t, noted(m, "a")); info.Parked != 1 || info.Called != 65 {
			t.Errorf("%+v: want 64 overdue ones, one that is called anew, and one at the end", info)
		}
		ticket, called, ok := away(t, noted(m, "a"))
		if last, _, _ := away(t, noted(m, "job63")); !called || !ok || ticket <= last {
			t.Errorf("called first: called %v, %v, ticket %.0f, another's %.0f", called, ok, ticket, last)
		}
		if got := stored(t, m)["l:a"]; got >= since || got < -2e14 {
			t.Errorf("l:a is %.0f, was %.0f; want a later call", got, since)
		}
	})
}

// The last one out deletes the key, the time since when its slot was idle too;
// until then the fence grows.
func TestTheLastOneOut(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Fenced())
		held := mustTry(t, m)
		fence := fenceOf(t, held)
		parkAll(t, m, "a", "b")
		releases(t, held, 1, parking.MinCallLife)
		if stored(t, m)["i"] == 0 {
			t.Fatalf("since when the slot is idle is not noted; %s", dump(m))
		}
		for _, note := range []string{"a", "b"} {
			le := mustTry(t, noted(m, note))
			if fenceOf(t, le) <= fence {
				t.Errorf("fence %d after %d", fenceOf(t, le), fence)
			}
			fence = fenceOf(t, le)
			if stored(t, m)["i"] != 0 {
				t.Errorf("taken, and idle; %s", dump(m))
			}
			mustUnlock(t, le)
		}
		free(t, m, 0)

		// With only a goroutine left, and with nobody.
		for _, drop := range []bool{false, true} {
			held = mustTry(t, m)
			parkAll(t, m, "a")
			releases(t, held, 1, parking.MinCallLife)
			if drop {
				runs(t, m, wire.CallScript, []any{m.limit, 1, 1000, "a", 1})
			} else {
				held = mustTry(t, m)
				runs(t, m, wire.CallScript, []any{m.limit, 1, 1000, "a", 1})
				if stored(t, m)["i"] != 0 {
					t.Errorf("taken, and idle; %s", dump(m))
				}
				// A process of an earlier version leaves it behind.
				redistest.Must(t, raw(m).ZAdd(t.Context(), m.Key(), redis.Z{Score: -3.1e14, Member: "i"}).Err())
				mustUnlock(t, held)
			}
			free(t, m, 0)
		}
	})
}

// What nobody else wants costs a SET and one command to release it, and is a string, with a Caller, a
// note and others parked elsewhere.
func TestTheFastPathIsAsFast(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		scripts := newTap(rdb)
		l := newLocker(t, rdb, calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
		m := l.Mutex(redistest.Name(t), Note("job"))
		for range 3 { // then the server knows the scripts, and the Locker which commands the server has
			mustUnlock(t, mustTry(t, m))
		}
		for _, yield := range []chan struct{}{nil, closedYield, make(chan struct{})} {
			scripts.reset()
			le, err := m.lockOrPark(t.Context(), yield)
			redistest.Must(t, err)
			if body, _, _ := storedString(t, m); body != le.body {
				t.Errorf("stored: %q, want %q", body, le.body)
			}
			redistest.Must(t, le.Unlock(t.Context()))
			if asks, releases, calls := scripts.count(wire.AskScript), scripts.count(wire.ReleaseScript)+scripts.named("delex"), scripts.count(wire.CallScript); asks != 0 || releases != 1 || calls != 0 {
				t.Errorf("%d asks, %d releases, %d calls", asks, releases, calls)
			}
		}
		if n := l.parking.LineCount.Load(); n != 0 {
			t.Errorf("%d lines are known of", n)
		}
	})
}
