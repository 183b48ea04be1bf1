package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// lastsFor wants m's key to last for at least and at most so long.
func lastsFor(t *testing.T, what string, m *Lock, least, most time.Duration) {
	t.Helper()
	audit(t, m)
	if got := raw(m).PTTL(t.Context(), m.Key()).Val(); got < least || got > most {
		t.Errorf("%s the key lasts for %s, want %s to %s; %s", what, got, least, most, dump(m))
	}
}

// A key on which tasks were parked lasts for half an hour. Once nothing is parked it
// goes with its last cooldown, or keys would pile up after a burst.
func TestCooldownKeyGoesWithTheCooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown = 20 * time.Second
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		first, second := mustTry(t, m), mustTry(t, handle(m.locker, m, TTL(time.Minute)))
		mustPark(t, noted(m, "job"))
		redistest.Must(t, first.Cooldown(t.Context(), cooldown))
		lastsFor(t, "with a task parked", m, 15*time.Minute, time.Hour)

		// The parked task is dropped: the other holder has the last deadline.
		want(t, "called", looksAfter(t, m, 1, time.Hour), []string{"job"})
		runs(t, m, wire.CallScript, []any{m.limit, 1, 1000, "job", 1})
		lastsFor(t, "beside a holder", m, 50*time.Second, time.Minute+2*time.Second)

		redistest.Must(t, second.Cooldown(t.Context(), cooldown))
		lastsFor(t, "with cooldowns alone", m, cooldown/2, cooldown+time.Second)
	})
}

// The same for the last of the parked tasks itself.
func TestCooldownOfTheLastParkedTaskLeavesNoLongKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown = 20 * time.Second
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		job := noted(m, "job")
		mustPark(t, job)
		releases(t, held, 1, parking.MinCallLife)
		le := mustTry(t, job)
		lastsFor(t, "while it holds the key", m, 15*time.Minute, time.Hour)
		// One that waits is heeded as well.
		w := inLine(t, m, 1)
		redistest.Must(t, le.Cooldown(t.Context(), cooldown))
		lastsFor(t, "in its cooldown", m, cooldown/2, cooldown+time.Second)
		w.cancel()
		_ = w.failed(t)
	})
}

// Who parked a task looks again when a slot may come free: when the gate opens, if one is free or may be by then, else
// when the lease of the only slot ends.
func TestCalls_firstEnd(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for slots, beside := range map[int]time.Duration{1: time.Minute, 2: time.Hour} {
			m := newLocker(t, s.Client(t)).Semaphore(fmt.Sprint(redistest.Name(t), slots), slots, TTL(time.Minute), NoRenew())
			held := mustTry(t, m)
			redistest.Must(t, held.closeGate(t.Context(), time.Hour))
			mustPark(t, noted(m, "job"))
			ends := func(when string, want time.Duration) {
				t.Helper()
				reply, err := m.locker.conn.Run(t.Context(), wire.CallScript, m.keys, []any{slots, 0, 1000, "", 0})
				redistest.Must(t, err)
				// Times are rounded up to milliseconds.
				if c, ok := wire.ParseCalls(reply); !ok || c.FirstEnd > want+10*time.Millisecond || c.FirstEnd < want-30*time.Second {
					t.Errorf("%d slots, %s: the first end is in %s, want %s; %s", slots, when, c.FirstEnd, want, dump(m))
				}
			}
			ends("one held", beside)
			mustUnlock(t, held)
			ends("none held", time.Hour)
		}
	})
}
