package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A lease is first renewed after a third of its length, and outlives its TTL.
func TestRule08_LeasesAreRenewed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), TTL(3*time.Second))
		le := mustTry(t, m)
		first, _ := holds(t, le)
		ctx := le.Bind(t.Context())
		redistest.Eventually(t, soon, func() bool {
			audit(t, m)
			return serverNow(t, m).After(first)
		}, "a TTL")
		if _, ok := holds(t, le); !ok || ctx.Err() != nil {
			t.Fatalf("lost: %v; %s", context.Cause(ctx), dump(m))
		}
		if n := k.count(wire.RenewScript); n < 1 || n > 6 {
			t.Errorf("%d renewals in a TTL, want 2 or 3", n)
		}
		mustUnlock(t, le)
		free(t, m, soon)
	})
}

// Due at a third of the current length, and of the TTL at most: an extended lease is watched
// as any other. A granted one is due earlier, see addGranted.
func TestRule08_RenewalIsDueAtAThird(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	r := l.renewer
	le := l.Mutex("x", TTL(30*time.Second)).newLease()
	now := time.Now()
	due := func(sent time.Time, length time.Duration) time.Duration {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.moveDeadline(le, sent, length)
		return le.renewAt.Sub(now)
	}
	for i, step := range []struct{ sent, length, want time.Duration }{
		{0, maxGrant, time.Second},
		{time.Second, 30 * time.Second, 11 * time.Second},
		{11 * time.Second, 30 * time.Second, 21 * time.Second},
		{21 * time.Second, time.Millisecond, 21 * time.Second}, // an Extend that is shorter
		{21 * time.Second, 10 * time.Minute, 31 * time.Second}, // an Extend that is longer
		{22 * time.Second, 30 * time.Second, 32 * time.Second}, // a renewal that was under way
		{601 * time.Second, 30 * time.Second, (601 + 10) * time.Second},
	} {
		if got := due(now.Add(step.sent), step.length); (got - step.want).Abs() > time.Second/10+step.want/500 {
			t.Errorf("step %d: due in %s, want %s", i, got, step.want)
		}
	}
}

// A renewal fails while an Extend succeeds: it is repeated, and the one that succeeds lets the
// lease rest for a third of the TTL.
func TestRule08_ExtendDuringAFailedRenewal(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	r := l.renewer
	le := l.Mutex("x", TTL(time.Second)).newLease()
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveDeadline(le, now, time.Second)
	r.moveDeadline(le, now, time.Hour)
	le.renewAt = now.Add(50 * time.Millisecond) // later, after the failure
	r.moveDeadline(le, now.Add(50*time.Millisecond), time.Second)
	if wait := le.renewAt.Sub(now); wait < 300*time.Millisecond || wait > 400*time.Millisecond {
		t.Errorf("after a renewal that had nothing to add the next is due in %s, want a third of the TTL", wait)
	}
}

// The renewals of many leases travel together, at most 256 in a pipeline.
func TestRule08_RenewalsTravelTogether(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n = 600
		s = quiet(t, s)
		rdb := s.Client(t, func(o *redis.UniversalOptions) { o.PoolSize = 50 })
		k := newTap(rdb)
		l := newLocker(t, rdb)
		prefix := redistest.Name(t)
		warm(t, l.Mutex(prefix)) // or NOSCRIPT would have each batch sent twice
		leases := make([]*Lease, n)
		var wg sync.WaitGroup
		for w := range 30 {
			redistest.Go(&wg, func() {
				for i := w; i < n; i += 30 {
					le, err := l.Mutex(fmt.Sprint(prefix, i), TTL(10*time.Minute)).TryLock(context.Background())
					if err != nil {
						t.Errorf("TryLock: %v", err)
						return
					}
					leases[i] = le
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		renewNow(l)
		redistest.Eventually(t, soon, func() bool { return k.count(wire.RenewScript) >= n }, "a renewal of each")
		sizes := k.sizes(wire.RenewScript)
		t.Logf("%d renewals in pipelines of %v", k.count(wire.RenewScript), sizes)
		slices.Sort(sizes)
		together := slices.Equal(sizes, []int{n - 2*exchange.MaxBatch, exchange.MaxBatch, exchange.MaxBatch})
		if s.Kind() == redistest.KindCluster { // each master has its own
			together = len(sizes) == 3 && sizes[2] <= exchange.MaxBatch
		}
		if !together {
			t.Errorf("%d renewals in pipelines of %v, at most %d each", n, sizes, exchange.MaxBatch)
		}
		for _, le := range leases {
			if err := le.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		}
	})
}

// renewNow makes all leases of l due.
func renewNow(l *Locker) {
	r := l.renewer
	now := time.Now()
	r.mu.Lock()
	for _, le := range r.leases {
		le.renewAt = now
		r.reschedule(le)
	}
	r.mu.Unlock()
	r.alarm.Set(now)
}

// A task shorter than a third of the TTL costs two round trips.
func TestRule08_ShortStayCostsTwoCalls(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		warm(t, m)
		for range 2 { // the Locker learns which commands the server has
			mustUnlock(t, mustTry(t, m))
		}
		k.reset()
		le, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		redistest.Must(t, le.Unlock(t.Context()))
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.calls, "control_read") // the Locker's own, once in a while
		if k.calls["ask"]+k.calls["set"] != 1 || k.calls["release"]+k.calls["delex"] != 1 || len(k.calls) != 2 || k.evals != 0 {
			t.Errorf("lock and unlock took %v, %d of them EVALs", k.calls, k.evals)
		}
	})
}

// The server forgets the scripts over and over: pipelines are answered NOSCRIPT
// per command, and those go again as EVAL.
func TestRule08_NoscriptInPipelines(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	k := newTap(rdb)
	l := newLocker(t, rdb)
	var bound []context.Context
	var leases []*Lease
	var first []time.Time
	prefix := redistest.Name(t)
	for i := range 40 {
		le := mustTry(t, l.Mutex(fmt.Sprint(prefix, i), TTL(10*time.Second)))
		leases = append(leases, le)
		deadline, _ := holds(t, le)
		first = append(first, deadline)
		bound = append(bound, le.Bind(t.Context()))
		lockBeside(t, le.lock)
	}
	began := time.Now()
	redistest.Eventually(t, soon, func() bool {
		redistest.Must(t, rdb.ScriptFlush(t.Context()).Err())
		renewNow(l)
		l.line.askAll()
		return time.Since(began) > time.Second
	}, "1 s of SCRIPT FLUSH")
	for i, ctx := range bound {
		if ctx.Err() != nil {
			t.Fatalf("lease %d ended: %v", i, context.Cause(ctx))
		}
		if deadline, ok := holds(t, leases[i]); !ok || !deadline.After(first[i].Add(100*time.Millisecond)) {
			t.Fatalf("lease %d was not renewed: stored %v, until %v, before %v", i, ok, deadline, first[i])
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.evals == 0 || len(k.pipelines["renew"]) == 0 || len(k.pipelines["ask"]) == 0 {
		t.Errorf("%d EVALs, pipelines %v", k.evals, k.pipelines)
	}
}

// Whatever is transient is tried again, and does no harm before the deadline.
func TestRule09_RenewalOutlivesTransientErrors(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	texts := []string{
		"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.",
		"TRYAGAIN Multiple keys request during rehashing of slot", "BUSY Redis is busy running a script.",
		"MOVED 1 127.0.0.1:1", "CLUSTERDOWN The cluster is down", "ERR something", "EOF",
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		l := newLocker(t, rdb)
		var mu sync.Mutex
		failures := map[any]int{} // by key
		fails := map[any]error{}
		hook.Before(func(cmd redis.Cmder) error {
			if scriptName(cmd) != wire.RenewScript.Name {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			key := cmd.Args()[3]
			if failures[key]++; failures[key] > 2 {
				return nil
			}
			return fails[key]
		})
		type held struct {
			lease *Lease
			first time.Time
			ctx   context.Context
		}
		var all []held
		for _, text := range texts {
			m := l.Mutex(redistest.Name(t), TTL(4*time.Second))
			mu.Lock()
			fails[m.Key()] = redistest.ReplyError(text)
			if text == "EOF" {
				fails[m.Key()] = io.EOF
			}
			mu.Unlock()
			le := mustTry(t, m)
			first, _ := holds(t, le)
			all = append(all, held{le, first, le.Bind(t.Context())})
		}
		last := all[len(all)-1]
		redistest.Eventually(t, soon, func() bool { return serverNow(t, last.lease.lock).After(last.first) }, "the first deadline")
		for i, h := range all {
			mu.Lock()
			n := failures[h.lease.lock.Key()]
			mu.Unlock()
			if deadline, ok := holds(t, h.lease); !ok || !deadline.After(h.first) || h.ctx.Err() != nil || n < 3 {
				t.Errorf("after %q, and %d tries: stored %v, lost: %v", texts[i], n, ok, context.Cause(h.ctx))
				continue
			}
			mustUnlock(t, h.lease)
		}
	})
}

// The network goes and comes back.
func TestRule09_RenewalOutlivesACut(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t), TTL(4*time.Second))
		le := mustTry(t, handle(far, m))
		first, _ := holds(t, le)
		ctx := le.Bind(t.Context())
		p.Refuse(true)
		p.Cut()
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(first.Add(-2 * time.Second)) }, "two seconds")
		p.Heal()
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(first) }, "the first deadline")
		if _, ok := holds(t, le); !ok || ctx.Err() != nil {
			t.Fatalf("lost: %v; %s", context.Cause(ctx), dump(m))
		}
		if err := le.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// Errors up to the deadline: the lease is lost then, by the local clock, not
// before and not long after; and it is not taken back when the errors end.
func TestRule09_LostAtTheLocalDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), TTL(2*time.Second))
		le := mustTry(t, m)
		deadline := le.Deadline()
		hook.Before(func(cmd redis.Cmder) error {
			if scriptName(cmd) == wire.RenewScript.Name {
				return errors.New("the network is down")
			}
			return nil
		})
		ctx := le.Bind(t.Context())
		stored, _ := holds(t, le)
		come(t, ctx.Done(), "the end of the lease")
		if late := time.Since(deadline); late < 0 {
			t.Errorf("lost %s after the local deadline", late)
		}
		if !errors.Is(context.Cause(ctx), ErrLost) || !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		hook.Before(nil)
		// The lock is another's now; nothing of ours comes back.
		next := lockBeside(t, handle(newLocker(t, s.Client(t)), m, TTL(time.Minute), Fenced())).got(t)
		if time.UnixMicro(fenceOf(t, next)).Before(stored.Add(-expiryError(s))) {
			t.Errorf("succeeded at %v, before the stored deadline %v", time.UnixMicro(fenceOf(t, next)), stored)
		}
		if _, ok := holds(t, le); ok {
			t.Errorf("stored again; %s", dump(m))
		}
		if err := le.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend: %v, want ErrNotHeld", err)
		}
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v, want ErrNotHeld", err)
		}
		mustUnlock(t, next)
	})
}

// A lease whose deadline has passed is not renewed, though it is still stored
// because nobody has asked for the lock since.
func TestRule09_RenewalDoesNotRetakeTheExpired(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2, TTL(inside.MinTTL), NoRenew())
		mustTry(t, handle(l, m, TTL(time.Minute))) // keeps the key
		le := mustTry(t, m)
		deadline, ok := holds(t, le)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(deadline) }, "the deadline")
		if _, still := holds(t, le); !ok || !still {
			t.Fatalf("no longer stored; %s", dump(m))
		}
		if reply := mustRenew(t, le, time.Hour); reply != wire.RenewLost {
			t.Errorf("renewing what has expired is answered %d, want lost; %s", reply, dump(m))
		}
		if err := le.Extend(t.Context(), time.Hour); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend: %v, want ErrNotHeld", err)
		}
	})
}

// The lock was deleted, or lost by a failover: the next renewal says so.
func TestRule09_RenewalFindsTheLeaseGone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Hour))
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		redistest.Must(t, raw(m).Del(t.Context(), m.Key()).Err())
		renewNow(m.locker)
		come(t, ctx.Done(), "the end of the lease")
		if !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		free(t, m, soon)
	})
}
