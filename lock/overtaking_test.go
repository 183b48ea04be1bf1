package lock

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Those who wait in the line leave no room for calls, but one that has been in
// line for five seconds is called all the same.
func TestParkedIsNotOvertakenForEver(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t))
		holder := mustTry(t, m)
		first, second := inLine(t, m, 1), inLine(t, m, 2)
		now := serverNow(t, m).UnixMicro()
		park := func(note string, age time.Duration) {
			t.Helper()
			score := 4e15 + float64(now) - 1.6e15 - float64(age.Microseconds())
			redistest.Must(t, raw(m).ZAdd(t.Context(), m.Key(), redis.Z{Score: score, Member: "p:" + note}).Err())
		}
		release := func(le *Lease) (called []any) {
			t.Helper()
			reply, err := l.conn.Run(t.Context(), wire.ReleaseScript, m.keys, []any{le.body, 1})
			redistest.Must(t, err)
			rest := l.line.handleGrants(reply)
			r, ok := rest.([]any)
			if !ok || len(r) < 3 {
				t.Fatalf("release is answered %v", reply)
			}
			return r[3:]
		}
		park("young", time.Second)
		if called := release(holder); len(called) != 0 {
			t.Errorf("with one in line, %v is called", called)
		}
		park("old", 6*time.Second)
		third := inLine(t, m, 2)
		if called := release(first.got(t)); len(called) != 1 || called[0] != "old" {
			t.Errorf("called are %v, want the old one", called)
		}
		for _, a := range []*attempt{second, third} {
			le := a.got(t)
			if called := release(le); len(called) == 0 || called[0] != "old" {
				t.Errorf("called are %v, want the old one still", called)
			}
		}
	})
}

// A look while the slots are taken repeats calls and makes none: they would come
// in vain. When a slot is free it calls.
func TestALookCallsNobodyWhileTheSlotsAreTaken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		look := func(want ...string) {
			t.Helper()
			if got := runs(t, m, wire.CallScript, []any{m.limit, 2, 10_000, "", 0}); !slices.Equal(got, want) {
				t.Errorf("called are %q, want %q; %s", got, want, dump(m))
			}
		}
		held := mustTry(t, m)
		parkAll(t, m, "a", "b")
		look()
		if called := releases(t, held, 1, time.Hour); !slices.Equal(called, []string{"a"}) {
			t.Errorf("the release calls %q", called)
		}
		le, err := m.TryLock(t.Context()) // overtakes it
		redistest.Must(t, err)
		look("a")
		releases(t, le, 0, time.Hour)
		look("a", "b")

		// As many as slots are free.
		m = newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		leases := []*Lease{mustTry(t, m), mustTry(t, m), mustTry(t, m)}
		parkAll(t, m, "c", "d", "e", "f")
		for _, le := range leases {
			releases(t, le, 0, time.Hour)
		}
		look("c", "d", "e")
	})
}
