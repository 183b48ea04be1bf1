package lock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/redistest"
)

// A target that one operator has paused and another has limited shows for each of the two
// who ordered it, when and why, whichever came first, and after one of them has ended.
func TestControls_pauseAndLimitKeepTheirOwnReasons(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix, log := ownPrefix(t), &redistest.Log{}
		alice, bob := newLocker(t, s.Client(t), prefix, owner("alice")), newLocker(t, s.Client(t), prefix, owner("bob"))
		l := newLocker(t, s.Client(t), prefix, logTo(log))
		m := l.Mutex("report")
		mustUnlock(t, mustTry(t, m))

		pause(t, alice, "report", time.Time{}, "repair")
		setLimit(t, bob, "report", 3)
		pause(t, bob, "mail", time.Time{}, "away")
		list, err := l.Controls().List(t.Context())
		if err != nil || len(list) != 2 || list[1].Target != "report" || !list[1].Paused || list[1].Limit != 3 || list[1].By != "bob" || list[1].Why != "a test" {
			t.Fatalf("List: %+v, %v; want both in one, by bob, who came later", list, err)
		}
		orders := ordersOf(list)
		if len(orders) != 3 {
			t.Fatalf("%d orders, want 3: %+v", len(orders), orders)
		}
		paused, limited := orders[1], orders[2]
		if !paused.Paused || paused.Limit != 0 || paused.By != "alice" || paused.Why != "repair" || paused.Since.After(limited.Since) {
			t.Errorf("the pause: %+v", paused)
		}
		if limited.Paused || limited.Limit != 3 || limited.By != "bob" || limited.Why != "a test" || limited.Since.IsZero() {
			t.Errorf("the limit: %+v", limited)
		}
		text := list[1].text()
		for _, part := range []string{"paused until somebody resumes it, ordered by alice at ", " (repair); limited to 3, ordered by bob at ", " (a test)"} {
			if !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
		knows(t, l, "mail", "report")
		redistest.Eventually(t, soon, func() bool { _, pause := stateOf(l, m); return pause != nil }, "the pause is known")
		if busy := wantBusy(t, mustNotTry(t, m)); busy.Pause.By != "alice" || strings.Contains(busy.Error(), "bob") {
			t.Errorf("TryLock: %v, want alice's pause alone", busy)
		}

		// An end of one order is logged as that, and the other is not logged anew.
		redistest.Eventually(t, soon, func() bool { return strings.Contains(log.String(), "limit=3") }, "a log line of the limit")
		redistest.Must(t, alice.Controls().ClearLimit(t.Context(), "report"))
		redistest.Eventually(t, soon, func() bool { return strings.Contains(log.String(), "a control has ended") }, "a log line of the end")
		for part, want := range map[string]int{`was=limited to 3, ordered by bob`: 1, "why=repair": 1, "limit=3": 1, "a control is in force": 3} {
			if n := strings.Count(log.String(), part); n != want {
				t.Errorf("%q stands %d times in the log, want %d:\n%s", part, n, want, log.String())
			}
		}
		resume(t, alice, "report")
		resume(t, alice, "mail")
	})
}

// stateOf is what l knows of the controls of m.
func stateOf(l *Locker, m *Lock) (limit int, pause *controls.Order) {
	return l.controls.Of(m.Key())
}

// Something else under the key of the controls is logged once, with the key and what to
// do. What was read before stays in force, and the end is logged.
func TestControls_replacedBySomethingElse(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix, log := ownPrefix(t), &redistest.Log{}
		operator, l := newLocker(t, s.Client(t), prefix), newLocker(t, s.Client(t), prefix, logTo(log))
		rdb, m, key := s.Client(t), l.Mutex("report"), operator.controls.Keys[0]
		mustUnlock(t, mustTry(t, m))
		pause(t, operator, "report", time.Time{}, "")
		knows(t, l, "report")
		// In one step, so that no read finds no key at all.
		other := key + ":other"
		redistest.Must(t, rdb.Set(t.Context(), other, "x", time.Hour).Err())
		redistest.Must(t, rdb.Rename(t.Context(), other, key).Err())
		redistest.Eventually(t, soon, func() bool { return strings.Contains(log.String(), "the controls cannot be read") }, "a log line")
		_ = l.controls.ObeyNow(t.Context()) // once more
		if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
			t.Errorf("TryLock: %v, want the pause that was read before", err)
		}
		err := l.Controls().Resume(t.Context(), "report")
		if !errors.Is(err, ErrBackend) {
			t.Errorf("Resume: %v, want ErrBackend", err)
		}
		for what, text := range map[string]string{"the log": log.String(), "the error": err.Error()} {
			for _, part := range []string{key, "something else than controls is stored", "DEL"} {
				if !strings.Contains(text, part) {
					t.Errorf("%s does not say %q: %s", what, part, text)
				}
			}
		}
		if text := log.String(); strings.Count(text, "cannot be read") != 1 || !strings.Contains(text, "obeys those that it has read before") {
			t.Errorf("logged: %s", text)
		}
		redistest.Must(t, rdb.Del(t.Context(), key).Err())
		knows(t, l)
		// The state changes before the log has its line.
		redistest.Eventually(t, soon, func() bool { return strings.Count(log.String(), "the controls can be read again") == 1 }, "a log line of the controls being read again")
		mustUnlock(t, mustTry(t, m))
	})
}

// A Control that a program has made has one reason for its pause and its limit.
func TestControl_madeByAProgram(t *testing.T) {
	t.Parallel()
	c := Control{Target: "report", Paused: true, Limit: 3, Why: "repair", By: "alice", Since: time.UnixMilli(0)}
	const want = "paused until somebody resumes it, ordered by alice at 1970-01-01T00:00:00Z (repair); " +
		"limited to 3, ordered by alice at 1970-01-01T00:00:00Z (repair)"
	if got := c.text(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
