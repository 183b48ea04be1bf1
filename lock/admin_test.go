package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// listening makes l hear its channel: somebody waits there, for another lock.
func listening(t *testing.T, l *Locker) {
	t.Helper()
	m := l.Mutex(redistest.Name(t))
	mustTry(t, m)
	inLine(t, m, 1)
	heard(t, m)
}

// endsWithin waits for ctx to end, and wants the cause ErrLost.
func endsWithin(t *testing.T, ctx context.Context, within time.Duration) {
	t.Helper()
	select {
	case <-ctx.Done():
		if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) {
			t.Errorf("the context ended with cause %v, want ErrLost", cause)
		}
	case <-time.After(within):
		t.Errorf("the context has not ended within %s", within)
	}
}

func TestBreakOneOfSeveral(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b, c := newLocker(t, s.Client(t)), newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Semaphore(redistest.Name(t), 3, TTL(time.Minute))
		broken, kept, foreign := mustTry(t, m), mustTry(t, m), mustTry(t, handle(b, m))
		ctx, keptCtx, foreignCtx := broken.Bind(t.Context()), kept.Bind(t.Context()), foreign.Bind(t.Context())
		listening(t, a)
		w := inLine(t, handle(c, m), 1)
		calm(t, c, 1)
		second := inLine(t, handle(b, m), 2)

		if ok, err := handle(b, m).Break(t.Context(), broken.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		audit(t, m)
		// In the same script, and told at once: the next renewal is 20 s away.
		if n, _ := band(t, m, "h:"), band(t, m, "e:"); n != 3 {
			t.Errorf("%d holders after a Break with two in line, want 3; %s", n, dump(m))
		}
		w.got(t)
		endsWithin(t, ctx, 10*time.Second)
		if broken.Held() || !kept.Held() || !foreign.Held() || keptCtx.Err() != nil || foreignCtx.Err() != nil || !second.pending() {
			t.Error("Break of one hit others")
		}

		// It is over, and its successor is left alone.
		if err := broken.Extend(t.Context(), time.Hour); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend of a broken lease: %v, want ErrNotHeld", err)
		}
		if err := broken.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of a broken lease: %v, want ErrNotHeld", err)
		}
		if n := band(t, m, "h:"); n != 3 || !second.pending() {
			t.Errorf("Unlock of a broken lease left %d holders, want 3; %s", n, dump(m))
		}
		if ok, err := m.Break(t.Context(), broken.Token()); ok || err != nil {
			t.Errorf("second Break: %v, %v", ok, err)
		}
	})
}

func TestBreakOfNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		if ok, err := m.Break(t.Context(), "nobody.100.1"); ok || err != nil {
			t.Errorf("Break of an idle lock: %v, %v", ok, err)
		}
		if n, err := m.BreakAll(t.Context()); n != 0 || err != nil {
			t.Errorf("BreakAll of an idle lock: %d, %v", n, err)
		}
		le := mustTry(t, m)
		for _, token := range []string{"nobody.100.1", le.Token() + "1", le.Token()[:10], "%", "*"} {
			if ok, err := m.Break(t.Context(), token); ok || err != nil {
				t.Errorf("Break(%q): %v, %v", token, ok, err)
			}
		}
		if ok, err := m.Break(t.Context(), ""); ok || err == nil {
			t.Errorf("Break without a token: %v, %v; want an error", ok, err)
		}
		if _, ok := holds(t, le); !ok {
			t.Errorf("a Break of others took the lock; %s", dump(m))
		}
		mustUnlock(t, le)

		// Past its deadline it is no holder any more.
		expired := handle(m.locker, m, TTL(inside.MinTTL), NoRenew()).newLease()
		mustAsk(t, expired.lock, expired, 0)
		deadline, _ := holds(t, expired)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(deadline) }, "the deadline")
		if ok, err := m.Break(t.Context(), expired.Token()); ok || err != nil {
			t.Errorf("Break of an expired holder: %v, %v", ok, err)
		}
	})
}

// A holder in the Locker that breaks its lock is told before the call returns,
// though nobody waits and its Locker is not subscribed.
func TestBreakTellsTheOwnLockerAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		told := func(what string, le *Lease, end func(context.Context) error) {
			t.Helper()
			ctx := le.Bind(t.Context())
			if err := end(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !errors.Is(context.Cause(ctx), ErrLost) || le.Held() {
				t.Errorf("after %s the holder's context has the cause %v", what, context.Cause(ctx))
			}
		}
		m := l.Semaphore(redistest.Name(t), 2)
		one, other := mustTry(t, m), mustTry(t, m)
		told("Break", one, func(ctx context.Context) error { return second(m.Break(ctx, one.Token())) })
		if !other.Held() {
			t.Error("Break of one holder ended another")
		}
		told("BreakAll", other, func(ctx context.Context) error { return second(m.BreakAll(ctx)) })
		told("Delete", mustTry(t, m), m.Delete)
		p := l.Pool(redistest.Name(t))
		if _, err := p.Put(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		taken, err := p.m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		told("Delete of a pool", taken, func(ctx context.Context) error {
			n, err := p.Delete(ctx)
			if n != 2 {
				t.Errorf("%d values deleted, want 2", n)
			}
			return err
		})
	})
}

// A Locker that does not listen finds out by renewal, long before the deadline.
func TestBreakIsToldAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Mutex(redistest.Name(t), TTL(6*time.Second))
		le := mustTry(t, m)
		ctx, deadline := le.Bind(t.Context()), le.Deadline()
		if ok, err := handle(b, m).Break(t.Context(), le.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		endsWithin(t, ctx, soon)
		if late := time.Since(deadline); late > 0 {
			t.Errorf("told %s after its deadline, want a renewal to tell", late)
		}
	})
}

// Nothing renews it, its Locker is not subscribed: the deadline ends it.
func TestBreakWithoutRenewalIsToldAtTheDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(2*time.Second), NoRenew())
		other := handle(newLocker(t, s.Client(t)), m)
		mustUnlock(t, mustTry(t, other)) // is connected
		le := mustTry(t, m)
		if ok, err := other.Break(t.Context(), le.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		next := mustTry(t, m) // free at once
		endsWithin(t, le.Bind(t.Context()), soon)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v, want ErrNotHeld", err)
		}
		if err := next.Unlock(t.Context()); err != nil && !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// Do says that its function may not have been alone.
func TestBreakDuringDo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Second))
		err := m.Do(t.Context(), func(ctx context.Context) error {
			holders, err := m.Holders(ctx)
			if err != nil || len(holders) != 1 {
				return fmt.Errorf("holders: %v, %w", holders, err)
			}
			if ok, err := m.Break(ctx, holders[0].Token); !ok || err != nil {
				return fmt.Errorf("Break: %v, %w", ok, err)
			}
			endsWithin(t, ctx, soon)
			return context.Cause(ctx)
		})
		if !errors.Is(err, ErrLost) {
			t.Errorf("Do of a broken lock: %v, want ErrLost", err)
		}
	})
}

func TestBreakAll(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Semaphore(redistest.Name(t), 3, TTL(time.Minute))
		first, second := mustTry(t, m), mustTry(t, m)
		if err := mustTry(t, m).Cooldown(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		listening(t, a)
		var waiters []*attempt
		for i := range 4 {
			waiters = append(waiters, inLine(t, handle(b, m), i+1))
		}
		calm(t, b, 4)
		if n, err := handle(b, m).BreakAll(t.Context()); n != 3 || err != nil {
			t.Fatalf("BreakAll: %d, %v; want 2 holders and the gate", n, err)
		}
		for _, w := range waiters[:3] {
			w.got(t)
		}
		for _, le := range []*Lease{first, second} {
			endsWithin(t, le.Bind(t.Context()), soon)
		}
		if !waiters[3].pending() || band(t, m, "h:") != 3 || band(t, m, "g:") != 0 {
			t.Errorf("BreakAll let more in than there are slots; %s", dump(m))
		}
		audit(t, m)
	})
}

func TestDelete(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Mutex(redistest.Name(t), TTL(time.Minute))
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		var waiters []*attempt
		for i := range 4 {
			waiters = append(waiters, inLine(t, handle([]*Locker{a, b}[i%2], m), i+1))
		}
		heard(t, m)
		calm(t, a, 2)
		calm(t, b, 2)
		if err := m.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, err := raw(m).Exists(t.Context(), m.Key()).Result(); n != 0 || err != nil {
			t.Fatalf("Delete left the key: %d, %v; %s", n, err, dump(m))
		}
		endsWithin(t, ctx, 10*time.Second)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of a deleted lock: %v, want ErrNotHeld", err)
		}

		// The next refresh, a second after the last, brings all of them back.
		for _, l := range []*Locker{a, b} {
			l.line.askAll()
		}
		for range waiters {
			redistest.Eventually(t, soon, func() bool {
				return slices.ContainsFunc(waiters, func(w *attempt) bool { return !w.pending() })
			}, "a waiter that comes back; %s", stringer(func() string { return dump(m) }))
			i := slices.IndexFunc(waiters, func(w *attempt) bool { return !w.pending() })
			mustUnlock(t, waiters[i].got(t))
			waiters = slices.Delete(waiters, i, i+1)
		}
		free(t, m, soon)
		if err := m.Delete(t.Context()); err != nil {
			t.Errorf("Delete of an idle lock: %v", err)
		}
	})
}

// Nothing but time brings the waiters of a deleted lock back.
func TestDeleteCostsWaitersAboutASecond(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		mustTry(t, m)
		w := inLine(t, handle(newLocker(t, s.Client(t)), m), 1)
		deleted := time.Now()
		if err := m.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, w.got(t))
		if late := time.Since(deleted); late > refreshEvery+3*time.Second {
			t.Errorf("the waiter had the lock %s after the Delete", late)
		}
	})
}

func TestExistsAndWaiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		is := func(what string, exists bool, waiters int) {
			t.Helper()
			got, err1 := m.existsNow(t.Context())
			n, err2 := m.Waiting(t.Context())
			if got != exists || n != waiters || err1 != nil || err2 != nil {
				t.Errorf("%s: exists %v, %d waiting (%v, %v); want %v, %d", what, got, n, err1, err2, exists, waiters)
			}
		}
		is("idle", false, 0)
		le := mustTry(t, m)
		is("held", true, 0)
		w := inLine(t, m, 1)
		w2 := inLine(t, m, 2)
		is("waited for", true, 2)
		w2.cancel()
		w2.failed(t)
		mustUnlock(t, le)
		le = w.got(t)
		is("granted", true, 0)
		if err := le.Cooldown(t.Context(), 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		is("cooling down", true, 0)
		redistest.Eventually(t, soon, func() bool { ok, _ := m.existsNow(t.Context()); return !ok }, "the end of the cooldown")
		is("idle again", false, 0)
		// A waiter alone, as after a holder's deadline.
		holder, waiter := m.newLease(), m.newLease()
		mustAsk(t, m, holder, 0)
		mustAsk(t, m, waiter, time.Hour)
		if n := raw(m).ZRem(t.Context(), m.Key(), "h:"+holder.body).Val(); n != 1 {
			t.Fatal(dump(m))
		}
		is("only waited for", true, 1)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.existsNow(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Exists with an ended context: %v", err)
		}
	})
}

// oddPrefix is one of this test's own, made of what means something in patterns.
func oddPrefix(t *testing.T) string {
	t.Helper()
	return redistest.Name(t) + `*?[a-z]\:^`
}

func prefixed(prefix string) func(*Options) { return func(o *Options) { o.Prefix = prefix } }

func TestList(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := oddPrefix(t)
		rdb := s.Client(t)
		l := newLocker(t, rdb, prefixed(prefix), owner("lister"), func(o *Options) { o.TTL = time.Minute })
		want := map[string]inside.Info{}
		for i := range 300 {
			m := l.Semaphore("lock "+fmt.Sprint(i), 3, Note(fmt.Sprint(i)))
			info := inside.Info{Key: m.Key(), Held: 1 + i%3, Waiting: i % 2}
			for range info.Held {
				mustAsk(t, m, m.newLease(), 0)
			}
			if info.Waiting > 0 {
				one := l.Mutex("lock " + fmt.Sprint(i))
				mustAsk(t, one, one.newLease(), time.Hour)
			}
			want[m.Key()] = info
		}
		// Not ours, or no locks, or nothing in them.
		decoy := newLocker(t, rdb, prefixed(strings.ReplaceAll(strings.ReplaceAll(prefix, "*", "XX"), "?", "Y")))
		mustTry(t, decoy.Mutex("decoy"))
		mustTry(t, newLocker(t, rdb, prefixed(prefix+"x")).Mutex("decoy"))
		mustTry(t, newLocker(t, rdb, prefixed("x"+prefix)).Mutex("decoy"))
		if _, err := l.Pool("pool").Put(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		expired := l.Mutex("expired", TTL(inside.MinTTL))
		mustAsk(t, expired, expired.newLease(), 0)
		foreign := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		foreign(rdb.Set(t.Context(), prefix+":{string}", "x", 0).Err())
		foreign(rdb.HSet(t.Context(), prefix+":{hash}", "a", "b").Err())
		foreign(rdb.RPush(t.Context(), prefix+":{list}", "a").Err())
		foreign(rdb.SAdd(t.Context(), prefix+":{set}", "a").Err())
		foreign(rdb.ZAdd(t.Context(), prefix+":{zset}:more", redis.Z{Score: 1e13, Member: "a"}).Err())
		redistest.Eventually(t, soon, func() bool { ok, _ := expired.existsNow(t.Context()); return !ok }, "a deadline")

		got := map[string]inside.Info{}
		for info, err := range l.list(t.Context()) {
			if err != nil {
				t.Fatalf("List: %v", err)
			}
			if _, twice := got[info.Key]; twice {
				t.Errorf("%q is listed twice", info.Key)
			}
			if len(info.Holders) != info.Held {
				t.Errorf("%q: %d held, %d holders", info.Key, info.Held, len(info.Holders))
			}
			for _, h := range info.Holders {
				if h.Owner != "lister" || h.ExpiresIn <= 0 || h.ExpiresIn > time.Minute+time.Second {
					t.Errorf("%q is held by %+v", info.Key, h)
				}
			}
			info.Holders = nil
			got[info.Key] = info
		}
		if !maps.EqualFunc(got, want, func(a, b inside.Info) bool { return a.Key == b.Key && a.Held == b.Held && a.Waiting == b.Waiting }) {
			t.Errorf("List gave %d locks, want %d:\n%v\n%v", len(got), len(want), got, want)
		}

		// It may stop early, and be used again.
		n := 0
		for _, err := range l.list(t.Context()) {
			if err != nil {
				t.Fatalf("List after %d locks: %v", n, err)
			}
			if n++; n == 7 {
				break
			}
		}
		if n != 7 {
			t.Errorf("stopped after %d", n)
		}

		// And ends with its context, at the latest with the next batch.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		n = 0
		for _, err := range l.list(ctx) {
			if n++; !errors.Is(err, context.Canceled) {
				t.Errorf("List with an ended context: %v", err)
			}
		}
		if n != 1 {
			t.Errorf("List with an ended context yielded %d times, want an error", n)
		}
		if _, err := l.sweep(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Sweep with an ended context: %v", err)
		}
	})
}

// The context ends while the keys are walked.
func TestListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t), prefixed("few"))
	fill := s.Client(t).Pipeline()
	for i := range 20_000 {
		fill.ZAdd(t.Context(), fmt.Sprintf("few:{%d}", i), redis.Z{Score: 9e13, Member: "h:a.1.1|o|"})
	}
	if _, err := fill.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	var last error
	for _, err := range l.list(ctx) {
		n++
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) || n > 3*scanCount {
		t.Errorf("List yielded %d times, last %v; want context.Canceled soon", n, last)
	}
	// Close from inside does not wait for the loop that it is called from.
	n = 0
	for _, err := range l.list(t.Context()) {
		if n++; n == 1 {
			_ = l.Close()
		}
		last = err
	}
	if !errors.Is(last, ErrClosed) {
		t.Errorf("List of a Locker that was closed meanwhile: %v, want ErrClosed", last)
	}
	if _, err := l.sweep(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Sweep of a closed Locker: %v, want ErrClosed", err)
	}
}

// A server of this test's own tells which commands it ran.
func TestListNeverUsesKeys(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	l := newLocker(t, rdb)
	fill := rdb.Pipeline()
	for i := range 5_000 {
		fill.Set(t.Context(), "other:"+fmt.Sprint(i), i, 0)
	}
	if _, err := fill.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustTry(t, l.Mutex("x"))
	n := 0
	for _, err := range l.list(t.Context()) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := l.sweep(t.Context()); removed != 0 || err != nil {
		t.Errorf("Sweep: %d, %v", removed, err)
	}
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if n != 1 || !strings.Contains(stats, "cmdstat_scan:") || strings.Contains(stats, "cmdstat_keys:") {
		t.Errorf("List gave %d locks, with %s", n, stats)
	}
}

// SCAN may tell a key several times.
func TestListTellsEachLockOnce(t *testing.T) {
	t.Parallel()
	rdb := redistest.Real(t).Client(t)
	l := newLocker(t, rdb, prefixed(redistest.Name(t)))
	mustTry(t, l.Mutex("x"))
	var hook redistest.FailHook
	hook.After(func(cmd redis.Cmder) error {
		if scan, ok := cmd.(*redis.ScanCmd); ok {
			keys, cursor := scan.Val()
			scan.SetVal(append(keys, keys...), cursor)
		}
		return nil
	})
	rdb.AddHook(&hook)
	n := 0
	for _, err := range l.list(t.Context()) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 {
		t.Errorf("a lock is listed %d times", n)
	}
}

// What hides a Cluster must not have one node walked for all.
func TestListNeedsAClientThatItKnows(t *testing.T) {
	t.Parallel()
	l := newLocker(t, struct{ redis.UniversalClient }{redistest.Mini(t).Client(t)})
	for _, err := range l.list(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), "*redis.ClusterClient") {
			t.Errorf("List with a client of another type: %v", err)
		}
	}
	if _, err := l.sweep(t.Context()); err == nil {
		t.Error("Sweep with a client of another type succeeded")
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb, prefixed(oddPrefix(t)))
		past := float64(serverNow(t, l.Mutex("x")).UnixMilli() - 1)
		dead := func(m *Lock, members ...redis.Z) {
			t.Helper()
			if err := rdb.ZAdd(t.Context(), m.Key(), members...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		stale := func(i int) []redis.Z { // a waiter of a process that is gone
			id := fmt.Sprintf("gone.3000.%d|o|", i)
			return []redis.Z{{Member: "e:" + id, Score: 2e15 + float64(i)}, {Member: "d:" + id, Score: -past}}
		}

		// Three dead holders of one lock and a gate that is open; the key goes.
		gone := l.Mutex("gone")
		dead(gone, redis.Z{Member: "h:a.1.1|o|", Score: past}, redis.Z{Member: "h:a.1.2|o|", Score: past - 1e6},
			redis.Z{Member: "h:a.1.3|o|", Score: past}, redis.Z{Member: "f", Score: -2.7e15},
			redis.Z{Member: "g:cooldown:1000:0:0:1700000000000000", Score: 1.7e9})
		// A live holder, three dead waiters among live ones.
		mixed := l.Mutex("mixed")
		holder, waiter := mixed.newLease(), mixed.newLease()
		mustAsk(t, mixed, holder, 0)
		mustAsk(t, mixed, waiter, time.Hour)
		for i := range 3 {
			dead(mixed, stale(i)...)
		}
		dead(mixed, stale(3)[1]) // half of one does not count
		// A dead holder before a live waiter, who is granted the slot, behind a dead one.
		granted := l.Mutex("granted")
		next := granted.newLease()
		mustAsk(t, granted, granted.newLease(), 0)
		mustAsk(t, granted, next, time.Hour)
		for member := range stored(t, granted) {
			if strings.HasPrefix(member, "h:") {
				dead(granted, redis.Z{Member: member, Score: past})
			}
		}
		dead(granted, stale(0)...)
		// More than one run of the script removes.
		many := l.Mutex("many")
		var crowd []redis.Z
		for i := range 2*sweepMost + 5 {
			crowd = append(crowd, stale(i)...)
		}
		dead(many, crowd...)
		// Live, and somebody else's.
		live := mustTry(t, l.Semaphore("live", 2))
		if err := rdb.Set(t.Context(), l.prefix+":{string}", "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		before := stored(t, live.lock)

		want := 3 + 3 + 2 + 2*sweepMost + 5
		if n, err := l.sweep(t.Context()); n != want || err != nil {
			t.Errorf("Sweep: %d, %v; want %d", n, err, want)
		}
		if n, err := l.sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("second Sweep: %d, %v; want 0", n, err)
		}
		for _, m := range []*Lock{gone, many} {
			if n := rdb.Exists(t.Context(), m.Key()).Val(); n != 0 {
				t.Errorf("%q is still there; %s", m.name, dump(m))
			}
		}
		z := stored(t, mixed)
		if _, ok := z["e:"+waiter.body]; !ok || len(z) != 4 || band(t, mixed, "h:") != 1 {
			t.Errorf("of a live holder, a live and three dead waiters is left: %v", z)
		}
		if _, ok := holds(t, next); !ok || band(t, granted, "h:") != 1 || band(t, granted, "e:") != 0 {
			t.Errorf("the live waiter was not granted the slot; %s", dump(granted))
		}
		if after := stored(t, live.lock); !maps.Equal(after, before) {
			t.Errorf("a live lock went from %v to %v", before, after)
		}
		audit(t, granted)
		audit(t, mixed)
	})
}

// The waiters of a process that is gone.
func TestSweepOfADeadProcess(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes three seconds")
	}
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex("x")
	le := mustTry(t, m)
	c := startChild(t, s, time.Minute, m.name)
	waiting(t, m, 1)
	c.kill()
	redistest.Eventually(t, soon, func() bool {
		n, err := l.sweep(t.Context())
		if n > 1 || err != nil {
			t.Fatalf("Sweep: %d, %v", n, err)
		}
		return n == 1
	}, "a stale waiter")
	if n, _ := m.Waiting(t.Context()); n != 0 {
		t.Errorf("%d in line; %s", n, dump(m))
	}
	mustUnlock(t, le)
}

// A live semaphore grows and shrinks; nobody who holds it is hurt.
func TestChangingNOfALiveSemaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		name := redistest.Name(t)
		two, four, one := a.Semaphore(name, 2), b.Semaphore(name, 4), b.Semaphore(name, 1)
		leases := []*Lease{mustTry(t, two), mustTry(t, two)}
		var waiters []*attempt
		for i := range 5 {
			waiters = append(waiters, inLine(t, two, i+1))
		}
		if n, err := two.Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available: %d, %v", n, err)
		}

		// Up: the next call that sees four slots fills them from the line.
		busy := mustBeBusy(t, four)
		if busy.Place == 0 {
			t.Errorf("a newcomer was first in line: %+v", busy)
		}
		for _, w := range waiters[:2] {
			leases = append(leases, w.got(t))
		}
		if n := band(t, two, "h:"); n != 4 || !waiters[2].pending() {
			t.Fatalf("%d holders after N went from 2 to 4; %s", n, dump(two))
		}

		// Down: nobody is granted until fewer than the new N are left.
		for i, le := range leases {
			last := i == len(leases)-1
			if free, err := leaseOf(le, one).Release(t.Context()); free != 0 || err != nil {
				t.Errorf("release %d with N = 1: %d free, %v", i, free, err)
			}
			// A refresh of a waiter still asks with the limit of two.
			want := max(1, len(leases)-1-i)
			if n := band(t, one, "h:"); n < want || n > max(want, 2) {
				t.Errorf("%d holders after release %d with N = 1; %s", n, i, dump(one))
			}
			if waiters[2].pending() == last && last {
				waiters[2].got(t)
			}
		}
		leaseOf(waiters[2].got(t), one)
		mustUnlock(t, waiters[2].lease)
		mustUnlock(t, leaseOf(waiters[3].got(t), one))
		mustUnlock(t, waiters[4].got(t))
		free(t, two, soon)
	})
}

// leaseOf makes a lease release as a caller with m's limit does.
func leaseOf(le *Lease, m *Lock) *Lease {
	r := le.lock.locker.renewer
	r.mu.Lock() // the renewer looks at all leases, whoever made them
	defer r.mu.Unlock()
	le.lock = handle(le.lock.locker, m)
	return le
}
