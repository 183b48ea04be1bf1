package lock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// TestForms runs tests of what the engine promises over the sorted set alone. Run by
// themselves they take mutexes as strings, where nobody waits.
func TestForms(t *testing.T) {
	t.Parallel()
	tests := oneCallTests()
	delete(tests, "KilledHolder") // it measures times; its locks are waited for, and so sorted sets
	for name, test := range tests {
		t.Run(name, test)
	}
	if !redistest.All() {
		return
	}
	for name, test := range map[string]func(*testing.T){
		"AskDeliveredLate":   TestAskDeliveredLate_isReleasedAgain,
		"FenceGrows":         TestRule11_FenceGrows,
		"LostAtTheDeadline":  TestRule09_LostAtTheLocalDeadline,
		"KeyOutlives":        TestRule12_KeyOutlivesItsEntries,
		"BreakAll":           TestBreakAll,
		"BreakDuringDo":      TestBreakDuringDo,
		"ByKey":              TestByKey,
		"Delete":             TestDelete,
		"List":               TestList,
		"UnlockAfterTheEnd":  TestUnlockAfterTheDeadline,
		"ShortStay":          TestRule08_ShortStayCostsTwoCalls,
		"HungRedis":          TestHungRedis_callsEndWithTheirContext,
		"QueuedByATransport": TestTransportThatQueuesReleasesWhatItSends,
		"CooldownFaults":     TestCooldownKeepsTheSlotForThatLong,
	} {
		t.Run(name, test)
	}
}

// wantForm holds the form in which m is stored: "string", "zset", or "none".
func wantForm(t *testing.T, m *Lock, want string) {
	t.Helper()
	if kind, err := raw(m).Type(t.Context(), m.Key()).Result(); kind != want || err != nil {
		t.Errorf("stored as %s, %v; want %s; %s", kind, err, want, dump(m))
	}
}

// A mutex that nobody waits for is one string that has the owner and the note in it, and
// lasts as long as the lease. A try in vain leaves it so. The first who waits widens it.
func TestForm_stringUntilSomebodyWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, others := newLocker(t, s.Client(t), owner("worker-1")), newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), TTL(20*time.Second), Note("default/7"))
		le := mustTry(t, m)
		value, err := raw(m).Get(t.Context(), m.Key()).Result()
		if err != nil || value != le.Token()+"|worker-1|default/7" {
			t.Fatalf("stored: %q, %v", value, err)
		}
		if left := raw(m).PTTL(t.Context(), m.Key()).Val(); left > 20*time.Second || left < time.Second {
			t.Errorf("the key lasts %s", left)
		}
		busy := mustBeBusy(t, handle(others, m))
		if busy.Holder != "worker-1" || busy.Note != "default/7" || busy.ExpiresIn > 20*time.Second || busy.ExpiresIn < time.Second {
			t.Errorf("busy: %+v", busy)
		}
		wantForm(t, m, "string")
		before, _ := holds(t, le)
		w := inLine(t, handle(others, m), 1)
		wantForm(t, m, "zset")
		// The deadline of the string is read with two commands, that of the set is stored.
		if after, ok := holds(t, le); !ok || after.Sub(before).Abs() > 5*time.Second {
			t.Errorf("the holder's deadline moved from %v to %v; %s", before, after, dump(m))
		}
		mustUnlock(t, le)
		mustUnlock(t, w.got(t))
		free(t, m, soon)
	})
}

// How long a lock is taken is told from when it was taken, also after the first who waits
// has widened it.
func TestForm_tellsSinceWhenItIsTaken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for _, ttl := range []time.Duration{20 * time.Second, 2 * time.Minute} {
			m := l.Mutex(redistest.Name(t)+ttl.String(), TTL(ttl), Note("holder"), onePerNote())
			before := time.Now()
			le := mustTry(t, m)
			taken := time.Now()
			redistest.Eventually(t, soon, func() bool { return time.Since(taken) > 300*time.Millisecond }, "some time")
			tells := func(what string, told time.Duration) {
				t.Helper()
				if told < 290*time.Millisecond || told > time.Since(before)+10*time.Millisecond {
					t.Errorf("%s, TTL %s: taken for %s, want between 300ms and %s; %s", what, ttl, told, time.Since(before), dump(m))
				}
			}
			granted := func() time.Duration {
				info, err := m.inspectAll(t.Context())
				redistest.Must(t, err)
				return info.Granted
			}
			tells("a string", granted())
			for _, note := range []string{"first", "second"} {
				_, err := handle(l, m, Note(note)).lockOrPark(t.Context(), closedYield)
				tells("parked "+note, wantBusy(t, err).TakenFor)
				tells("widened", granted())
				redistest.Must(t, le.Extend(t.Context(), ttl))
			}
			mustUnlock(t, le)
		}
	})
}

// What needs more than a string is a sorted set from the start.
func TestForm_setFromTheStart(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for _, m := range []*Lock{
			l.Semaphore(redistest.Name(t)+"2", 2),
			l.Mutex(redistest.Name(t)+"rate", Rate(100, time.Second, 100)),
		} {
			le := mustTry(t, m)
			wantForm(t, m, "zset")
			mustUnlock(t, le)
		}
		// A Transport that runs scripts and nothing else.
		scripts := newLocker(t, s.Client(t), func(o *Options) { o.Transport = struct{ Transport }{s.Client(t)} })
		m := scripts.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		wantForm(t, m, "zset")
		mustUnlock(t, le)
	})
	t.Run("MinReplicas", func(t *testing.T) {
		t.Parallel()
		master := redistest.StartReal(t)
		redistest.StartReplica(t, master)
		m := newLocker(t, master.Client(t), minReplicas(1)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		wantForm(t, m, "zset")
		mustUnlock(t, le)
	})
}

// For a key that was contended lately the Locker sends the ask without a SET before it, so a
// contended turn costs two commands. After a while it sends the SET first again.
func TestForm_contendedKeyIsAskedForWithoutASet(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		commands := newTap(rdb)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t))
		warm(t, m) // a script that is not loaded is sent twice
		take := func(what string, sets, asks int) {
			t.Helper()
			commands.reset()
			le, err := m.TryLock(t.Context())
			if err == nil {
				mustUnlock(t, le)
			}
			commands.mu.Lock()
			defer commands.mu.Unlock()
			if commands.calls["set"] != sets || commands.calls["ask"] != asks {
				t.Errorf("%s: %v; want %d SETs and %d asks", what, commands.calls, sets, asks)
			}
		}
		take("free", 1, 0)
		held := mustTry(t, handle(newLocker(t, s.Client(t)), m))
		take("held", 1, 1)
		// The clock of the table stands still: the machine may be slow.
		l.contended.slot(m.Key()).Store(l.contended.tick() + 1<<20)
		l.contended.began = l.contended.began.Add(-(1 << 20) * contendedTick)
		take("held, and contended lately", 0, 1)
		mustUnlock(t, held)
		take("free, and contended lately", 0, 1)
		l.contended.began = l.contended.began.Add(-2 * contendedFor)
		take("free, and not contended lately", 1, 0)
	})
}

// The table of keys that were contended lately does not grow, and forgets by itself.
func TestContendedKeys_forgetAndDoNotGrow(t *testing.T) {
	t.Parallel()
	k := newContendedKeys()
	for i := range 100_000 {
		k.note(fmt.Sprint("key ", i))
	}
	if k.note("key"); !k.isContended("key") {
		t.Error("a key that was noted is not known")
	}
	k.began = k.began.Add(-contendedFor - contendedTick)
	for i := range 100_000 {
		if key := fmt.Sprint("key ", i); k.isContended(key) {
			t.Fatalf("%q is known after %s", key, contendedFor)
		}
	}
}

// A lease counts from before its SET was sent: with a slow network it ends here no later
// than in Redis.
func TestForm_deadlineCountsFromBeforeTheSet(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t), TTL(30*time.Second), NoRenew())
		mustUnlock(t, mustTry(t, m)) // connected
		held := p.Hold(isTake(m), 1)
		a := lockBeside(t, m)
		redistest.Eventually(t, soon, func() bool { return held.Count() == 1 }, "the SET under way")
		sent := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(sent) > 300*time.Millisecond }, "some time")
		held.Release()
		le := a.got(t)
		wantForm(t, handle(near, m), "string")
		if end := sent.Add(30*time.Second - m.marginOf(m.ttl)); le.Deadline().After(end) {
			t.Errorf("the lease ends %s after its SET was sent, want at most 30s", le.Deadline().Sub(sent))
		}
		mustUnlock(t, le)
	})
}

// A holder that dies as a string is succeeded at its deadline, by one who tries and by one
// who has widened its lock meanwhile.
func TestForm_deadHolderIsSucceeded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, succeed := range map[string]func(*Lock) *Lease{
			"tries": func(m *Lock) (le *Lease) {
				redistest.Eventually(t, soon, func() bool {
					var err error
					le, err = m.TryLock(t.Context())
					return err == nil
				}, "the lock")
				return le
			},
			"waits": func(m *Lock) *Lease { return lockBeside(t, m).got(t) },
		} {
			// A Locker each: one that met a contended key may take another for contended, too.
			m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t)+name, TTL(time.Second), NoRenew())
			dead := mustTry(t, m)
			next := succeed(handle(newLocker(t, s.Client(t)), m, TTL(time.Minute)))
			if dead.Held() && time.Until(dead.Deadline()) > expiryError(s) {
				t.Errorf("%s: succeeded while the first still believes in its lease", name)
			}
			redistest.Eventually(t, soon, func() bool { return !dead.Held() }, "the end of the first lease")
			if err := dead.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("%s: Unlock of a lease that has ended: %v", name, err)
			}
			mustUnlock(t, next)
		}
	})
}

// Whatever operators do, they do to a string as well.
func TestForm_operators(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), owner("holder"))
		m := l.Mutex(redistest.Name(t), Note("note"), TTL(time.Minute))
		other := handle(newLocker(t, s.Client(t)), m)
		le := mustTry(t, m)
		info, err := other.inspectAll(t.Context())
		if err != nil || info.Held != 1 || info.Waiting+info.Parked+info.Called != 0 || len(info.Holders) != 1 ||
			info.Holders[0].Token != le.Token() || info.Holders[0].ExpiresIn > time.Minute+time.Second || info.Holders[0].ExpiresIn < time.Second {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
		if line, err := other.listLine(t.Context(), inside.Info{}, 10); len(line) != 0 || err != nil {
			t.Errorf("Line: %v, %v", line, err)
		}
		if ok, err := other.existsNow(t.Context()); !ok || err != nil {
			t.Errorf("Exists: %t, %v", ok, err)
		}
		if n, err := handle(l, m).Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available: %d, %v", n, err)
		}
		checkLine(other) // a look after parked work
		wantForm(t, m, "string")
		if ok, err := other.Break(t.Context(), "another"); ok || err != nil || !le.Held() {
			t.Errorf("Break of another token: %t, %v", ok, err)
		}
		if ok, err := other.Break(t.Context(), le.Token()); !ok || err != nil {
			t.Errorf("Break: %t, %v", ok, err)
		}
		free(t, m, 0)
		le = mustTry(t, m)
		if n, err := other.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
		free(t, m, 0)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of what was broken: %v", err)
		}
	})
}

// One who may hold beside others joins a mutex's holder: callers differ in N while a new
// version is deployed.
func TestForm_semaphoreMeetsAString(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		one, two := l.Mutex(name), l.Semaphore(name, 2)
		first := mustTry(t, one)
		second := mustTry(t, two)
		mustBeBusy(t, two)
		mustBeBusy(t, one)
		mustUnlock(t, first)
		mustUnlock(t, second)
		free(t, one, soon)
	})
}

// A cooldown keeps the slot of what was a string.
func TestForm_cooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		wantForm(t, m, "string")
		redistest.Must(t, le.Cooldown(t.Context(), time.Minute))
		if busy := mustBeBusy(t, m); busy.Reason != "cooldown" || busy.ExpiresIn > time.Minute+time.Second || busy.ExpiresIn < time.Minute-soon {
			t.Errorf("busy: %+v", busy)
		}
	})
}

// A holder that closes the gate widens its lock; it goes on, and nobody else starts.
func TestForm_hold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		wantForm(t, m, "string")
		redistest.Must(t, le.closeGate(t.Context(), time.Minute))
		mustUnlock(t, le)
		if busy := mustBeBusy(t, m); busy.Reason != ReasonClosed {
			t.Errorf("busy: %+v", busy)
		}
		stranger := handle(newLocker(t, s.Client(t)), m)
		if _, err := m.BreakAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		other := mustTry(t, stranger)
		if err := le.closeGate(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("CloseGate by one that has released: %v", err)
		}
		mustUnlock(t, other)
	})
}
