package lock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func TestSeedRedisMutex_HandlesCarryNoState(t *testing.T) {
	t.Parallel()
	seed(t, "the handle that has the lock does not get it again", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Fenced())
		held := mustTry(t, m)
		fenceOf(t, held)
		mustBeBusy(t, m)
		mustUnlock(t, held)
		again := mustTry(t, m)
		if again == held || again.Token() == held.Token() || fenceOf(t, again) <= fenceOf(t, held) {
			t.Errorf("a second stay with token %q, fence %d, after %q, %d", again.Token(), fenceOf(t, again), held.Token(), fenceOf(t, held))
		}
		mustUnlock(t, again)
	})
}

func TestSeedRedisMutex_TellsTheState(t *testing.T) {
	t.Parallel()
	seed(t, "locked while held, to everybody, and not after", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		wantLocked(t, m, false)
		held := mustTry(t, m)
		wantLocked(t, m, true)
		wantLocked(t, handle(his, m), true)
		mustUnlock(t, held)
		wantLocked(t, m, false)
		wantLocked(t, handle(his, m), false)
	})
	seed(t, "not locked when the lock has expired", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew())
		held := mustTry(t, m)
		redistest.Eventually(t, soon, func() bool {
			locked, err := m.Locked(t.Context())
			return err == nil && !locked
		}, "a lock that is not locked any more")
		if held.Held() {
			t.Error("its holder still believes in it")
		}
		store(t, m, "long gone", -time.Minute)
		wantLocked(t, m, false)
		store(t, m, "somebody", time.Minute)
		wantLocked(t, m, true)
	})
}

func TestSeedRedisMutex_ReturnsTheValueOfTheWork(t *testing.T) {
	t.Parallel()
	seed(t, "the value and the error of the work are those of the call", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		value, err := With(t.Context(), m, func(ctx context.Context) (string, error) {
			wantLocked(t, m, true)
			return "result", ctx.Err()
		})
		if value != "result" || err != nil {
			t.Errorf("With: %q, %v", value, err)
		}
		short := errors.New("short")
		n, err := With(t.Context(), m, func(context.Context) (int, error) { return 7, short })
		if n != 7 || !errors.Is(err, short) {
			t.Errorf("With: %d, %v", n, err)
		}
		free(t, m, soon)
	})
	seed(t, "no value, and no work, without the lock", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		mustTry(t, m)
		mustNotTry(t, handle(his, m)) // connected, and the controls are read
		wantBusy(t, outOfTime(t, m, func(ctx context.Context) error {
			value, err := With(ctx, handle(his, m), func(context.Context) (string, error) {
				t.Error("the work ran without the lock")
				return "result", nil
			})
			if value != "" {
				t.Errorf("With: %q", value)
			}
			return err
		}))
	})
}

func TestSeedRedisMutex_ErrorsInsteadOfBooleans(t *testing.T) {
	t.Parallel()
	seed(t, "a lock that is not had is an error that names it and its holder", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		mustTry(t, m)
		if busy := mustBeBusy(t, handle(his, m)); busy.Name != m.name || busy.Holder != "alice" || busy.ExpiresIn <= 0 {
			t.Errorf("busy: %+v", busy)
		}
		err := outOfTime(t, m, func(ctx context.Context) error { return second(handle(his, m).Lock(ctx)) })
		if busy := wantBusy(t, err); !errors.Is(err, context.DeadlineExceeded) || busy.Holder != "alice" || !strings.Contains(err.Error(), m.name) {
			t.Errorf("Lock: %v", err)
		}
	})
	seed(t, "a lock that is not released is an error", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		mustUnlock(t, held)
		if err := held.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), m.name) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestSeedRedisMutex_KeysFromValues(t *testing.T) {
	t.Parallel()
	type Room struct{ ID int }
	type Hall struct{ ID string }
	seed(t, "a name, and a value with an ID, which is its type's name and the ID", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		if key := hers.For(&Room{ID: 123}).Key(); key != inside.DefaultPrefix+":{Room|123}" {
			t.Errorf("the key of room 123 is %q", key)
		}
		// IDs that no other test has.
		id := int(time.Now().UnixNano())
		held := mustTry(t, hers.For(&Room{ID: id}))
		mustBeBusy(t, his.For(Room{ID: id}))
		for _, other := range []*Lock{his.For(Room{ID: id - 1}), his.For(Hall{ID: strconv.Itoa(id)}), his.For(redistest.Name(t))} {
			mustUnlock(t, mustTry(t, other))
		}
		mustUnlock(t, held)
		if m := hers.For(redistest.Name(t)); m.Key() != hers.Mutex(m.name).Key() {
			t.Errorf("a string's key is %q", m.Key())
		}
	})
	seed(t, "a value without identity is refused, since all such would share one lock", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for _, value := range []any{nil, Room{}, (*Room)(nil), struct{ ID int }{7}, 7, Hall{}} {
			if _, err := l.For(value).TryLock(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "lock: For(") {
				t.Errorf("For(%#v): %v", value, err)
			}
		}
	})
	seed(t, "values with separators in them do not share a lock", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		mustTry(t, l.Mutex(name, Parts("a:b", "c")))
		mustTry(t, l.Mutex(name, Parts("a", "b:c")))
		mustTry(t, l.Mutex(name, Parts("a|b", "c")))
		mustTry(t, l.Mutex(name+":a:b:c"))
	})
}

func TestSeedRedisMutex_Sweep(t *testing.T) {
	t.Parallel()
	seed(t, "what has expired is removed and counted, what lives stays", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), func(o *Options) { o.Prefix = redistest.Name(t) })
		for name, lasts := range map[string]time.Duration{"past": -time.Minute, "present": -time.Millisecond, "future": time.Minute} {
			store(t, l.Mutex(name), "somebody", lasts)
		}
		keys := func() (keys []string) {
			for _, name := range []string{"past", "present", "future"} {
				if n, err := raw(l.Mutex(name)).Exists(t.Context(), l.Mutex(name).Key()).Result(); err != nil {
					t.Fatal(err)
				} else if n > 0 {
					keys = append(keys, name)
				}
			}
			return keys
		}
		if n := len(keys()); n != 3 {
			t.Fatalf("%d locks are stored, want 3", n)
		}
		if n, err := l.sweep(t.Context()); n != 2 || err != nil {
			t.Errorf("Sweep: %d, %v; want 2", n, err)
		}
		if left := keys(); len(left) != 1 || left[0] != "future" {
			t.Errorf("%v are left, want the future one", left)
		}
		if n, err := l.sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("second Sweep: %d, %v; want 0: it counts what it removes", n, err)
		}
		var listed []string
		for info, err := range l.list(t.Context()) {
			redistest.Must(t, err)
			listed = append(listed, info.Key)
		}
		if len(listed) != 1 || listed[0] != l.Mutex("future").Key() {
			t.Errorf("listed are %v", listed)
		}
	})
}

func TestSeedRedisMutex_ReleasesWhenTheWorkFails(t *testing.T) {
	t.Parallel()
	wrong := errors.New("something went wrong")
	seed(t, "an error of the work comes through, and the lock is free", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		if err := m.Do(t.Context(), func(context.Context) error { return wrong }); !errors.Is(err, wrong) || err.Error() != wrong.Error() {
			t.Errorf("Do: %v", err)
		}
		free(t, m, soon)
	})
	seed(t, "a panic of the work comes through, and the lock is free", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		func() {
			defer func() {
				if p := recover(); p != any("something went wrong") {
					t.Errorf("recovered %v", p)
				}
			}()
			_ = m.Do(t.Context(), func(context.Context) error { panic("something went wrong") })
		}()
		free(t, m, soon)
	})
	seed(t, "an ErrBusy of the work's own is not taken for ours", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m, other := l.Mutex(redistest.Name(t)), l.Mutex(redistest.Name(t)+"-other")
		mustTry(t, other)
		runs := 0
		err := m.Do(t.Context(), func(ctx context.Context) error {
			runs++
			_, err := other.TryLock(ctx)
			return err
		})
		if busy := wantBusy(t, err); runs != 1 || busy.Name != other.name {
			t.Errorf("%d runs, busy is %q", runs, busy.Name)
		}
		free(t, m, soon)
	})
}
