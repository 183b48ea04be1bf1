package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/redistest"
)

// ownPrefix gives Lockers a prefix of the test's own: controls are shared by all of one.
func ownPrefix(t testing.TB) func(*Options) {
	prefix := redistest.Name(t)
	return func(o *Options) { o.Prefix = prefix }
}

// ownServer is for Lockers with the prefix of all tests, on a server of the test's own.
func ownServer(o *Options) { o.onControls = func([]Control) {} }

// knows waits until l obeys exactly those targets.
func knows(t testing.TB, l *Locker, targets ...string) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		var known []string
		for _, c := range l.Controls().inForce() {
			known = append(known, c.Target)
		}
		return slices.Equal(known, targets)
	}, "controls for %q in force", targets)
}

func pause(t testing.TB, l *Locker, target string, until time.Time, why string) {
	t.Helper()
	if err := l.Controls().Pause(t.Context(), target, until, why); err != nil {
		t.Fatalf("Pause: %v", err)
	}
}

func resume(t testing.TB, l *Locker, target string) {
	t.Helper()
	if err := l.Controls().Resume(t.Context(), target); err != nil {
		t.Fatalf("Resume: %v", err)
	}
}

func setLimit(t testing.TB, l *Locker, target string, n int) {
	t.Helper()
	if err := l.Controls().SetLimit(t.Context(), target, n, "a test"); err != nil {
		t.Fatalf("SetLimit: %v", err)
	}
}

// A paused target gives its lock to nobody; who holds it keeps it, its release grants
// nobody, and the line is served in order once it is resumed.
func TestControls_pause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix, owner("alice"))
		l := newLocker(t, s.Client(t), prefix)
		m, other := l.Mutex("report", Parts("acme")), l.Mutex("mail", Parts("acme"))
		held := mustTry(t, m)
		first, second := inLine(t, m, 1), inLine(t, m, 2)

		pause(t, operator, "report", time.Time{}, "its data is repaired")
		knows(t, l, "report")
		if err := held.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("the holder lost its lease: %v", err)
		}
		mustUnlock(t, held)
		if holders, err := m.Holders(t.Context()); err != nil || len(holders) > 0 {
			t.Errorf("the release granted %v, %v; want nobody while paused", holders, err)
		}
		err := wantBusy(t, mustNotTry(t, m))
		if err.Reason != ReasonPaused || err.Pause == nil || err.Pause.By != "alice" || err.Pause.Why != "its data is repaired" || time.Since(err.Pause.Since) > time.Minute {
			t.Errorf("TryLock: %+v, want who paused it, why and since when", err)
		}
		for _, part := range []string{"paused until resumed", "alice", "its data is repaired"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("TryLock: %q does not say %q", err, part)
			}
		}
		if n, err := m.Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available is %d, %v while paused", n, err)
		}
		mustUnlock(t, mustTry(t, other))

		resume(t, operator, "report")
		mustUnlock(t, first.got(t))
		mustUnlock(t, second.got(t))
		free(t, m, soon)
	})
}

// mustNotTry is TryLock that must not take the lock; it gives the error.
func mustNotTry(t testing.TB, m *Lock) error {
	t.Helper()
	le, err := m.TryLock(t.Context())
	if err == nil {
		_ = le.Unlock(t.Context())
		t.Fatalf("TryLock took the lock; %s", dump(m))
	}
	return err
}

// A paused lock is not asked for at all: TryLock sends nothing.
func TestControls_pausedIsNotAskedFor(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		l := newLocker(t, rdb, ownPrefix(t))
		m := l.Mutex("report")
		pause(t, l, "report", time.Time{}, "")
		for range 10 {
			if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
				t.Errorf("TryLock: %v, want paused", err)
			}
			if err := l.Controls().paused(t.Context(), m.Key()); !errors.Is(err, ErrBusy) {
				t.Errorf("Paused: %v, want ErrBusy", err)
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.calls["ask"] != 0 {
			t.Errorf("a paused lock was asked for %d times", k.calls["ask"])
		}
	})
}

// Who is in line of a lock that is no key joins it all the same, and is served when
// the pause ends by itself.
func TestControls_waitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("report")
		far := time.Now().Add(time.Hour)
		pause(t, l, "report", far, "")
		err := wantBusy(t, mustNotTry(t, m))
		if err.ExpiresIn <= 0 || err.ExpiresIn > time.Hour+time.Minute || !err.Pause.PausedUntil.Equal(far) {
			t.Errorf("TryLock: %+v, want the end of the pause", err)
		}
		w := inLine(t, m, 1)
		if ttl := raw(m).PTTL(t.Context(), m.Key()).Val(); ttl <= 0 {
			t.Errorf("the key of a paused lock has a TTL of %s", ttl)
		}
		end := time.Now().Add(500 * time.Millisecond)
		pause(t, l, "report", end, "") // another end
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
		called := make(chan string, 100)
		l := newLocker(t, s.Client(t), ownPrefix(t), func(o *Options) {
			o.call = func(_ context.Context, _, note string) inside.Fate { called <- note; return inside.FateComing }
		})
		m := l.Mutex("report", Note("task"))
		pause(t, l, "report", time.Time{}, "")
		busy := mustPark(t, m)
		if busy.Reason != ReasonPaused {
			t.Errorf("parked: %v, want paused", busy)
		}
		// It comes back by itself, and parks anew, in its place.
		if busy := mustPark(t, m); busy.Place != 0 {
			t.Errorf("parked again at place %d", busy.Place)
		}
		select {
		case note := <-called:
			t.Errorf("%s was called to a lock that is paused", note)
		case <-time.After(2 * checkEvery):
		}
		resume(t, l, "report")
		if note := come(t, called, "a call"); note != "task" {
			t.Errorf("%s was called", note)
		}
		mustUnlock(t, mustTry(t, m))
	})
}

// The control of a key wins over that of its scope; a limit of a mutex makes it a
// semaphore, and a lower one takes effect as holders leave.
func TestControls_limit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("report", Parts("acme"))
		setLimit(t, l, "report", 2)
		one, two := mustTry(t, m), mustTry(t, m)
		mustNotTry(t, m)
		setLimit(t, l, "report|acme", 3)
		three := mustTry(t, m)
		mustNotTry(t, m)
		if n, paused := m.limitNow(); n != 3 || paused {
			t.Errorf("Limit is %d, %v", n, paused)
		}
		mustUnlock(t, mustTry(t, l.Mutex("report", Parts("other"))))

		setLimit(t, l, "report|acme", 1)
		mustUnlock(t, one)
		mustUnlock(t, two)
		mustNotTry(t, m)
		mustUnlock(t, three)
		mustUnlock(t, mustTry(t, m))

		if err := errors.Join(l.Controls().ClearLimit(t.Context(), "report|acme"), l.Controls().ClearLimit(t.Context(), "report")); err != nil {
			t.Fatal(err)
		}
		held := mustTry(t, m)
		mustNotTry(t, m)
		mustUnlock(t, held)
		if n, err := raw(m).Exists(t.Context(), l.controls.keys[0]).Result(); n != 0 || err != nil {
			t.Errorf("%d keys of controls are left, %v", n, err)
		}
	})
}

// Each other Locker obeys within 2 seconds, also where no message arrives and nobody
// of it waits, and a new one from its first call on.
func TestControls_inForceEverywhere(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix)
		p := redistest.NewProxy(t, s.Addr())
		p.DropMessages(true)
		idle, waits := newLocker(t, s.Client(t), prefix), newLocker(t, p.Client(t), prefix)
		for _, l := range []*Locker{idle, waits} {
			mustUnlock(t, mustTry(t, l.Mutex("report")))
		}
		pause(t, operator, "report", time.Time{}, "")
		changed := time.Now()
		for _, l := range []*Locker{idle, waits} {
			knows(t, l, "report")
		}
		if took := time.Since(changed); took > soon/2 {
			t.Errorf("in force after %s", took)
		}
		if controlsEvery > 1800*time.Millisecond {
			t.Errorf("the controls are read every %s: a change is to be in force within 2 s", controlsEvery)
		}
		fresh := newLocker(t, s.Client(t), prefix)
		if err := wantBusy(t, mustNotTry(t, fresh.Mutex("report"))); err.Reason != ReasonPaused {
			t.Errorf("the first call of a new Locker: %v, want paused", err)
		}
	})
}

// A Locker that is subscribed reads the controls on a message, and not at the next turn.
func TestControls_messages(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator, l := newLocker(t, s.Client(t), prefix), newLocker(t, s.Client(t), prefix)
		held := mustTry(t, l.Mutex("busy"))
		w := inLine(t, l.Mutex("busy"), 1)
		redistest.Eventually(t, soon, func() bool {
			counts, err := s.Client(t).PubSubNumSub(t.Context(), l.controls.channel).Result()
			return err == nil && (counts[l.controls.channel] > 0 || s.Kind() == redistest.KindCluster)
		}, "a subscription")
		redistest.Eventually(t, soon, func() bool {
			began := time.Now()
			pause(t, operator, "report", time.Time{}, "")
			for time.Since(began) < controlsEvery/3 && len(l.Controls().inForce()) == 0 {
				time.Sleep(time.Millisecond)
			}
			in := len(l.Controls().inForce()) == 1
			resume(t, operator, "report")
			knows(t, l)
			return in
		}, "a change that is in force before the next turn")
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
	})
}

// Operators who change the same and other targets at the same time lose nothing: the
// pause and the limit of each target are there in the end.
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
					err := errors.Join(its.Pause(t.Context(), target, time.Time{}, "p"), its.SetLimit(t.Context(), target, i+1, "l"))
					if err != nil {
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

// What cannot be read is logged once and left alone; the rest is obeyed.
func TestControls_unreadable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &lines{}
		prefix := ownPrefix(t)
		operator, l := newLocker(t, s.Client(t), prefix), newLocker(t, s.Client(t), prefix, logTo(log))
		rdb, key := s.Client(t), operator.controls.keys[0]
		wrong := map[string]string{
			"text": "not JSON", "number": "17", "list": "[]", "none": "{}", "newer": `{"v":2,"stop":true}`,
			"limit": `{"v":1,"limit":{"holders":0}}`, "huge": `{"v":1,"limit":{"holders":1e300}}`,
			"until": `{"v":1,"pause":{"until":"tomorrow"}}`, "nul\x00": "\x00\xff",
		}
		for target, entry := range wrong {
			if err := rdb.HSet(t.Context(), key, target, entry).Err(); err != nil {
				t.Fatal(err)
			}
		}
		pause(t, operator, "report", time.Time{}, "")
		for target := range wrong {
			if strings.IndexByte(target, 0) < 0 {
				mustUnlock(t, mustTry(t, l.Mutex(target)))
			}
		}
		mustNotTry(t, l.Mutex("report"))
		for range 3 {
			if list, err := l.Controls().List(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("List: %v, %v", list, err)
			}
		}
		if found, err := l.Controls().unreadable(t.Context()); err != nil || len(found) != len(wrong) || !strings.Contains(found["newer"], "newer version") {
			t.Errorf("Unreadable: %v, %v", found, err)
		}
		if n := strings.Count(log.String(), "cannot be read"); n != len(wrong) {
			t.Errorf("%d log lines for %d entries:\n%s", n, len(wrong), log.String())
		}
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "cannot be read") {
				continue
			}
			for _, part := range []string{key, " target=", " problem=", "automutex resume TARGET"} {
				if !strings.Contains(line, part) {
					t.Errorf("no %q in %s", part, line)
				}
			}
			if strings.Contains(line, "newer version") != strings.Contains(line, "update this program") {
				t.Errorf("an update helps with what a newer version wrote, and with nothing else: %s", line)
			}
		}

		// A newer version's order is not overwritten, and can be removed.
		if err := operator.Controls().SetLimit(t.Context(), "newer", 3, ""); err == nil || !strings.Contains(err.Error(), "newer version") {
			t.Errorf("SetLimit over a newer version's entry: %v", err)
		}
		resume(t, operator, "newer")
		for _, junk := range []string{"a{b", "a~b", "report|~x", "nul\x00"} {
			if err := rdb.HSet(t.Context(), key, junk, "junk").Err(); err != nil {
				t.Fatal(err)
			}
			resume(t, operator, junk)
			if there, err := rdb.HExists(t.Context(), key, junk).Result(); err != nil || there {
				t.Errorf("resume leaves the entry %q: %v", junk, err)
			}
		}
		pause(t, operator, "text", time.Time{}, "")
		knows(t, l, "report", "text")
	})
}

// Something else under the key of the controls, or no right to read them, is said once,
// and locks go on without.
func TestControls_notReadable(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &lines{}
		l := newLocker(t, s.Client(t), ownPrefix(t), logTo(log))
		if err := s.Client(t).Set(t.Context(), l.controls.keys[0], "x", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, mustTry(t, l.Mutex("report")))
		if n := strings.Count(log.String(), "the controls cannot be read; this process obeys no pause and no limit until they can"); n != 1 {
			t.Errorf("%d log lines:\n%s", n, log.String())
		}
		for _, part := range []string{l.controls.keys[0], "something else than controls is stored", "DEL"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("the log does not say %q:\n%s", part, log.String())
			}
		}
		if err := l.Controls().Pause(t.Context(), "report", time.Time{}, ""); !errors.Is(err, ErrBackend) {
			t.Errorf("Pause: %v, want ErrBackend", err)
		}
	})
}

// A user with the rights of an older version has no controls, and one log line.
func TestControls_noRights(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	log := &lines{}
	l := newLocker(t, denied(t, s, s.Client(t), "-hlen", "-hgetall", "-hget", "-hset", "-hdel"), ownPrefix(t), logTo(log))
	mustUnlock(t, mustTry(t, l.Mutex("report")))
	if n := strings.Count(log.String(), "the controls cannot be read"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, log.String())
	}
	err := l.Controls().Pause(t.Context(), "report", time.Time{}, "")
	wantDenied(t, "Pause", err, "HLEN")
}

// Bad input is refused, with what is wrong and what to do.
func TestControls_badInput(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	ctx, controls := t.Context(), l.Controls()
	for _, target := range []string{"", " ", "report ", "|acme", "report|a b", "re{port}", "a\nb", "\xff", strings.Repeat("x", 2000), "report|%zz|y",
		"report|~x", "report|50%", "report|50%41", "report|a~", "report|" + strings.Repeat("y", 201), "report|~" + strings.Repeat("0", 64) + "|a",
		"re~port|a", strings.Repeat("z", 201) + "|a", "report" + strings.Repeat("|", 201), "report|~" + strings.Repeat("F", 64)} {
		for what, err := range map[string]error{
			"Pause": controls.Pause(ctx, target, time.Time{}, ""), "Resume": controls.Resume(ctx, target),
			"SetLimit": controls.SetLimit(ctx, target, 3, ""), "ClearLimit": controls.ClearLimit(ctx, target),
		} {
			if err == nil || !strings.Contains(err.Error(), "a target is a scope") {
				t.Errorf("%s of %.20q: %v", what, target, err)
			}
		}
	}
	for what, err := range map[string]error{
		"in the past":     controls.Pause(ctx, "report", time.Now().Add(-time.Second), ""),
		"at most":         controls.Pause(ctx, "report", time.Now().Add(inside.MaxTTL+time.Hour), ""),
		"limit of 0":      controls.SetLimit(ctx, "report", 0, ""),
		"limit of -1":     controls.SetLimit(ctx, "report", -1, ""),
		"at most 1000":    controls.Pause(ctx, "report", time.Time{}, strings.Repeat("y", 1001)),
		"limit of 214748": controls.SetLimit(ctx, "report", 1<<31, ""),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want it to say %q", err, what)
		}
	}
	if list, err := controls.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("List: %v, %v", list, err)
	}
}

// A target is a scope as the program has it, or a key as it stands in Redis.
func TestControls_targets(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	long := strings.Repeat("a long scope ", 30)
	for target, locks := range map[string][]*Lock{
		"report":                 {l.Mutex("report"), l.Mutex("report", Parts("acme")), l.Mutex("report", Parts("a", "b"))},
		"report|acme":            {l.Mutex("report", Parts("acme"))},
		"my scope":               {l.Mutex("my scope"), l.Mutex("my scope", Parts("x"))},
		"my%20scope|x%20y":       {l.Mutex("my scope", Parts("x y"))},
		l.prefix + ":{report|b}": {l.Mutex("report", Parts("b"))},
		"50%":                    {l.Mutex("50%"), l.Mutex("50%", Parts("x"))},
		"50%41":                  {l.Mutex("50%41")},
		"a~b":                    {l.Mutex("a~b")},
		l.Mutex("50%", Parts("~x", "a|b", "")).Key():                             {l.Mutex("50%", Parts("~x", "a|b", ""))},
		l.Mutex("report", Parts(long)).Key():                                     {l.Mutex("report", Parts(long))},
		l.Mutex("report", Parts(strings.Repeat("y", 200))).Key():                 {l.Mutex("report", Parts(strings.Repeat("y", 200)))},
		inBraces(keytext.HashedKey("a secret of 16 b", l.prefix, "s", "a", "b")): {},
		"control":                     {l.Mutex("control"), l.Mutex("control", Parts("x"))},
		long[:len(long)-1]:            {l.Mutex(long[:len(long)-1]), l.Mutex(long[:len(long)-1], Parts("x"))},
		inBraces(l.Mutex(long).Key()): {l.Mutex(long)},
		"itunes:verify":               {l.Mutex("itunes:verify", Parts("1"))},
	} {
		pause(t, l, target, time.Time{}, "")
		for _, m := range locks {
			if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused || !err.Pause.appliesTo(m.Key()) {
				t.Errorf("%q: %s: %v, want paused", target, m.Key(), err)
			}
		}
		mustUnlock(t, mustTry(t, l.Mutex("reports")))
		mustUnlock(t, mustTry(t, l.Mutex("report-", Parts("acme"))))
		resume(t, l, target)
		for _, m := range locks {
			mustUnlock(t, mustTry(t, m))
		}
	}
	if list := l.Controls().inForce(); len(list) > 0 {
		t.Errorf("left: %v", list)
	}
}

func inBraces(key string) string {
	_, text, _ := strings.Cut(key, "{")
	return strings.TrimSuffix(text, "}")
}

// A lock whose name is that of the controls has a key of its own, and the controls are
// no lock.
func TestControls_keyOfTheirOwn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("control")
		pause(t, l, "report", time.Time{}, "")
		held := mustTry(t, m)
		mustNotTry(t, m)
		for info, err := range l.list(t.Context()) {
			if err != nil || info.Key != m.Key() {
				t.Errorf("List: %v, %v", info, err)
			}
		}
		if _, err := l.sweep(t.Context()); err != nil {
			t.Errorf("Sweep: %v", err)
		}
		if err := l.byKey(l.controls.keys[0]).err; err == nil {
			t.Error("the key of the controls passes for a lock's")
		}
		if err := l.byKey(m.Key()).err; err != nil {
			t.Errorf("ByKey: %v", err)
		}
		mustUnlock(t, held)
	})
}

// A leader is alone whatever the limit; nobody becomes the leader while it is paused.
func TestControls_lead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		setLimit(t, l, "scheduler", 5)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leads := make(chan int, 10)
		var wg sync.WaitGroup
		for i := range 2 {
			redistest.Go(&wg, func() {
				_ = l.Lead(ctx, "scheduler", func(ctx context.Context) error { leads <- i; <-ctx.Done(); return nil })
			})
		}
		come(t, leads, "a leader")
		waiting(t, l.Mutex("scheduler"), 1)
		select {
		case <-leads:
			t.Error("two leaders at once")
		default:
		}
		cancel()
		wg.Wait()
	})
}

// Each process logs a change, once, and tells OnControls.
func TestControls_logged(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	log, told := &lines{}, make(chan []Control, 10)
	prefix := ownPrefix(t)
	operator := newLocker(t, s.Client(t), prefix, owner("alice"))
	pause(t, operator, "report", time.Time{}, "repair")
	l := newLocker(t, s.Client(t), prefix, logTo(log), func(o *Options) {
		o.onControls = func(inForce []Control) { told <- inForce }
	})
	mustNotTry(t, l.Mutex("report"))
	if list := come(t, told, "OnControls"); len(list) != 1 || list[0].Target != "report" {
		t.Errorf("told of %v", list)
	}
	resume(t, operator, "report")
	if list := come(t, told, "OnControls"); len(list) != 0 {
		t.Errorf("told of %v", list)
	}
	redistest.Eventually(t, soon, func() bool { return strings.Contains(log.String(), "a control has ended") }, "a log line of the end")
	for part, want := range map[string]int{"a control is in force": 1, "target=report": 2, "by=alice": 1, "why=repair": 1, `"paused until"=resumed`: 1} {
		if n := strings.Count(log.String(), part); n != want {
			t.Errorf("%q stands %d times in the log, want %d:\n%s", part, n, want, log.String())
		}
	}
}

// The controls are in a slot of their own, and the entries of pauses that have ended go.
func TestControls_stored(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		rdb := s.Client(t)
		if s.Kind() == redistest.KindCluster {
			a, b := rdb.ClusterKeySlot(t.Context(), l.controls.keys[0]).Val(), rdb.ClusterKeySlot(t.Context(), l.Mutex("report").Key()).Val()
			if a == b {
				t.Errorf("controls and lock are both in slot %d", a)
			}
		}
		pause(t, l, "short", time.Now().Add(50*time.Millisecond), "")
		redistest.Eventually(t, soon, func() bool { return len(l.Controls().inForce()) == 0 }, "the end of the pause")
		pause(t, l, "long", time.Time{}, "")
		if fields := rdb.HKeys(t.Context(), l.controls.keys[0]).Val(); !slices.Equal(fields, []string{"long"}) {
			t.Errorf("the controls are %q", fields)
		}
	})
}

// A closed Locker says so.
func TestControls_closed(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), ownPrefix(t))
	pause(t, l, "report", time.Time{}, "")
	_ = l.Close()
	if err := l.Controls().Resume(t.Context(), "report"); !errors.Is(err, ErrClosed) {
		t.Errorf("Resume: %v, want ErrClosed", err)
	}
	if _, err := l.Controls().List(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("List: %v, want ErrClosed", err)
	}
}

// While Redis is away at the start nothing is taken: the lock may be paused. Later an
// outage leaves what was read last in force.
func TestControls_outage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix)
		pause(t, operator, "report", time.Time{}, "")
		hook := &redistest.FailHook{}
		rdb := s.Client(t)
		rdb.AddHook(hook)
		l := newLocker(t, rdb, prefix)
		m := l.Mutex("report")
		hook.Before(func(cmd redis.Cmder) error {
			if key, _ := cmd.Args()[3].(string); strings.HasSuffix(key, ":{control}") {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		})
		for _, other := range []*Lock{m, l.Mutex("other")} {
			if err := mustNotTry(t, other); !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), other.Key()) {
				t.Errorf("TryLock before the controls were read: %v, want ErrBackend with the key", err)
			}
		}
		hook.Before(nil)
		mustUnlock(t, mustTry(t, l.Mutex("other")))
		if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
			t.Errorf("TryLock: %v, want paused", err)
		}
		hook.Before(func(cmd redis.Cmder) error {
			if key, _ := cmd.Args()[3].(string); strings.HasSuffix(key, ":{control}") {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		})
		_ = l.obeyNow(t.Context())
		if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
			t.Errorf("TryLock while the controls cannot be read: %v, want paused", err)
		}
	})
}
