package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// controlsKey is where the controls of a prefix are, as the log and the errors name it.
func controlsKey(prefix string) string { return prefix + ":{" + keys.Controls + "}" }

// own is a prefix of the test's own, which its Lockers share, and the option that sets it.
func own(t testing.TB) (string, func(*lock.Options)) {
	prefix := redistest.Name(t)
	return prefix, prefixed(prefix)
}

// knows waits until l obeys exactly those targets.
func knows(t testing.TB, l *lock.Locker, targets ...string) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		var known []string
		for _, c := range insider.InForce(l.Controls()) {
			known = append(known, c.Target)
		}
		return slices.Equal(known, targets)
	}, "controls for %q in force", targets)
}

func pause(t testing.TB, l *lock.Locker, target string, until time.Time, why string) {
	t.Helper()
	redistest.Must(t, l.Controls().Pause(t.Context(), target, until, why))
}

// pauseFor pauses it for that long at least: for longer if the machine was too busy to order that before its end.
func pauseFor(t testing.TB, l *lock.Locker, target string, d time.Duration) (end time.Time) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		end = time.Now().Add(d)
		d *= 2
		return l.Controls().Pause(t.Context(), target, end, "") == nil
	}, "a pause whose end is ahead")
	return end
}

func resume(t testing.TB, l *lock.Locker, target string) {
	t.Helper()
	redistest.Must(t, l.Controls().Resume(t.Context(), target))
}

func setLimit(t testing.TB, l *lock.Locker, target string, n int) {
	t.Helper()
	redistest.Must(t, l.Controls().SetLimit(t.Context(), target, n, "a test"))
}

func mustBePaused(t testing.TB, m *lock.Lock) *lock.BusyError {
	t.Helper()
	busy := mustBeBusy(t, m)
	if busy.Reason != lock.ReasonPaused || busy.Pause == nil {
		t.Fatalf("TryLock of %s: %v, want that it is paused", m.Key(), busy)
	}
	return busy
}

// says counts what stands in a log.
func says(t testing.TB, log *redistest.Log, want map[string]int) {
	t.Helper()
	for part, n := range want {
		redistest.Eventually(t, soon, func() bool { return strings.Count(log.String(), part) >= n }, "%q in the log", part)
		if got := strings.Count(log.String(), part); got != n {
			t.Errorf("%q stands %d times in the log, want %d:\n%s", part, got, n, log.String())
		}
	}
}

// A paused target gives its lock to nobody; who holds it keeps it, its release grants nobody, and the line is served in
// order once it is resumed.
func TestControls_pause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator, l := newLocker(t, s.Client(t), prefix, owner("alice")), newLocker(t, s.Client(t), prefix)
		m, other := l.Mutex("report", lock.Parts("acme")), l.Mutex("mail", lock.Parts("acme"))
		held := mustTry(t, m)
		first, second := inLine(t, m, 1), inLine(t, m, 2)

		pause(t, operator, "report", time.Time{}, "its data is repaired")
		knows(t, l, "report")
		if err := held.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("the holder lost its lease: %v", err)
		}
		mustUnlock(t, held)
		wantHeld(t, m, 0)
		busy := mustBePaused(t, m)
		if p := busy.Pause; p.By != "alice" || p.Why != "its data is repaired" || time.Since(p.Since) > time.Minute {
			t.Errorf("TryLock: %+v, want who paused it, why and since when", p)
		}
		for _, part := range []string{"paused until somebody resumes it", "alice", "its data is repaired"} {
			if !strings.Contains(busy.Error(), part) {
				t.Errorf("TryLock: %q does not say %q", busy, part)
			}
		}
		wantAvailable(t, m, 0)
		mustUnlock(t, mustTry(t, other))

		resume(t, operator, "report")
		mustUnlock(t, first.got(t))
		mustUnlock(t, second.got(t))
		free(t, m)
	})
}

// A paused lock is not asked for at all: TryLock sends nothing.
func TestControls_pausedIsNotAskedFor(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, hook := s.Client(t), &redistest.FailHook{}
		l := newLocker(t, rdb, ownPrefix(t))
		m := l.Mutex("report")
		pause(t, l, "report", time.Time{}, "")
		rdb.AddHook(hook)
		var asked atomic.Int64
		hook.Before(func(cmd redis.Cmder) error {
			if touching(m)(cmd) {
				asked.Add(1)
			}
			return nil
		})
		for range 10 {
			mustBePaused(t, m)
			if err := insider.Paused(t.Context(), l.Controls(), m.Key()); !errors.Is(err, lock.ErrBusy) {
				t.Errorf("Paused: %v, want ErrBusy", err)
			}
		}
		hook.Before(nil)
		if n := asked.Load(); n != 0 {
			t.Errorf("a paused lock was asked for %d times", n)
		}
	})
}

// Who is in line of a paused lock is served when the pause ends by itself.
func TestControls_waitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("report")
		far := time.Now().Add(time.Hour)
		pause(t, l, "report", far, "")
		if busy := mustBePaused(t, m); busy.ExpiresIn <= 0 || busy.ExpiresIn > time.Hour+time.Minute || !busy.Pause.PausedUntil.Equal(far) {
			t.Errorf("TryLock: %+v, want the end of the pause", busy)
		}
		w := inLine(t, m, 1)
		end := pauseFor(t, l, "report", 500*time.Millisecond) // another end
		le := w.got(t)
		if early := time.Until(end); early > 0 {
			t.Errorf("got the lock %s before the end of the pause", early)
		}
		mustUnlock(t, le)
		knows(t, l)
	})
}

// What is parked keeps its place through a pause, and is called when it is resumed.
func TestControls_parked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		called, resumed := make(chan string, 100), atomic.Bool{}
		l := newCaller(t, s.Client(t), func(_ context.Context, _, note string) inside.Fate {
			if !resumed.Load() {
				t.Errorf("%s was called to a lock that is paused", note)
			}
			called <- note
			return inside.FateComing
		}, ownPrefix(t))
		m := l.Mutex("report", lock.Note("task"))
		pause(t, l, "report", time.Time{}, "")
		if busy := mustPark(t, m); busy.Reason != lock.ReasonPaused {
			t.Errorf("parked: %v, want paused", busy)
		}
		// It comes back by itself, and parks anew, in its place.
		if busy := mustPark(t, m); busy.Place != 0 {
			t.Errorf("parked again at place %d", busy.Place)
		}
		resumed.Store(true)
		resume(t, l, "report")
		if note := come(t, called, "a call"); note != "task" {
			t.Errorf("%s was called", note)
		}
		mustUnlock(t, mustTry(t, m))
	})
}

// The control of a key wins over that of its scope; a limit of a mutex makes it a semaphore, and a lower one takes effect
// as holders leave.
func TestControls_limit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("report", lock.Parts("acme"), lock.Fenced())
		setLimit(t, l, "report", 2)
		one, two := mustTry(t, m), mustTry(t, m)
		mustNotTry(t, m)
		setLimit(t, l, "report|acme", 3)
		three := mustTry(t, m)
		mustNotTry(t, m)
		if a, b, c := fenceOf(t, one), fenceOf(t, two), fenceOf(t, three); a >= b || b >= c {
			t.Errorf("fences %d, %d, %d in the order of the grants", a, b, c)
		}
		mustUnlock(t, mustTry(t, l.Mutex("report", lock.Parts("other"))))

		setLimit(t, l, "report|acme", 1)
		mustUnlock(t, one)
		mustUnlock(t, two)
		mustNotTry(t, m)
		mustUnlock(t, three)
		mustUnlock(t, mustTry(t, m))

		redistest.Must(t, errors.Join(l.Controls().ClearLimit(t.Context(), "report|acme"), l.Controls().ClearLimit(t.Context(), "report")))
		held := mustTry(t, m)
		mustNotTry(t, m)
		mustUnlock(t, held)
		knows(t, l)
	})
}

// Each other Locker obeys, also where no message arrives and nobody of it waits, and a new one from its first call on.
func TestControls_inForceEverywhere(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix)
		p := redistest.NewProxy(t, s.Addr())
		p.DropMessages(true)
		idle, waits := newLocker(t, s.Client(t), prefix), newLocker(t, p.Client(t), prefix)
		for _, l := range []*lock.Locker{idle, waits} {
			mustUnlock(t, mustTry(t, l.Mutex("report")))
		}
		pause(t, operator, "report", time.Time{}, "")
		for _, l := range []*lock.Locker{idle, waits} {
			knows(t, l, "report")
		}
		mustBePaused(t, newLocker(t, s.Client(t), prefix).Mutex("report"))
	})
}

// Operators who change the same and other targets at the same time lose nothing: the pause and the limit of each target
// are there in the end.
func TestControls_manyOperators(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		l := newLocker(t, s.Client(t), prefix)
		const operators, targets = 4, 5
		var wg sync.WaitGroup
		for range operators {
			its := newLocker(t, s.Client(t), prefix).Controls()
			redistest.Go(&wg, func() {
				for i := range targets {
					target := fmt.Sprintf("scope%d", i)
					if err := errors.Join(its.Pause(t.Context(), target, time.Time{}, "p"), its.SetLimit(t.Context(), target, i+1, "l")); err != nil {
						t.Errorf("%s: %v", target, err)
					}
				}
			})
		}
		wg.Wait()
		list, err := l.Controls().List(t.Context())
		if err != nil || len(list) != targets {
			t.Fatalf("%v, %v; want %d targets", list, err, targets)
		}
		for i, c := range list {
			if !c.Paused || c.Limit != i+1 || c.Target != fmt.Sprintf("scope%d", i) {
				t.Errorf("%+v: want it paused, with limit %d", c, i+1)
			}
		}
		resume(t, l, "scope0")
		list, err = l.Controls().List(t.Context())
		if err != nil || list[0].Paused || list[0].Limit != 1 || list[0].Why != "l" {
			t.Errorf("%+v, %v; want the limit, and its reason, to stay", list[0], err)
		}
	})
}

// Under HashKeys a readable scope and its parts are a target too: they stand for the key with the hash.
func TestControls_readableKeyWithHashKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t), func(o *lock.Options) { o.HashKeys = "a secret of more than 16 bytes" })
		m, other := l.Mutex("report", lock.Parts("acme", "a b")), l.Mutex("report", lock.Parts("acme"))
		for _, target := range []string{"report|acme|a b", m.Key()} {
			pause(t, l, target, time.Time{}, "")
			mustBePaused(t, m)
			mustUnlock(t, mustTry(t, other))
			resume(t, l, "report|acme|a b")
			mustUnlock(t, mustTry(t, m))
		}
	})
}

// A target is a scope as the program has it, or a key as it stands in Redis.
func TestControls_targets(t *testing.T) {
	t.Parallel()
	prefix, withPrefix := own(t)
	l := newLocker(t, redistest.Mini(t).Client(t), withPrefix)
	inBraces := func(key string) string {
		_, text, _ := strings.Cut(key, "{")
		return strings.TrimSuffix(text, "}")
	}
	long := strings.Repeat("a long scope ", 30)
	for target, locks := range map[string][]*lock.Lock{
		"report":               {l.Mutex("report"), l.Mutex("report", lock.Parts("acme")), l.Mutex("report", lock.Parts("a", "b"))},
		"report|acme":          {l.Mutex("report", lock.Parts("acme"))},
		"my scope":             {l.Mutex("my scope"), l.Mutex("my scope", lock.Parts("x"))},
		"my scope|x y":         {l.Mutex("my scope", lock.Parts("x y"))},
		"my%20scope|x%20y":     {l.Mutex("my%20scope", lock.Parts("x%20y"))},
		"re{port}|50%":         {l.Mutex("re{port}", lock.Parts("50%"))},
		prefix + ":{report|b}": {l.Mutex("report", lock.Parts("b"))},
		"50%":                  {l.Mutex("50%"), l.Mutex("50%", lock.Parts("x"))},
		"50%41":                {l.Mutex("50%41")},
		"a~b":                  {l.Mutex("a~b")},
		l.Mutex("50%", lock.Parts("~x", "a|b", "")).Key():                   {l.Mutex("50%", lock.Parts("~x", "a|b", ""))},
		l.Mutex("report", lock.Parts(long)).Key():                           {l.Mutex("report", lock.Parts(long))},
		l.Mutex("report", lock.Parts(strings.Repeat("y", 200))).Key():       {l.Mutex("report", lock.Parts(strings.Repeat("y", 200)))},
		inBraces(keys.HashedKey("a secret of 16 b", prefix, "s", "a", "b")): {},
		"control":          {l.Mutex("control"), l.Mutex("control", lock.Parts("x"))},
		long[:len(long)-1]: {l.Mutex(long[:len(long)-1]), l.Mutex(long[:len(long)-1], lock.Parts("x"))},
		"itunes:verify":    {l.Mutex("itunes:verify", lock.Parts("1"))},
		"itunes:":          {l.Mutex("itunes:verify", lock.Parts("1")), l.Mutex("itunes:verify:again"), l.Mutex("itunes:", lock.Parts("1")), l.Mutex("itunes:")},
	} {
		pause(t, l, target, time.Time{}, "")
		for _, m := range locks {
			if busy := mustBePaused(t, m); !insider.AppliesTo(*busy.Pause, m.Key()) {
				t.Errorf("%q: %s: %v does not apply to it", target, m.Key(), busy.Pause)
			}
		}
		mustUnlock(t, mustTry(t, l.Mutex("reports")))
		mustUnlock(t, mustTry(t, l.Mutex("report-", lock.Parts("acme"))))
		resume(t, l, target)
		for _, m := range locks {
			mustUnlock(t, mustTry(t, m))
		}
	}
	knows(t, l)
}

// The narrowest target decides; a beginning of a scope is one only up to a ':'.
func TestControls_beginnings(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	for target, n := range map[string]int{"a:": 2, "a:b:": 3, "a:b:c": 4, "a:b:c|1": 5, "a": 6} {
		setLimit(t, l, target, n)
		pause(t, l, target, time.Time{}, target)
	}
	for _, test := range []struct {
		m     *lock.Lock
		limit int
		by    string
	}{
		{l.Mutex("a:b:c", lock.Parts("1")), 5, "a:b:c|1"},
		{l.Mutex("a:b:c", lock.Parts("2")), 4, "a:b:c"},
		{l.Mutex("a:b:d"), 3, "a:b:"},
		{l.Mutex("a:b"), 2, "a:"},
		{l.Mutex("a"), 6, "a"},
		{l.Mutex("b:a:"), 0, ""},
		{l.Mutex("ab:"), 0, ""},
	} {
		its, limit, by := insider.ControlsFor(insider.InForce(l.Controls()), test.m.Key())
		if limit != test.limit || (by != nil) != (test.by != "") || by != nil && by.Target != test.by {
			t.Errorf("%s: limit %d, pause %v (%v)", test.m.Key(), limit, by, its)
		}
		if test.by == "" {
			mustUnlock(t, mustTry(t, test.m))
		} else if busy := mustBePaused(t, test.m); busy.Pause.Target != test.by {
			t.Errorf("%s is paused by %v, want %s", test.m.Key(), busy.Pause, test.by)
		}
	}
}

// A lock whose name is that of the controls has a key of its own, and the controls are no lock.
func TestControls_keyOfTheirOwn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix, withPrefix := own(t)
		l := newLocker(t, s.Client(t), withPrefix)
		m := l.Mutex("control")
		pause(t, l, "report", time.Time{}, "")
		held := mustTry(t, m)
		mustNotTry(t, m)
		for info, err := range insider.List(t.Context(), l) {
			if err != nil || info.Key != m.Key() {
				t.Errorf("List: %v, %v", info, err)
			}
		}
		if _, err := insider.Sweep(t.Context(), l); err != nil {
			t.Errorf("Sweep: %v", err)
		}
		if insider.LockErr(insider.ByKey(l, controlsKey(prefix))) == nil {
			t.Error("the key of the controls passes for a lock's")
		}
		redistest.Must(t, insider.LockErr(insider.ByKey(l, m.Key())))
		mustUnlock(t, held)
		pause(t, l, m.Key(), time.Time{}, "") // the lock's, and not that of the controls
		if busy := mustBePaused(t, m); busy.Pause.Target != "control" {
			t.Errorf("paused by %+v", busy.Pause)
		}
		resume(t, l, "control")
		mustUnlock(t, mustTry(t, m))
	})
}

// A target that one operator has paused and another has limited shows for each of the two who ordered it, when and why,
// whichever came first, and after one of them has ended.
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
		orders := insider.Orders(list)
		if len(orders) != 3 {
			t.Fatalf("%d orders, want 3: %+v", len(orders), orders)
		}
		if p := orders[1]; !p.Paused || p.Limit != 0 || p.By != "alice" || p.Why != "repair" || p.Since.After(orders[2].Since) {
			t.Errorf("the pause: %+v", p)
		}
		if p := orders[2]; p.Paused || p.Limit != 3 || p.By != "bob" || p.Why != "a test" || p.Since.IsZero() {
			t.Errorf("the limit: %+v", p)
		}
		text := insider.ControlText(list[1])
		for _, part := range []string{"paused until somebody resumes it, ordered by alice at ", " (repair); limited to 3, ordered by bob at ", " (a test)"} {
			if !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
		knows(t, l, "mail", "report")
		says(t, log, map[string]int{"(repair)": 1, "limited to 3": 1})
		if busy := mustBePaused(t, m); busy.Pause.By != "alice" || strings.Contains(busy.Error(), "bob") {
			t.Errorf("TryLock: %v, want alice's pause alone", busy)
		}

		// An end of one order is logged as that, and the other is not logged anew.
		redistest.Must(t, alice.Controls().ClearLimit(t.Context(), "report"))
		says(t, log, map[string]int{"a control has ended": 1, "was=limited to 3, ordered by bob": 1, "(repair)": 1, "a control is in force": 3})
		resume(t, alice, "report")
		resume(t, alice, "mail")
	})
}

// Each process logs a change, once, and tells who made the Locker.
func TestControls_logged(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	log, told := &redistest.Log{}, make(chan []lock.Control, 10)
	prefix, withPrefix := own(t)
	operator := newLocker(t, s.Client(t), withPrefix, owner("alice"))
	pause(t, operator, "report", time.Time{}, "repair")
	l := insider.New(s.Client(t), lock.Options{Prefix: prefix, Logger: log.Logger()}, nil, func(inForce []lock.Control) { told <- inForce }, nil)
	t.Cleanup(func() { _ = l.Close() })
	mustBePaused(t, l.Mutex("report"))
	if list := come(t, told, "the first controls"); len(list) != 1 || list[0].Target != "report" {
		t.Errorf("told of %v", list)
	}
	resume(t, operator, "report")
	if list := come(t, told, "the end of them"); len(list) != 0 {
		t.Errorf("told of %v", list)
	}
	says(t, log, map[string]int{"a control has ended": 1, "a control is in force": 1, "target=report": 2, "ordered by alice": 2, "(repair)": 2, "paused until somebody resumes it": 2})
}

// What cannot be read is logged once and left alone; the rest is obeyed.
func TestControls_unreadable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &redistest.Log{}
		prefix, withPrefix := own(t)
		operator, l := newLocker(t, s.Client(t), withPrefix), newLocker(t, s.Client(t), withPrefix, logTo(log))
		rdb, key := s.Client(t), controlsKey(prefix)
		wrong := map[string]string{"text": "not JSON", "number": "17", "list": "[]", "none": "{}", "nul\x00": "\x00\xff"}
		for target, entry := range wrong {
			redistest.Must(t, rdb.HSet(t.Context(), key, target, entry).Err())
		}
		pause(t, operator, "report", time.Time{}, "")
		for _, target := range []string{"text", "number", "list", "none"} {
			mustUnlock(t, mustTry(t, l.Mutex(target)))
		}
		mustBePaused(t, l.Mutex("report"))
		for range 3 {
			if list, err := l.Controls().List(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("List: %v, %v", list, err)
			}
		}
		if found, err := insider.Unreadable(t.Context(), l.Controls()); err != nil || len(found) != len(wrong) {
			t.Errorf("Unreadable: %v, %v", found, err)
		}
		says(t, log, map[string]int{"cannot be read": len(wrong)})
		for _, junk := range []string{"a{b", "a~b", "report|~x", "nul\x00"} {
			redistest.Must(t, rdb.HSet(t.Context(), key, junk, "junk").Err())
			resume(t, operator, junk)
			if there, err := rdb.HExists(t.Context(), key, junk).Result(); err != nil || there {
				t.Errorf("resume leaves the entry %q: %v", junk, err)
			}
		}
		pause(t, operator, "text", time.Time{}, "")
		knows(t, l, "report", "text")
	})
}

// Something else under the key of the controls is said once, with the key and what to do, and locks go on without them.
// What was read before stays in force.
func TestControls_replacedBySomethingElse(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix, withPrefix := own(t)
		log, freshLog := &redistest.Log{}, &redistest.Log{}
		operator, l := newLocker(t, s.Client(t), withPrefix), newLocker(t, s.Client(t), withPrefix, logTo(log))
		rdb, m, key := s.Client(t), l.Mutex("report"), controlsKey(prefix)
		pause(t, operator, "report", time.Time{}, "")
		mustBePaused(t, m)
		// In one step, so that no read finds no key at all.
		other := key + ":other"
		redistest.Must(t, rdb.Set(t.Context(), other, "x", time.Hour).Err())
		redistest.Must(t, rdb.Rename(t.Context(), other, key).Err())
		says(t, log, map[string]int{"the controls cannot be read": 1, "obeys those that it has read before": 1, key: 2})
		mustBePaused(t, m)
		fresh := newLocker(t, s.Client(t), withPrefix, logTo(freshLog))
		mustUnlock(t, mustTry(t, fresh.Mutex("report")))
		says(t, freshLog, map[string]int{"this process obeys no pause and no limit until they can": 1})
		err := l.Controls().Resume(t.Context(), "report")
		if !errors.Is(err, lock.ErrBackend) || !errors.Is(l.Controls().Pause(t.Context(), "report", time.Time{}, ""), lock.ErrBackend) {
			t.Errorf("Resume: %v, want ErrBackend", err)
		}
		for what, text := range map[string]string{"a log": log.String(), "the other log": freshLog.String(), "the error": err.Error()} {
			for _, part := range []string{key, "something else than controls is stored", "DEL"} {
				if !strings.Contains(text, part) {
					t.Errorf("%s does not say %q: %s", what, part, text)
				}
			}
		}
		redistest.Must(t, rdb.Del(t.Context(), key).Err())
		knows(t, l)
		says(t, log, map[string]int{"the controls can be read again": 1})
		mustUnlock(t, mustTry(t, m))
	})
}

// A user without the rights for controls has none, and one log line.
func TestControls_noRights(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	log := &redistest.Log{}
	rdb := withUser(t, s, s.Client(t), redistest.Name(t), "-hlen", "-hgetall", "-hget", "-hset", "-hdel")
	l := newLocker(t, rdb, ownPrefix(t), logTo(log))
	mustUnlock(t, mustTry(t, l.Mutex("report")))
	says(t, log, map[string]int{"the controls cannot be read": 1})
	if err := l.Controls().Pause(t.Context(), "report", time.Time{}, ""); !errors.Is(err, lock.ErrBackend) {
		t.Errorf("Pause: %v, want ErrBackend", err)
	}
}

// Bad input is refused, with what is wrong and what to do.
func TestControls_badInput(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	ctx, its := t.Context(), l.Controls()
	for _, target := range []string{"", " ", "report ", "|acme", "a\nb", "\xff", strings.Repeat("x", 2000)} {
		for what, err := range map[string]error{
			"Pause": its.Pause(ctx, target, time.Time{}, ""), "Resume": its.Resume(ctx, target),
			"SetLimit": its.SetLimit(ctx, target, 3, ""), "ClearLimit": its.ClearLimit(ctx, target),
		} {
			if err == nil || !strings.Contains(err.Error(), "a target is a scope") {
				t.Errorf("%s of %.20q: %v", what, target, err)
			}
		}
	}
	for what, err := range map[string]error{
		"in the past":     its.Pause(ctx, "report", time.Now().Add(-time.Second), ""),
		"at most":         its.Pause(ctx, "report", time.Now().Add(inside.MaxTTL+time.Hour), ""),
		"limit of 0":      its.SetLimit(ctx, "report", 0, ""),
		"limit of -1":     its.SetLimit(ctx, "report", -1, ""),
		"at most 1000":    its.Pause(ctx, "report", time.Time{}, strings.Repeat("y", 1001)),
		"limit of 214748": its.SetLimit(ctx, "report", 1<<31, ""),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want it to say %q", err, what)
		}
	}
	if list, err := its.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("List: %v, %v", list, err)
	}
}

// A closed Locker says so.
func TestControls_closed(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	pause(t, l, "report", time.Time{}, "")
	_ = l.Close()
	if err := l.Controls().Resume(t.Context(), "report"); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("Resume: %v, want ErrClosed", err)
	}
	if _, err := l.Controls().List(t.Context()); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("List: %v, want ErrClosed", err)
	}
}

// There is a most of what has controls; what has some can still be changed.
func TestControls_tooMany(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	setLimit(t, l, "report|0", 2)
	entry := client(t).HGet(t.Context(), controlsKeyOf(l), "report|0").Val()
	entries := map[string]any{}
	for i := range 1000 {
		entries[fmt.Sprintf("report|%d", i)] = entry
	}
	redistest.Must(t, client(t).HSet(t.Context(), controlsKeyOf(l), entries).Err())
	if err := l.Controls().Pause(t.Context(), "mail", time.Time{}, ""); err == nil || !strings.Contains(err.Error(), "1000 targets have controls already") {
		t.Errorf("Pause of one more: %v", err)
	}
	pause(t, l, "report|7", time.Time{}, "")
	redistest.Must(t, l.Controls().ClearLimit(t.Context(), "report|8"))
	pause(t, l, "mail", time.Time{}, "")
}

// controlsKeyOf is controlsKey of a Locker's prefix.
func controlsKeyOf(l *lock.Locker) string {
	prefix, _, _ := strings.Cut(l.Mutex("x").Key(), ":{")
	return controlsKey(prefix)
}

// refuseControls has the reads of l's controls fail.
func refuseControls(hook *redistest.FailHook, l *lock.Locker) {
	key := any(controlsKeyOf(l))
	hook.Before(func(cmd redis.Cmder) error {
		if slices.Contains(cmd.Args(), key) {
			return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
		}
		return nil
	})
}

// A Locker that has never read the controls waits for them for a second while the server loads, and then works without
// them. Later an outage leaves what was read last in force.
func TestControls_outage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix, hook, rdb := ownPrefix(t), &redistest.FailHook{}, s.Client(t)
		pause(t, newLocker(t, s.Client(t), prefix), "report", time.Time{}, "")
		rdb.AddHook(hook)
		l := newLocker(t, rdb, prefix)
		refuseControls(hook, l)
		began := time.Now()
		mustUnlock(t, mustTry(t, l.Mutex("other")))
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("TryLock before the controls were read took %s, want a second", took)
		}
		hook.Before(nil)
		redistest.Eventually(t, soon, func() bool { return len(insider.InForce(l.Controls())) == 1 }, "the controls")
		mustBePaused(t, l.Mutex("report"))
		refuseControls(hook, l)
		mustBePaused(t, l.Mutex("report"))
		hook.Before(nil)
	})
}

// A refused read has read nothing. A Locker that was not let in when it first asked obeys a pause with the first call that
// is let in.
func TestControls_refusedIsNotRead(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	prefix, admin := ownPrefix(t), s.Client(t)
	pause(t, newLocker(t, admin, prefix), "report", time.Time{}, "for hours already")
	tell(t, admin, "ACL", "SETUSER", "new", "on", ">old", "~*", "&*", "+@all")
	l := newLocker(t, s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = "new", "secret" }), prefix)
	if err := mustNotTry(t, l.Mutex("report")); !errors.Is(err, lock.ErrBackend) {
		t.Errorf("TryLock with a wrong password: %v, want ErrBackend", err)
	}
	tell(t, admin, "ACL", "SETUSER", "new", ">secret")
	mustBePaused(t, l.Mutex("report"))
}

// A pause is obeyed in time by a process one of whose reads hangs: the next read does not wait for it.
func TestControls_oneReadHangs(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	prefix, p := ownPrefix(t), redistest.NewProxy(t, s.Addr())
	operator, far := newLocker(t, s.Client(t), prefix), newLocker(t, p.Client(t), prefix)
	m := far.Mutex("report")
	mustUnlock(t, mustTry(t, m))
	h := p.Hold(redistest.IsControlRead, 1)
	t.Cleanup(h.Release)
	redistest.Eventually(t, soon, func() bool { return h.Count() == 1 }, "a read that hangs")
	pause(t, operator, "report", time.Time{}, "")
	paused := time.Now()
	redistest.Eventually(t, soon, func() bool {
		le, err := m.TryLock(t.Context())
		if err != nil {
			return wantBusy(t, err).Reason == lock.ReasonPaused
		}
		mustUnlock(t, le)
		return false
	}, "a pause that is obeyed")
	if took := time.Since(paused); took > lock.ControlDelay+time.Second {
		t.Errorf("the pause was obeyed after %s; ControlDelay is %s", took, lock.ControlDelay)
	}
}

// A Locker that has never read the controls takes locks on the nodes that work while the node of the controls is away:
// the first call waits for two seconds, the others do not.
func TestControls_newLockerWithoutTheirNode(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	log := &redistest.Log{}
	rdb := s.Client(t) // one that knows the nodes
	known, fresh := newLocker(t, rdb), newLocker(t, rdb, logTo(log))
	name, control := "", controlsKeyOf(known)
	for i := range 100 {
		if name = fmt.Sprint("elsewhere", i); s.MasterOf(t, known.Mutex(name).Key()) != s.MasterOf(t, control) {
			break
		}
	}
	mustUnlock(t, mustTry(t, known.Mutex(name)))
	defer s.PauseMaster(t, control)()
	for i, most := range []time.Duration{5 * time.Second, 500 * time.Millisecond} {
		began := time.Now()
		mustUnlock(t, mustTry(t, fresh.Mutex(name)))
		if took := time.Since(began); took > most {
			t.Errorf("call %d of a Locker that has not read the controls took %s, want %s at most", i+1, took, most)
		}
	}
	says(t, log, map[string]int{"the controls cannot be read; this process obeys no pause": 1})
}

// A pause is ordered while the command that takes the lock is on its way for longer than ControlDelay. Then TryLock and
// Lock give the lock back: nothing starts after the operator was told that the pause is in force.
func TestControls_pausedWhileTheAskTravels(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix, p := ownPrefix(t), redistest.NewProxy(t, s.Addr())
		operator := newLocker(t, s.Client(t), prefix)
		far := newLocker(t, p.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = 5 * time.Second }), prefix) // no ask is sent twice
		tried, locked := far.Mutex("report"), far.Mutex("mail")
		for _, m := range []*lock.Lock{tried, locked} {
			mustUnlock(t, mustTry(t, m)) // connected, and the controls are known
		}
		asks := []*redistest.Held{p.Hold(touches(tried), 1), p.Hold(touches(locked), 1)}
		failed := make(chan error, 1)
		go func() { _, err := tried.TryLock(context.Background()); failed <- err }()
		waiter := lockBeside(t, locked)
		for _, ask := range asks {
			redistest.Eventually(t, soon, func() bool { return ask.Count() == 1 }, "an ask that is on its way")
		}
		pause(t, operator, "report", time.Time{}, "")
		pause(t, operator, "mail", time.Time{}, "")
		ordered := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(ordered) > lock.ControlDelay+100*time.Millisecond }, "time")
		for _, ask := range asks {
			ask.Release()
		}
		if busy := wantBusy(t, come(t, failed, "the end of TryLock")); busy.Reason != lock.ReasonPaused {
			t.Errorf("TryLock: %v, want that the lock is paused", busy)
		}
		free(t, operator.Mutex("report"))
		redistest.Eventually(t, soon, func() bool {
			holders, err := operator.Mutex("mail").Holders(t.Context())
			return err == nil && len(holders) == 0
		}, "Lock has given the lock back")
		if !waiter.pending() {
			t.Fatalf("Lock returned %v, %v; want that it waits", waiter.lease, waiter.err)
		}
		resume(t, operator, "mail")
		mustUnlock(t, waiter.got(t))
	})
}

// A process that was stopped for longer than ControlDelay reads the controls before a caller gets a lock, also if it was
// stopped while it took one: it obeys a pause that was ordered meanwhile.
func TestControls_stoppedProcess(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	prefix, withPrefix := own(t)
	rdb := s.Client(t)
	operator := newLocker(t, rdb, withPrefix)
	for range 3 {
		child := startChild(t, "try", s.Addr(), prefix)
		took := func() []string { return rdb.LRange(t.Context(), prefix+":took", 0, -1).Val() }
		before := len(took())
		redistest.Eventually(t, soon, func() bool { return len(took()) > before+10 }, "a child that takes the lock")
		child.Pause(t)
		pause(t, operator, "report", time.Time{}, "")
		ordered := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(ordered) > lock.ControlDelay+100*time.Millisecond }, "time")
		resumed := time.Now().UnixMicro()
		child.Resume(t)
		time.Sleep(200 * time.Millisecond) // it took the lock at once, if at all
		child.Kill()
		for _, text := range took() {
			if at, err := strconv.ParseInt(text, 10, 64); err != nil || at > resumed {
				t.Errorf("took the lock %d us after it went on, %v; it was paused while the process was stopped", at-resumed, err)
				break
			}
		}
		resume(t, operator, "report")
	}
}

// A holder's process is killed while the lock is paused: the lock goes to the next in line when it is resumed, not before.
// The operator's process may have ended meanwhile.
func TestControls_holderKilledWhilePaused(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t) // of its own: the child has the default prefix
	name := redistest.Name(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(name)
	c := startChild(t, "hold", s.Addr(), "1s", name)
	redistest.Eventually(t, soon, func() bool { h, err := m.Holders(t.Context()); return err == nil && len(h) == 1 }, "the child")
	w := inLine(t, m, 1)
	operator := newLocker(t, s.Client(t))
	pause(t, operator, name, time.Time{}, "")
	knows(t, l, name)
	c.Kill()
	_ = operator.Close()
	redistest.Eventually(t, soon, func() bool { h, err := m.Holders(t.Context()); return err == nil && len(h) == 0 }, "the end of its lease")
	if !w.pending() {
		t.Fatal("the waiter has left the line while the lock was paused")
	}
	wantHeld(t, m, 0)
	resume(t, l, name)
	mustUnlock(t, w.got(t))
}
