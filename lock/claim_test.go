package lock

import (
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func mustClaim(t *testing.T, c *claim, holder, instead string, length time.Duration) inside.Claimed {
	t.Helper()
	got, err := c.Take(t.Context(), holder, instead, length)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func mustKeep(t *testing.T, c *claim, holder, next string, length time.Duration) bool {
	t.Helper()
	kept, err := c.Keep(t.Context(), holder, next, length)
	if err != nil {
		t.Fatal(err)
	}
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
			if claimed.Holder != winner || claimed.Confirmed {
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
			if err != nil {
				t.Fatal(err)
			}
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
		if got := mustClaim(t, c, "b", "x", time.Minute); got.Holder != "a" || got.Confirmed {
			t.Errorf("beside a's claim stands %+v", got)
		}
		// The age, which Keep leaves as it is, and the confirmation.
		redistest.Eventually(t, soon, func() bool {
			return mustClaim(t, c, "b", "", time.Minute).Age >= 20*time.Millisecond
		}, "an age")
		if !mustKeep(t, c, "a", "b", 0) || !mustKeep(t, c, "a", "b", 0) { // the second as if resent
			t.Error("it was not handed on")
		}
		if got := mustClaim(t, c, "c", "", time.Minute); got.Holder != "b" || !got.Confirmed || got.Age < 20*time.Millisecond {
			t.Errorf("after it was handed on: %+v", got)
		}
		// Taken over, it is a new one.
		if got := mustClaim(t, c, "c", "b", time.Minute); got.Holder != "c" || got.Confirmed {
			t.Errorf("instead of b's: %+v", got)
		}
		if got := mustClaim(t, c, "d", "", time.Minute); got.Holder != "c" || got.Confirmed || got.Age > 15*time.Second {
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

// A claim that was set by the plain command is one like the others.
func TestClaim_takeFree(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		c := l.claim(l.Mutex(redistest.Name(t)).Key())
		free := func(holder string) bool {
			t.Helper()
			taken, err := c.TakeFree(t.Context(), holder, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return taken
		}
		if !free("a") || free("a") || free("b") {
			t.Error("it is to be taken once")
		}
		if ttl := raw(l.Mutex("any")).PTTL(t.Context(), c.Key()).Val(); ttl <= time.Minute/2 || ttl > time.Minute+time.Second {
			t.Errorf("it expires in %s", ttl)
		}
		redistest.Eventually(t, soon, func() bool {
			got := mustClaim(t, c, "b", "", time.Minute)
			if got.Holder != "a" || got.Confirmed || got.Age > soon {
				t.Fatalf("there stands %+v", got)
			}
			return got.Age >= 20*time.Millisecond
		}, "an age")
		if !mustKeep(t, c, "a", "b", 0) || mustClaim(t, c, "c", "", time.Minute).Holder != "b" {
			t.Error("it was not handed on")
		}
		if dropped, err := c.Drop(t.Context(), "b"); !dropped || err != nil || !free("c") {
			t.Error("it was not dropped", err)
		}
		if !mustKeep(t, c, "c", "c", time.Hour) {
			t.Error("it was not kept")
		}
		if ttl := raw(l.Mutex("any")).PTTL(t.Context(), c.Key()).Val(); ttl < 50*time.Minute {
			t.Errorf("kept for an hour, it expires in %s", ttl)
		}
		// What has gone of its TTL is its age.
		if s.Kind() != redistest.KindMini {
			if err := raw(l.Mutex("any")).Set(t.Context(), c.Key(), "0 60000 enqueuing a", 21*time.Second).Err(); err != nil {
				t.Fatal(err)
			}
			if got := mustClaim(t, c, "b", "", time.Minute); got.Holder != "a" || got.Age < 40*time.Second || got.Age > 41*time.Second+soon {
				t.Errorf("after 40s: %+v", got)
			}
		}
	})
}

// The stored deadline ends a claim, whether or not Redis has removed the key.
func TestClaim_deadline(t *testing.T) {
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
		"no holder":       second(c.Take(t.Context(), "", "", time.Minute)),
		"no length":       second(c.Take(t.Context(), "a", "", 0)),
		"too long":        second(c.Take(t.Context(), "a", "", inside.MaxTTL+1)),
		"free, no holder": second(c.TakeFree(t.Context(), "", time.Minute)),
		"free, no length": second(c.TakeFree(t.Context(), "a", 0)),
		"no next":         second(c.Keep(t.Context(), "a", "", 0)),
		"below zero":      second(c.Keep(t.Context(), "a", "b", -1)),
		"kept longer":     second(c.Keep(t.Context(), "a", "b", inside.MaxTTL+1)),
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
		change := mustTry(t, c.Lock())
		mustUnlock(t, mustTry(t, m))
		slot := func(key string) int64 { return raw(m).ClusterKeySlot(t.Context(), key).Val() }
		if s.Kind() == redistest.KindCluster && (slot(c.Key()) != slot(m.Key()) || slot(c.Lock().Key()) != slot(m.Key())) {
			t.Error("they are in different slots")
		}
		mustUnlock(t, change)
	})
}
