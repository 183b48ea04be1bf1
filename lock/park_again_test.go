package lock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// parkedNotes are the parked notes of m, in the order of their places.
func parkedNotes(t testing.TB, m *Lock) []string {
	t.Helper()
	members, err := raw(m).ZRangeByScore(t.Context(), m.Key(), &redis.ZRangeBy{Min: "4e15", Max: "(6e15"}).Result()
	redistest.Must(t, err)
	return members
}

// An ask that parks ahead of all parked notes may be sent again: go-redis does so when a reply
// is lost. The second copy must not change the order, also if another note has parked ahead
// meanwhile.
func TestParkFirst_sentAgainKeepsTheOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		mustPark(t, noted(m, "last"))
		first := func(note string) *Lease { return handle(m.locker, m, Note(note), parkFirst()).newLease() }
		park := func(le *Lease) wire.Answer {
			t.Helper()
			a, err := le.lock.ask(t.Context(), le, turn.Park)
			if err != nil || !a.Parked {
				t.Fatalf("%q: parked: %v, %v", le.lock.note, a.Parked, err)
			}
			return a
		}
		x, y := first("x"), first("y")
		park(x)
		park(y)
		order := []string{"p:y", "p:x", "p:last"}
		want(t, "the order after two notes parked ahead", parkedNotes(t, m), order)
		if a := park(x); a.Place != 1 {
			t.Errorf("the second copy of x: place %d, want 1, behind y", a.Place)
		}
		want(t, "the order after the ask of x was sent again", parkedNotes(t, m), order)
		park(y)
		want(t, "the order after the ask of y was sent again", parkedNotes(t, m), order)

		// Another attempt with the same note, as of a task that is delivered twice.
		park(first("last"))
		want(t, "the order after a parked note asked to park ahead", parkedNotes(t, m), order)
		mustUnlock(t, held)
		for _, note := range []string{"y", "x", "last"} {
			mustUnlock(t, mustTry(t, noted(m, note)))
		}
		free(t, m, soon)
	})
}

// Somebody else takes the free slot before the note that was parked for it. When that holder is
// gone without a release, the note learns that the slot was free since then, and not since
// before: how many notes a process calls ahead depends on it.
func TestPark_aSlotIsNotFreeWhileSomebodyHoldsIt(t *testing.T) {
	t.Parallel()
	for what, take := range map[string]func(*testing.T, *Lock) []any{
		"a newcomer": func(_ *testing.T, m *Lock) []any {
			return []any{&m.newLease().asks, m.keepArg}
		},
		"a waiter": func(t *testing.T, m *Lock) []any {
			le := m.newLease()
			// It joins the line while the lock is paused: no asker gets a slot.
			if _, err := askRaw(t, m, []any{&le.asks, m.keepArg, 3000, 0}); err != nil {
				t.Fatal(err)
			}
			return []any{&le.asks, m.keepArg, 3000, 1}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) { slotFreeSince(t, s, take) })
		})
	}
}

// askRaw runs the script ask with those arguments.
func askRaw(t *testing.T, m *Lock, args []any) (any, error) {
	t.Helper()
	return m.locker.conn.Run(t.Context(), wire.AskScript, m.keys, args)
}

// slotFreeSince parks two notes, lets a slot be free, has it taken by the ask that take returns,
// and removes that holder. Then the first note takes the slot.
func slotFreeSince(t *testing.T, s *redistest.Server, take func(*testing.T, *Lock) []any) {
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
	job := noted(m, "job")
	held := mustTry(t, m)
	parkAll(t, m, "job", "other")
	mustUnlock(t, held)
	now, err := raw(m).Time(t.Context()).Result()
	redistest.Must(t, err)
	// As if the slot had come free an hour ago.
	since := redis.Z{Score: -(3e14 + float64(now.Add(-time.Hour).UnixMilli())), Member: "i"}
	if n, err := raw(m).ZAddArgs(t.Context(), m.Key(), redis.ZAddArgs{XX: true, Ch: true, Members: []redis.Z{since}}).Result(); err != nil || n != 1 {
		t.Fatalf("the release did not store since when a slot is free: %d, %v; %s", n, err, dump(m))
	}
	if fence, err := askRaw(t, m, take(t, m)); err != nil {
		t.Fatalf("the other one did not take the lock: %v, %v; %s", fence, err, dump(m))
	}
	if n, err := raw(m).ZRemRangeByScore(t.Context(), m.Key(), "1e11", "1e14").Result(); err != nil || n != 1 {
		t.Fatalf("the holder's member: removed %d, %v; %s", n, err, dump(m))
	}
	runs(t, m, wire.CallScript, []any{m.limit, 1, 1000, "", 0})
	le := job.newLease()
	a, err := job.ask(t.Context(), le, turn.Try)
	if err != nil || !a.Yours || !a.Returned {
		t.Fatalf("the called note: %+v, %v; %s", a, err, dump(m))
	}
	if a.SlotFreeFor > 59*time.Minute {
		t.Errorf("the slot was free for %v, but somebody has held it since", a.SlotFreeFor)
	}
	if _, _, err := le.release(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, mustTry(t, noted(m, "other")))
	free(t, m, soon)
}
