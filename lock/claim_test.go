package lock

import (
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func mustClaim(t *testing.T, c claims.Claim, holder, instead string, length time.Duration) inside.Claimed {
	t.Helper()
	got, err := c.Take(t.Context(), holder, instead, length)
	redistest.Must(t, err)
	return got
}

func mustKeep(t *testing.T, c claims.Claim, holder, next string, length time.Duration) bool {
	t.Helper()
	keep := func() (bool, error) { return c.PassOn(t.Context(), holder, next, false) }
	if next == holder {
		keep = func() (bool, error) { return c.Keep(t.Context(), holder, length) }
	}
	kept, err := keep()
	redistest.Must(t, err)
	return kept
}

// One of many who claim at once gets it; the others are told who.
func TestClaim_one(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		c := l.claim(l.Mutex(redistest.Name(t)).Key())
		const claimers = 8
		var wg sync.WaitGroup
		got := make([]inside.Claimed, claimers)
		for i := range got {
			redistest.Go(&wg, func() {
				got[i], _ = c.Take(t.Context(), string(rune('a'+i)), "", time.Minute)
			})
		}
		wg.Wait()
		winner, own := got[0].Holder, 0
		for i, claimed := range got {
			if claimed.Holder != winner || claimed.Phase != inside.PhaseEnqueuing {
				t.Errorf("claimer %d is told %+v, the first one %q", i, claimed, winner)
			}
			if claimed.Holder == string(rune('a'+i)) {
				own++
			}
		}
		if own != 1 || winner == "" {
			t.Errorf("%d have the claim; it is %q's", own, winner)
		}
	})
}

func TestClaim_life(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		c := l.claim(l.Mutex(redistest.Name(t)).Key())
		drop := func(holder string) bool {
			t.Helper()
			dropped, err := c.Drop(t.Context(), holder)
			redistest.Must(t, err)
			return dropped
		}

		if drop("a") || mustKeep(t, c, "a", "a", time.Minute) {
			t.Error("nothing was claimed, and yet dropped or kept")
		}
		mustClaim(t, c, "a", "", time.Minute)
		if again := mustClaim(t, c, "a", "", time.Minute); again.Holder != "a" {
			t.Errorf("a claim repeated is %+v", again)
		}
		if drop("b") || mustKeep(t, c, "b", "c", time.Minute) {
			t.Error("another's claim was dropped or kept")
		}
		if got := mustClaim(t, c, "b", "x", time.Minute); got.Holder != "a" || got.Phase != inside.PhaseEnqueuing {
			t.Errorf("beside a's claim stands %+v", got)
		}
		// The age, which Keep leaves as it is, and the confirmation.
		redistest.Eventually(t, soon, func() bool {
			return mustClaim(t, c, "b", "", time.Minute).Age >= 20*time.Millisecond
		}, "an age")
		if !mustKeep(t, c, "a", "b", 0) || !mustKeep(t, c, "a", "b", 0) { // the second as if resent
			t.Error("it was not handed on")
		}
		if got := mustClaim(t, c, "c", "", time.Minute); got.Holder != "b" || got.Phase != inside.PhaseEnqueued || got.Age < 20*time.Millisecond {
			t.Errorf("after it was handed on: %+v", got)
		}
		// Taken over, it is a new one.
		if got := mustClaim(t, c, "c", "b", time.Minute); got.Holder != "c" || got.Phase != inside.PhaseEnqueuing {
			t.Errorf("instead of b's: %+v", got)
		}
		if got := mustClaim(t, c, "d", "", time.Minute); got.Holder != "c" || got.Phase != inside.PhaseEnqueuing || got.Age > 15*time.Second {
			t.Errorf("after it was taken over: %+v", got)
		}
		if ttl := raw(l.Mutex("any")).PTTL(t.Context(), c.Key()).Val(); ttl <= time.Minute/2 || ttl > time.Minute+2*time.Second {
			t.Errorf("it expires in %s", ttl)
		}
		if !drop("c") || drop("c") {
			t.Error("it is to be dropped, once")
		}
	})
}

// The stored deadline ends a claim, whether or not Redis has removed the key.
func TestClaim_deadline(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		c := l.claim(l.Mutex(redistest.Name(t)).Key())
		mustClaim(t, c, "a", "", 2*time.Second)
		if !mustKeep(t, c, "a", "a", 2100*time.Millisecond) {
			t.Error("it was not kept")
		}
		began := time.Now()
		redistest.Eventually(t, soon, func() bool {
			return mustClaim(t, c, "b", "", time.Minute).Holder == "b"
		}, "the end of a's claim")
		if took := time.Since(began); took < time.Second {
			t.Errorf("it ended after %s", took)
		}
		if mustKeep(t, c, "a", "a", time.Minute) {
			t.Error("a kept what b has")
		}
	})
}

func TestClaim_badInput(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	c := l.claim(l.Mutex(redistest.Name(t)).Key())
	for name, err := range map[string]error{
		"no holder":   second(c.Take(t.Context(), "", "", time.Minute)),
		"no length":   second(c.Take(t.Context(), "a", "", 0)),
		"too long":    second(c.Take(t.Context(), "a", "", inside.MaxTTL+1)),
		"no next":     second(c.PassOn(t.Context(), "a", "", false)),
		"below zero":  second(c.Keep(t.Context(), "a", -1)),
		"kept longer": second(c.Keep(t.Context(), "a", inside.MaxTTL+1)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if exists := raw(l.Mutex("any")).Exists(t.Context(), c.Key()).Val(); exists != 0 {
		t.Error("something was claimed")
	}
}

func second[T any](_ T, err error) error { return err }

// A claim and its lock are beside the lock, in the same slot, and not in its way.
func TestClaim_besideTheLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), Parts("a}b", "{c"))
		c := l.claim(m.Key())
		mustClaim(t, c, "a", "", time.Minute)
		changes := insider{}.ClaimLock(l, m.Key())
		change := mustTry(t, changes)
		mustUnlock(t, mustTry(t, m))
		slot := func(key string) int64 { return raw(m).ClusterKeySlot(t.Context(), key).Val() }
		if s.Kind() == redistest.KindCluster && (slot(c.Key()) != slot(m.Key()) || slot(changes.Key()) != slot(m.Key())) {
			t.Error("they are in different slots")
		}
		mustUnlock(t, change)
	})
}

// mustStart notes a phase, and returns whether the task may go on.
func mustStart(t *testing.T, c claims.Claim, holder string, phase inside.Phase, ends bool) bool {
	t.Helper()
	may, err := c.Start(t.Context(), holder, phase, ends, time.Minute)
	redistest.Must(t, err)
	return may
}

func mustPassOn(t *testing.T, c claims.Claim, holder, next string, stale bool) bool {
	t.Helper()
	passed, err := c.PassOn(t.Context(), holder, next, stale)
	redistest.Must(t, err)
	return passed
}

// The start of a handler and the passing on of a claim exclude each other: what comes first counts,
// also when it is sent again.
func TestClaim_startOrPassedOn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, ends := range []bool{true, false} {
			l := newLocker(t, s.Client(t))
			c := l.claim(l.Mutex(redistest.Name(t)).Key())
			holder := func() (string, inside.Phase) {
				got := mustClaim(t, c, "looks", "", time.Minute)
				_, _ = c.Drop(t.Context(), "looks")
				return got.Holder, got.Phase
			}
			const first, second, third, other = "q/k:n.1.0", "q/k:n.1.1", "q/k:n.1.2", "q/k:n.2.0"
			if !mustStart(t, c, first, inside.PhaseBegun, ends) {
				t.Error("without a claim a task may not begin")
			}
			// Begun first.
			mustClaim(t, c, first, "", time.Minute)
			for range 2 {
				if !mustStart(t, c, first, inside.PhaseWaiting, ends) || !mustStart(t, c, first, inside.PhaseBegun, ends) {
					t.Error("its holder may not begin")
				}
			}
			if mustPassOn(t, c, first, second, true) {
				t.Error("the claim of a task that has begun was passed on")
			}
			if got, phase := holder(); ends && got != "looks" || !ends && (got != first || phase != inside.PhaseBegun) {
				t.Errorf("ends %v: begun, it is %s's, %s", ends, got, phase)
			}
			if !mustStart(t, c, first, inside.PhaseWaiting, ends) || !mustStart(t, c, first, inside.PhaseBegun, ends) {
				t.Error("its next attempt may not begin")
			}
			// Passed on first.
			_, _ = c.Drop(t.Context(), first)
			mustClaim(t, c, first, "", time.Minute)
			mustStart(t, c, first, inside.PhaseWaiting, ends)
			for range 2 {
				if !mustPassOn(t, c, first, second, true) || !mustPassOn(t, c, first, second, true) {
					t.Error("it was not passed on")
				}
				if mustStart(t, c, first, inside.PhaseWaiting, ends) || mustStart(t, c, first, inside.PhaseBegun, ends) {
					t.Error("a superseded task may begin")
				}
			}
			if got, phase := holder(); got != second || phase != inside.PhaseEnqueued {
				t.Errorf("passed on, it is %s's, %s", got, phase)
			}
			if !mustStart(t, c, second, inside.PhaseBegun, ends) {
				t.Error("the next task may not begin")
			}
			if got := mustStart(t, c, third, inside.PhaseBegun, ends); got != ends {
				t.Errorf("ends %v: a task that was not accepted before another one began may begin: %v", ends, got)
			}
			// The claim knows the stale task until it has ended, also in the hands of the next.
			mustClaim(t, c, other, second, time.Minute)
			if mustStart(t, c, first, inside.PhaseBegun, ends) || !mustStart(t, c, second, inside.PhaseBegun, ends) {
				t.Error("the stale task may begin, or the one that has begun may not")
			}
			mustStart(t, c, other, inside.PhaseBegun, ends)
			if got, _ := holder(); got != other {
				t.Errorf("while a stale task is left the claim is %s's", got)
			}
			mustStart(t, c, first, inside.PhaseEnded, ends)
			if got, _ := holder(); ends && got != "looks" || !ends && got != other {
				t.Errorf("ends %v: after the end of the stale task the claim is %s's", ends, got)
			}
		}
	})
}

// A task whose producer died before it passed the claim on takes it over when it begins.
func TestClaim_startOfATaskThatWasNotAccepted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, ends := range []bool{true, false} {
			l := newLocker(t, s.Client(t))
			c := l.claim(l.Mutex(redistest.Name(t)).Key())
			mustClaim(t, c, "q/k:n.1.9", "", time.Minute)
			if !mustStart(t, c, "q/k:n.1.10", inside.PhaseWaiting, ends) || !mustStart(t, c, "q/k:n.1.10", inside.PhaseBegun, ends) {
				t.Error("it may not begin")
			}
			if mustStart(t, c, "q/k:n.1.9", inside.PhaseBegun, ends) {
				t.Error("both may begin")
			}
			if mustPassOn(t, c, "q/k:n.1.9", "q/k:n.1.10", false) {
				t.Error("the claim of a task that has begun was passed on")
			}
		}
	})
}

// Ended shortens the claim, and never prolongs it.
func TestClaim_ended(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		c := l.claim(l.Mutex(redistest.Name(t)).Key())
		mustClaim(t, c, "a", "", time.Hour)
		for _, length := range []time.Duration{time.Minute, time.Hour} {
			if _, err := c.Start(t.Context(), "a", inside.PhaseEnded, false, length); err != nil {
				t.Fatal(err)
			}
			if ttl := raw(l.Mutex("any")).PTTL(t.Context(), c.Key()).Val(); ttl <= time.Minute/2 || ttl > time.Minute+2*time.Second {
				t.Errorf("it expires in %s", ttl)
			}
		}
		if got := mustClaim(t, c, "b", "", time.Minute); got.Holder != "a" || got.Phase != inside.PhaseEnqueuing {
			t.Errorf("there stands %+v", got)
		}
	})
}
