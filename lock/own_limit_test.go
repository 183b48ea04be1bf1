package lock

import (
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

// Callers may give different limits for one lock. A waiter is granted by its own limit, not by that of
// who leaves: it never starts beside more than it allows, and does not wait while it may start.
func TestLine_ownLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, other := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		with := func(name string, limit int) *Lock { return other.Semaphore(name, limit) }

		t.Run("one alone waits for all", func(t *testing.T) {
			name := redistest.Name(t)
			m := l.Semaphore(name, 3)
			a, b, c := mustTry(t, m), mustTry(t, m), mustTry(t, m)
			alone := inLine(t, with(name, 1), 1)
			behind := inLine(t, with(name, 3), 2)
			mustUnlock(t, a)
			mustUnlock(t, b)
			waiting(t, m, 2) // nobody overtakes the one that waits to be alone
			mustBeBusy(t, m)
			calm(t, other, 2)
			mustUnlock(t, c)
			le := alone.got(t)
			mustUnlock(t, behind.got(t)) // it may start beside the other: it goes by its own limit
			mustUnlock(t, le)
		})

		// Of four holders one leaves by a lower limit, with which the script counts no further than two.
		for what, in := range map[string]struct {
			by      int
			limits  []int
			granted int
		}{
			"a higher limit is not held back by the releaser's": {1, []int{4, 5, 5}, 2},
			"a lower one is kept":                               {2, []int{3}, 0},
		} {
			t.Run(what, func(t *testing.T) {
				name := redistest.Name(t)
				m := l.Semaphore(name, 4)
				var held []*Lease
				for range 3 {
					held = append(held, mustTry(t, m))
				}
				last := mustTry(t, m)
				var line []*attempt
				for i, limit := range in.limits {
					line = append(line, inLine(t, with(name, limit), i+1))
				}
				calm(t, other, len(line)) // their refreshes are an hour away
				last.lock = l.Semaphore(name, in.by)
				mustUnlock(t, last)
				for i := range in.granted {
					held = append(held, line[i].got(t))
				}
				waiting(t, m, len(line)-in.granted)
				if n := len(holdersOf(t, m)); n != len(held) {
					t.Errorf("%d hold it, want %d; %s", n, len(held), dump(m))
				}
				for _, le := range held {
					mustUnlock(t, le)
				}
				for _, w := range line[in.granted:] {
					mustUnlock(t, w.got(t))
				}
			})
		}
	})
}

func holdersOf(t *testing.T, m *Lock) []Holder {
	t.Helper()
	holders, err := m.Holders(t.Context())
	redistest.Must(t, err)
	return holders
}

// The mark of a dead waiter from before a step of Redis' clock is shortened, and keeps its limit.
func TestClockStep_marksKeepTheirLimit(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	m := l.Semaphore(redistest.Name(t), 5)
	step(time.Hour)
	var held []*Lease
	for range 5 {
		held = append(held, mustTry(t, m))
	}
	for range 3 {
		mustAsk(t, m, m.newLease(), turn.EntryLifetime)
	}
	step(0)
	mustUnlock(t, held[0])
	limits := 0
	for member, score := range stored(t, m) {
		if member[0] == 'd' {
			if n := -score - float64(int64(-score)); n != 5.0/2048 {
				t.Errorf("the mark %f of %s has another limit", score, member)
			}
			limits++
		}
	}
	if limits != 2 {
		t.Errorf("%d are in line, want 2; %s", limits, dump(m))
	}
}

// The holder that an asker itself once was comes before a cooldown and a rate, with slots free too.
func TestGate_ownEarlierAttemptFirst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for what, closeIt := range map[string]func(m *Lock){
			"rate":     func(*Lock) {},
			"cooldown": func(m *Lock) { _ = mustTry(t, noted(m, "another")).Cooldown(t.Context(), time.Hour) },
		} {
			options := []Option{Note("task"), onePerNote()}
			if what == "rate" {
				options = append(options, Rate(1, time.Hour, 1))
			}
			m := l.Semaphore(redistest.Name(t)+what, 3, options...)
			le := mustTry(t, m)
			closeIt(m)
			for name, ask := range map[string]func() error{
				"TryLock":    func() error { _, err := m.TryLock(t.Context()); return err },
				"lockOrPark": func() error { _, err := m.lockOrPark(t.Context(), closedYield); return err },
			} {
				if busy := wantBusy(t, ask()); busy.Reason != ReasonHeld || busy.Note != "task" || busy.Parked {
					t.Errorf("%s, %s: %+v, want the earlier attempt", what, name, busy)
				}
			}
			mustUnlock(t, le)
		}
	})
}

// The first waiter leaves while the gate is closed: the next one starts when the gate opens.
func TestGate_nextInLineIsTold(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	rate := Rate(1, 1500*time.Millisecond, 1)
	m := l.Mutex(redistest.Name(t), rate)
	mustUnlock(t, mustTry(t, m))
	_, opens, _ := gateOf(t, m)
	first := inLine(t, m, 1)
	second := inLine(t, handle(l, m, rate), 2)
	calm(t, l, 2) // their refreshes are an hour away
	first.cancel()
	next := second.got(t)
	if at := serverNow(t, m); at.Before(opens) {
		t.Errorf("started at %s, before the gate opened at %s", at, opens)
	}
	mustUnlock(t, next)
}

// An ask that grants a slot to somebody before it, and finds the gate closed then, learns so from its reply. It gets
// no message as well.
func TestGate_askerIsNotTold(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	// In a Cluster the message that ends the test may overtake others.
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 3, Rate(1, 300*time.Millisecond, 1))
		held := mustTry(t, m)
		first, asker := m.newLease(), m.newLease()
		for _, le := range []*Lease{first, asker} {
			if a, err := m.ask(t.Context(), le, turn.Join); err != nil || a.Yours {
				t.Fatalf("under a closed gate: %+v, %v", a, err)
			}
		}
		_, opens, _ := gateOf(t, m)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(opens) }, "the gate to open")
		rdb, channel := s.Client(t), l.prefix+":"+l.channel
		subscription := rdb.Subscribe(t.Context(), channel)
		t.Cleanup(func() { _ = subscription.Close() })
		if _, err := subscription.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a, err := m.ask(t.Context(), asker, turn.Join); err != nil || a.Yours {
			t.Fatalf("behind the first one: %+v, %v", a, err)
		}
		redistest.Must(t, rdb.Publish(t.Context(), channel, "the end").Err())
		var told []string
		for {
			message, err := subscription.ReceiveMessage(t.Context())
			redistest.Must(t, err)
			if message.Payload == "the end" {
				break
			}
			told = append(told, message.Payload)
		}
		if len(told) != 1 || !strings.HasPrefix(told[0], first.token+" ") {
			t.Errorf("messages %q, want one, to the first in line, %s; the asker is %s", told, first.token, asker.token)
		}
		for _, le := range []*Lease{first, asker} {
			_, _, err := le.release(t.Context())
			redistest.Must(t, err)
		}
		mustUnlock(t, held)
	})
}
