package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func calls(c inside.Caller) func(*Options) { return func(o *Options) { o.call = c } }

// releases runs release for le as a Locker would that wants so many inbound,
// and gives the notes of those that are called and have not come.
func releases(t testing.TB, le *Lease, inbound int, life time.Duration) []string {
	t.Helper()
	m := le.lock
	m.locker.renewer.drop(le, time.Now())
	return runs(t, m, releaseScript, []any{le.body, inbound, m.limit, 0, life.Milliseconds()})
}

// looks runs call as a Locker would that looks after m.
func looksAfter(t testing.TB, m *Lock, inbound int, life time.Duration) []string {
	t.Helper()
	// As after the fate of a call: a look alone calls nobody while the slots are taken.
	return runs(t, m, callScript, []any{m.limit, inbound, life.Milliseconds(), "nobody's", 1})
}

func runs(t testing.TB, m *Lock, s *exchange.Script, args []any) (notes []string) {
	t.Helper()
	reply, err := m.locker.conn.Run(t.Context(), s, m.keys, args)
	if err != nil {
		t.Fatal(err)
	}
	audit(t, m)
	rest, _ := m.locker.line.handleGrants(reply)
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

// Nobody came within life: it goes to the end of the line, and what was called
// in vain is known when it comes late after all.
func TestACallThatLapses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "a", "b", "c")
		want(t, "called", releases(t, held, 1, minCallLife), []string{"a"})
		since := stored(t, m)["l:a"]
		want(t, "before its life is over", looksAfter(t, m, 1, time.Hour), []string{"a"})
		if got := stored(t, m)["l:a"]; got != since {
			t.Errorf("a repeat moved the time of the call: %.0f, %.0f", since, got)
		}
		want(t, "after it", looksAfter(t, m, 1, 0), []string{"b"})
		ticket, called, ok := away(t, noted(m, "a"))
		if last, _, _ := away(t, noted(m, "c")); called || !ok || ticket <= last {
			t.Errorf("lapsed: parked %v, called %v, ticket %.0f, the last in line %.0f", ok, called, ticket, last)
		}
		if got := stored(t, m)["l:a"]; got != since-1e14 {
			t.Errorf("l:a is %.0f, was %.0f; want it marked as lapsed", got, since)
		}
		if info := inspected(t, noted(m, "a")); info.Parked != 2 || info.Called != 1 || info.Place != 2 {
			t.Errorf("%+v", info)
		}
		// It comes late: the trip is what it really was.
		m = noted(m, "a")
		le := m.newLease()
		asked := serverNow(t, m)
		a, err := m.ask(t.Context(), le, modeTry)
		if err != nil || !a.yours || !a.returned {
			t.Fatalf("%+v, %v", a, err)
		}
		least := asked.Sub(time.UnixMilli(int64(-since - 1e14)))
		if most := serverNow(t, m).Sub(time.UnixMilli(int64(-since-1e14))) + time.Millisecond; a.sinceCall < least-time.Millisecond || a.sinceCall > most {
			t.Errorf("the trip took %v, want %v to %v", a.sinceCall, least, most)
		}
		nothingOf(t, m)
		// Called, lapsed and called anew, all alone: its second call counts.
		want(t, "b lapsed", looksAfter(t, m, 1, 0), []string{"c"})
		want(t, "c lapsed", looksAfter(t, m, 1, 0), []string{"b"})
		if got := stored(t, m)["l:b"]; got > -1e14 || got < -2e14 {
			t.Errorf("l:b is %.0f", got)
		}
	})
}

// The last one out deletes the key, the time since when its slot was idle too;
// until then the fence grows.
func TestTheLastOneOut(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		fence := fenceOf(t, held)
		parkAll(t, m, "a", "b")
		releases(t, held, 1, minCallLife)
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
			releases(t, held, 1, minCallLife)
			if drop {
				runs(t, m, callScript, []any{m.limit, 1, 1000, "a", 1})
			} else {
				held = mustTry(t, m)
				runs(t, m, callScript, []any{m.limit, 1, 1000, "a", 1})
				if stored(t, m)["i"] != 0 {
					t.Errorf("taken, and idle; %s", dump(m))
				}
				// A process of an earlier version leaves it behind.
				if err := raw(m).ZAdd(t.Context(), m.Key(), redis.Z{Score: -3.1e14, Member: "i"}).Err(); err != nil {
					t.Fatal(err)
				}
				mustUnlock(t, held)
			}
			free(t, m, 0)
		}
	})
}

// What nobody else wants costs a SET and a script, and is a string, with a Caller, a
// note and others parked elsewhere.
func TestTheFastPathIsAsFast(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		scripts := newTap(rdb)
		l := newLocker(t, rdb, calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
		m := l.Mutex(redistest.Name(t), Note("job"))
		mustUnlock(t, mustTry(t, m)) // the server knows the scripts now
		for _, yield := range []chan struct{}{nil, closedYield, make(chan struct{})} {
			scripts.reset()
			le, err := m.lockOrPark(t.Context(), yield)
			if err != nil {
				t.Fatal(err)
			}
			if body, _, _ := storedString(t, m); body != le.body {
				t.Errorf("stored: %q, want %q", body, le.body)
			}
			if err := le.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if asks, releases, calls := scripts.count(askScript), scripts.count(releaseScript), scripts.count(callScript); asks != 0 || releases != 1 || calls != 0 {
				t.Errorf("%d asks, %d releases, %d calls", asks, releases, calls)
			}
		}
		if n := l.parking.lineCount.Load(); n != 0 {
			t.Errorf("%d lines are known of", n)
		}
	})
}

// callee is a Caller that answers as told, and notes its calls.
type callee struct {
	mu    sync.Mutex // guards what follows
	fates map[string]inside.Fate
	calls []string
	at    []time.Time
}

func answers(fates map[string]inside.Fate) *callee { return &callee{fates: fates} }

func (c *callee) call(_ context.Context, _, note string) inside.Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.at = append(c.calls, note), append(c.at, time.Now())
	return c.fates[note]
}

func (c *callee) set(note string, fate inside.Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fates[note] = fate
}

func (c *callee) of(note string) (at []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, n := range c.calls {
		if n == note {
			at = append(at, c.at[i])
		}
	}
	return at
}

func (c *callee) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

func (c *callee) called(t testing.TB, note string, times int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool { return len(c.of(note)) >= times }, "%q called %d times", note, times)
}

func TestFates(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		c := answers(map[string]inside.Fate{"gone": inside.FateGone, "later": inside.FateLater, "unsure": inside.FateUnsure, "coming": inside.FateComing})
		l := newLocker(t, s.Client(t), calls(c.call))
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "gone", "later", "unsure", "coming")
		began := time.Now()
		mustUnlock(t, held)
		c.called(t, "unsure", 3) // it is repeated, by looks
		first := c.of("unsure")
		if d := first[0].Sub(began); d > checkEvery && s.Kind() == redistest.KindReal {
			t.Errorf("the first one that might come was called after %v: those before it were to be passed over at once", d)
		}
		if d := first[2].Sub(first[0]); d < checkEvery/2 {
			t.Errorf("three calls within %v", d)
		}
		if n := len(c.of("gone")); n != 1 {
			t.Errorf("gone was called %d times", n)
		}
		if _, _, ok := away(t, noted(m, "gone")); ok {
			t.Errorf("gone is still there; %s", dump(m))
		}
		later, _, ok := away(t, noted(m, "later"))
		if last, _, _ := away(t, noted(m, "coming")); !ok || later < last {
			t.Errorf("later has the ticket %.0f, the last one %.0f; %s", later, last, dump(m))
		}
		c.set("unsure", inside.FateGone)
		c.called(t, "coming", 1)
		// Not before its life is over.
		c.called(t, "coming", 2)
		if at := c.of("coming"); at[1].Sub(at[0]) < minCallLife {
			t.Errorf("repeated after %v", at[1].Sub(at[0]))
		}
		c.set("later", inside.FateGone)
		c.set("coming", inside.FateGone)
		free(t, m, soon)
	})
}

// A line of nothing but what cannot run now does not spin.
func TestALineOfLaters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		for _, n := range []int{1, 5, 100} {
			c := answers(map[string]inside.Fate{})
			rdb := s.Client(t)
			scripts := newTap(rdb)
			l := newLocker(t, rdb, calls(c.call))
			m := l.Mutex(redistest.Name(t))
			held := mustTry(t, m)
			for i := range n {
				note := fmt.Sprint("later", i)
				c.set(note, inside.FateLater)
				parkAll(t, m, note)
			}
			// Looks may have called ahead. From now on they are counted.
			scripts.reset()
			before, rounds := c.total(), len(c.of("later0"))
			began := time.Now()
			mustUnlock(t, held)
			c.called(t, "later0", rounds+4)
			made, told, took := c.total()-before, scripts.count(callScript), time.Since(began)
			// A look comes after checkEvery, or a bit sooner with others.
			looks := int(took/(checkEvery-checkTogether)) + 2
			if most := looks * min(n+1, maxNotNow+1); made > most {
				t.Errorf("%d of them: %d calls within %v, want at most %d", n, made, took, most)
			}
			if most := looks * min(n+2, maxNotNow+2); told > most {
				t.Errorf("%d of them: %d runs of call within %v, want at most %d", n, told, took, most)
			}
			if err := m.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
