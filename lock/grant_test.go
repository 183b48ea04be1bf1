package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// A grant lasts min(TTL, 3 s) of the waiter's TTL, whatever the releaser's.
func TestRule06_GrantLastsG(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for _, c := range []struct{ releaser, waiter, want time.Duration }{
			{inside.MinTTL, time.Minute, maxGrant},
			{inside.MinTTL, 2 * time.Second, 2 * time.Second},
			{time.Minute, 700 * time.Millisecond, 700 * time.Millisecond},
			{time.Minute, maxGrant, maxGrant},
		} {
			m := l.Mutex(redistest.Name(t), TTL(c.releaser))
			holder, waiter := m.newLease(), handle(l, m, TTL(c.waiter)).newLease()
			mustAsk(t, m, holder, turn.EntryLifetime)
			mustAsk(t, waiter.lock, waiter, turn.EntryLifetime)
			before := serverNow(t, m)
			if _, held, err := holder.release(t.Context()); !held && err == nil {
				continue // a busy machine: the 100 ms have passed
			} else if err != nil {
				t.Fatal(err)
			}
			after := serverNow(t, m)
			audit(t, m)
			deadline, ok := holds(t, waiter)
			if !ok || deadline.Before(before.Add(c.want-time.Millisecond)) || deadline.After(after.Add(c.want+time.Millisecond)) {
				t.Errorf("released with TTL %s to a waiter with TTL %s: granted for %s to %s, want %s; %s", c.releaser, c.waiter,
					deadline.Sub(after), deadline.Sub(before), c.want, dump(m))
			}
		}
	})
}

// Renewal takes a granted lease to its full TTL, a third of G after the ask.
func TestRule06_GrantedLeaseIsRenewedToItsFullTTL(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), TTL(time.Minute))
		held := mustTry(t, m)
		w := inLine(t, m, 1)
		mustUnlock(t, held)
		le := w.got(t)
		redistest.Eventually(t, soon, func() bool {
			deadline, ok := holds(t, le)
			if !ok {
				t.Fatalf("the lease is gone; %s", dump(m))
			}
			return deadline.Sub(serverNow(t, m)) > 50*time.Second
		}, "renewal to the full TTL")
		redistest.Eventually(t, soon, func() bool { return time.Until(le.Deadline()) > 40*time.Second }, "a later local deadline")
		if left := time.Until(le.Deadline()); left > time.Minute {
			t.Errorf("the local deadline is in %s, want about a minute", left)
		}
		mustUnlock(t, le)
	})
}

// A lease that is not renewed lasts its TTL all the same when it was granted.
func TestRule06_GrantedLeaseWithoutRenewalLastsItsTTL(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), TTL(time.Minute), NoRenew())
		held := mustTry(t, m)
		w := inLine(t, l.Mutex(m.name, TTL(time.Minute), NoRenew()), 1)
		mustUnlock(t, held)
		le := w.got(t)
		if left := time.Until(le.Deadline()); left < 40*time.Second {
			t.Errorf("the lease lasts %s, want about a minute", left)
		}
		if deadline, _ := holds(t, le); deadline.Sub(serverNow(t, m)) < 40*time.Second {
			t.Errorf("the lease is stored for less than its TTL; %s", dump(m))
		}
	})
}

// What a dead process left in line is dropped by the release that frees the slot; an
// entry lives through at least three refresh intervals.
func TestRule06_StaleEntriesAreDropped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t))
		holder, waiter := m.newLease(), m.newLease()
		mustAsk(t, m, holder, turn.EntryLifetime)
		const n = 150
		var dead []redis.Z
		ms := float64(serverNow(t, m).UnixMilli())
		for i := range n {
			id := fmt.Sprintf("gone.3000.%d|o|", i)
			dead = append(dead, redis.Z{Member: "e:" + id, Score: 2e15 + float64(i)}, redis.Z{Member: "d:" + id, Score: -(ms - 1)})
		}
		redistest.Must(t, raw(m).ZAdd(t.Context(), m.Key(), dead...).Err())
		mustAsk(t, m, waiter, time.Minute) // however slow the machine is
		if e, d := band(t, m, "e:"), band(t, m, "d:"); e != n+1 || d != n+1 {
			t.Fatalf("%d entries, %d times, want %d: nothing is dropped while nothing is free", e, d, n+1)
		}
		if _, err := l.conn.Run(t.Context(), wire.ReleaseScript, m.keys, []any{holder.body}); err != nil {
			t.Fatal(err)
		}
		if _, ok := holds(t, waiter); !ok || band(t, m, "e:") != 0 || band(t, m, "d:") != 0 {
			t.Fatalf("the release did not grant to the live waiter; %s", dump(m))
		}
	})
}

// A live waiter behind them gets the lock by itself.
func TestRule06_WaiterBehindStaleEntries(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := asksAlways(newLocker(t, s.Client(t)))
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		var dead []redis.Z
		for i := range 100 {
			id := fmt.Sprintf("gone.3000.%d|o|", i)
			dead = append(dead, redis.Z{Member: "e:" + id, Score: 2e15 + float64(i)}, redis.Z{Member: "d:" + id, Score: -1e12})
		}
		redistest.Must(t, raw(m).ZAdd(t.Context(), m.Key(), dead...).Err())
		w := inLine(t, m, len(dead)/2+1)
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
		free(t, m, soon)
	})
}

func TestRule06_EntriesLiveThroughThreeRefreshes(t *testing.T) {
	t.Parallel()
	if turn.EntryLifetime < 3*turn.RefreshEvery {
		t.Errorf("entries are stale after %s, refreshed every %s: with less than three a live waiter starves", turn.EntryLifetime, turn.RefreshEvery)
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		mustTry(t, m)
		w := m.newLease()
		mustAsk(t, m, w, turn.EntryLifetime)
		first := -stored(t, m)["d:"+w.body]
		ticket := stored(t, m)["e:"+w.body]
		now := serverNow(t, m)
		if left := time.UnixMilli(int64(first)).Sub(now); left > turn.EntryLifetime || left < turn.EntryLifetime-2*time.Second {
			t.Errorf("the entry is stale in %s, want %s", left, turn.EntryLifetime)
		}
		// A refresh keeps the ticket and moves the time.
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).Sub(now) > 5*time.Millisecond }, "some time")
		mustAsk(t, m, w, turn.EntryLifetime)
		if again := -stored(t, m)["d:"+w.body]; again <= first || stored(t, m)["e:"+w.body] != ticket {
			t.Errorf("a refresh moved the time from %f to %f, the ticket from %f to %f", first, again, ticket, stored(t, m)["e:"+w.body])
		}
	})
}
