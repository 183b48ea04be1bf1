package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// CloseGate closes the gate for everybody but who holds, whatever the number of slots; it is
// moved forward only, and ends by itself.
func TestHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		le, beside := mustTry(t, m), mustTry(t, m)
		hold := func(d time.Duration) {
			t.Helper()
			redistest.Must(t, le.closeGate(t.Context(), d))
			audit(t, m)
		}
		hold(time.Hour)
		hold(time.Minute)
		if busy := mustBeBusy(t, m); busy.Reason != ReasonClosed || busy.ExpiresIn < 59*time.Minute || busy.Holder != "" {
			t.Errorf("%+v, want a hold of an hour", busy)
		}
		if err := le.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("Extend in a hold: %v", err)
		}
		// A cooldown does not make it less than a hold, and does not end it.
		redistest.Must(t, beside.Cooldown(t.Context(), time.Second))
		if busy := mustBeBusy(t, m); busy.Reason != ReasonClosed || busy.ExpiresIn < 59*time.Minute {
			t.Errorf("%+v, want a hold of an hour", busy)
		}
		// It outlives its holder.
		mustUnlock(t, le)
		if err := le.closeGate(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("CloseGate of a lease that is over: %v, want ErrNotHeld", err)
		}
		w := inLine(t, m, 1)
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v; want the gate", n, err)
		}
		le = w.got(t)
		if band(t, m, "g:") != 0 {
			t.Errorf("a gate is left; %s", dump(m))
		}

		hold(300 * time.Millisecond)
		_, opens, _ := gateOf(t, m)
		if next := lockBeside(t, m).got(t); time.UnixMicro(fenceOf(t, next)).Before(opens) {
			t.Errorf("taken at %s, before the gate opened at %s", time.UnixMicro(fenceOf(t, next)), opens)
		} else {
			mustUnlock(t, next)
		}
		mustUnlock(t, le)
		free(t, m, soon)
		for _, d := range []time.Duration{0, -time.Second, inside.MaxTTL + 1} {
			if err := le.closeGate(t.Context(), d); err == nil || !strings.Contains(err.Error(), d.String()) {
				t.Errorf("Hold(%s): %v", d, err)
			}
		}
	})
}

// While a mutex is held, a hold is what stands in the way; a rate is not.
func TestGate_whileHeld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Rate(1, time.Hour, 1), Note("run"))
		le := mustTry(t, m)
		if busy := mustBeBusy(t, m); busy.Reason != ReasonHeld || busy.Note != "run" {
			t.Errorf("%+v, want the holder", busy)
		}
		redistest.Must(t, le.closeGate(t.Context(), 2*time.Hour))
		if busy := mustBeBusy(t, m); busy.Reason != ReasonClosed || busy.ExpiresIn < 119*time.Minute {
			t.Errorf("%+v, want the hold", busy)
		}
		mustUnlock(t, le)
	})
}

// What is parked is called when the gate opens, and not before.
func TestGate_callsWhatIsParked(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		got := make(chan *Lease, 3)
		const every = 150 * time.Millisecond
		var m *Lock
		job := func(note string) *Lock { return handle(m.locker, m, Note(note), Rate(1, every, 1)) }
		l := newLocker(t, s.Client(t), calls(func(ctx context.Context, _, note string) inside.Fate {
			le, err := job(note).lockOrPark(ctx, closedYield)
			if err != nil {
				return inside.FateUnsure
			}
			got <- le
			return inside.FateComing
		}))
		m = l.Mutex(redistest.Name(t), Rate(1, every, 1))
		le := mustTry(t, m)
		redistest.Must(t, le.closeGate(t.Context(), 1200*time.Millisecond))
		mustUnlock(t, le)
		_, opens, _ := gateOf(t, m)
		for _, note := range []string{"a", "b", "c"} {
			if busy := mustPark(t, job(note)); busy.Reason != ReasonClosed || busy.ExpiresIn <= 0 {
				t.Errorf("%s: %+v, want a hold", note, busy)
			}
		}
		for i := range 3 {
			le := come(t, got, "what is parked")
			if at := serverNow(t, m); at.Before(opens.Add(time.Duration(i) * every)) {
				t.Errorf("%s was taken before %s, as number %d after the gate opened at %s", le.lock.note, at, i, opens)
			}
			mustUnlock(t, le)
		}
	})
}

// After a backward step of Redis' clock a gate is closed for no longer than it was to be.
func TestClockStep_gateFromTheFuture(t *testing.T) {
	t.Parallel()
	l, step := stepped(t)
	held, rated := l.Mutex(redistest.Name(t)), l.Mutex(redistest.Name(t)+"'", Rate(1, time.Minute, 1))
	step(time.Hour)
	le := mustTry(t, held)
	redistest.Must(t, le.closeGate(t.Context(), 10*time.Second))
	mustUnlock(t, le)
	mustUnlock(t, mustTry(t, rated))
	step(0)
	for m, most := range map[*Lock]time.Duration{held: 10 * time.Second, rated: time.Minute} {
		if left := busyFor(t, m); left > most {
			t.Errorf("after the step the gate of %s is closed for %s, want %s at most", m.name, left, most)
		}
	}
	step(time.Minute)
	mustUnlock(t, mustTry(t, held))
	mustUnlock(t, mustTry(t, rated))
}

// Only a lease of a lock that is still held closes its gate.
func TestHold_refused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), TTL(time.Hour))
		le := mustTry(t, m)
		if n, err := handle(newLocker(t, s.Client(t)), m).BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := le.closeGate(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) || le.Held() {
			t.Errorf("of a lease that was broken: %v, held %v", err, le.Held())
		}
		mustUnlock(t, mustTry(t, m)) // its gate is open
	})
}

// A message of a gate that no script publishes moves no waiter's next ask.
func TestGate_badMessage(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.StartMini(t).Client(t), ownServer)
	m := l.Mutex(redistest.Name(t))
	held := mustTry(t, m)
	waiter := inLine(t, m, 1)
	calm(t, l, 1)
	says := func(value string) (moved bool) {
		var before, after time.Time
		var token string
		next := func(at *time.Time) {
			l.line.mu.Lock()
			defer l.line.mu.Unlock()
			for own, w := range l.line.waiters {
				token, *at = own, w.turn.Next()
			}
		}
		next(&before)
		l.line.onMessage(wire.Message{Token: token, Fence: wire.GateFence, ServerUS: time.Now().UnixMicro(), Value: value})
		next(&after)
		return !after.Equal(before)
	}
	for _, value := range []string{"", "soon", "-1", "1e3", fmt.Sprint(inside.MaxTTL.Microseconds() + 1)} {
		if says(value) {
			t.Errorf("a gate that opens in %q us moves the next ask", value)
		}
	}
	if !says("60000") {
		t.Error("a gate that opens soon does not move the next ask")
	}
	mustUnlock(t, held)
	mustUnlock(t, waiter.got(t))
}
