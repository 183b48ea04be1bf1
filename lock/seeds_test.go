package lock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// What the specs and READMEs of four predecessors define, and no other test of this package holds: the gems redis-lock
// (mlanett/redis-lock), redis-mutex (kenn/redis-mutex) and redis-semaphore (dv/redis-semaphore), and the RedisMutex of
// Cloud 66's article. docs/migrating.md names the test of each of their behaviours. Alice and Bob are two processes.
//
// Not carried over, on purpose: polling; an owner's name as proof of ownership; an unlock by force that tells nobody;
// an expiration that ends a living holder; the clocks of clients; a wait for ever; locks of two keys, of which one may
// be gone; keys that collide on ":"; a sweep that somebody has to remember to run; slots that grow with each signal.

// A wait for a lock that stays taken fails when its time is up; 0 answers at once, below 0 is a mistake.
func TestAcquire_inVain(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held, ok, err := m.Acquire(t.Context(), 0)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
			began := time.Now()
			inVain(t, handle(his, m), wait)
			if took := time.Since(began); took < wait || !held.Held() {
				t.Errorf("it gave up after %s, want %s; held %v", took, wait, held.Held())
			}
			waiting(t, m, 0)
		}
		mustUnlock(t, held)
		free(t, m)
	})
}

// Of two who wait in one process one leaves, and the other one gets the lock.
func TestAcquire_leavesTheLine(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		acquire := func(ctx context.Context) (*lock.Lease, error) {
			lease, _, err := handle(his, m).Acquire(ctx, inside.MaxTTL)
			return lease, err
		}
		waiter := beside(t, m, acquire)
		waiting(t, m, 1)
		other := beside(t, m, acquire)
		waiting(t, m, 2)
		other.cancel()
		wantErr(t, other.failed(t), context.Canceled, "an ended context")
		waiting(t, m, 1)
		mustUnlock(t, held)
		mustUnlock(t, waiter.got(t))
	})
}

// The deadline is the TTL from now: a default for all locks of a Locker, and an option for one.
func TestTTL(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s, func(o *lock.Options) { o.TTL = time.Hour })
		for want, m := range map[time.Duration]*lock.Lock{
			time.Hour:       l.Mutex(redistest.Name(t)),
			2 * time.Hour:   l.Mutex(redistest.Name(t), lock.TTL(2*time.Hour)),
			lock.DefaultTTL: mutexOn(t, s),
		} {
			// A key of a miniredis may expire too early while a long script runs.
			if d, ok := left(t, m, mustTry(t, m)); !ok || d > want+time.Second || d < want-soon {
				t.Errorf("held %v, for %s; want %s", ok, d, want)
			}
		}
	})
}

// A client whose clock is years off makes no difference.
func TestTTL_clientsClock(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	now := time.Now().AddDate(20, 0, 0)
	s.SetTime(t, now)
	hers, his := twoProcesses(t, s)
	m := hers.Semaphore(redistest.Name(t), 2, lock.TTL(10*time.Hour), lock.NoRenew())
	// in a miniredis its clock's steps do not move when keys expire
	mustTry(t, slots(hers, m, 2, lock.TTL(20*time.Hour), lock.NoRenew()))
	mine := mustTry(t, m)
	if d, ok := left(t, m, mine); !ok || (d-10*time.Hour).Abs() > 2*time.Millisecond {
		t.Errorf("the lease lasts %s, %v; want 10 h", d, ok)
	}
	s.SetTime(t, now.Add(10*time.Hour-5*time.Millisecond))
	mustBeBusy(t, slots(his, m, 2))
	s.SetTime(t, now.Add(10*time.Hour+5*time.Millisecond))
	takesAndUnlocks(t, slots(his, m, 2))
}

// Locked while held, to everybody, and not before, after, or when it has expired. Its owner is the process.
func TestLocked(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := lockerOn(t, s), lockerOn(t, s)
		m := hers.Mutex(redistest.Name(t))
		all := func(want bool) {
			t.Helper()
			wantLocked(t, m, want)
			wantLocked(t, handle(his, m), want)
			if h, err := m.Holders(t.Context()); err != nil || (len(h) == 1) != want || want && h[0].Owner != engine.Process() {
				t.Errorf("holders: %+v, %v", h, err)
			}
		}
		all(false)
		redistest.Must(t, m.Do(t.Context(), func(context.Context) error { all(true); return nil }))
		all(false)
		lost := mustTry(t, handle(his, m, lock.TTL(100*time.Millisecond), lock.NoRenew()))
		eventually(t, func() bool { locked, err := m.Locked(t.Context()); return err == nil && !locked },
			"the end of a lease")
		if all(false); lost.Held() {
			t.Error("its holder still believes in it")
		}
	})
}

// The value and the error of the work are those of the call; without the lock the work does not run.
func TestWith(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m, short := hers.Mutex(redistest.Name(t), lock.Parts("server 17")), errors.New("short")
		n, err := lock.With(t.Context(), m, func(ctx context.Context) (int, error) {
			mustBeBusy(t, handle(his, m))
			return 7, short
		})
		if n != 7 || !errors.Is(err, short) {
			t.Errorf("With: %d, %v", n, err)
		}
		free(t, m)
		held := mustTry(t, m)
		mustNotTry(t, handle(his, m)) // connected, and the controls are read
		wantBusy(t, outOfTime(t, m, func(ctx context.Context) error {
			value, err := lock.With(ctx, handle(his, m), func(context.Context) (string, error) {
				t.Error("the work ran without the lock")
				return "result", nil
			})
			if value != "" {
				t.Errorf("With: %q", value)
			}
			return err
		}))
		mustUnlock(t, held)
	})
}

// The work finds its lease, the innermost one, and may extend it.
func TestFromContext(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l, name := lockerOn(t, s), redistest.Name(t)
		m := l.Semaphore(name, 2, lock.TTL(10*time.Second))
		var during context.Context
		err := m.Do(t.Context(), func(ctx context.Context) error {
			during = ctx
			lease, ok := lock.FromContext(ctx)
			if !ok || !lease.Held() || lease.Token() == "" {
				t.Fatalf("the lease in the context is %v, %v", lease, ok)
			}
			wantAvailable(t, m, 1)
			redistest.Must(t, lease.Extend(ctx, time.Minute))
			return l.Mutex(name+"-inner").Do(ctx, func(inner context.Context) error {
				if within, ok := lock.FromContext(inner); !ok || within == lease {
					t.Error("the inner work finds the outer lease")
				}
				return nil
			})
		})
		redistest.Must(t, err)
		if during.Err() == nil {
			t.Error("the context goes on after Do")
		}
		if _, ok := lock.FromContext(t.Context()); ok {
			t.Error("a lease in a context without")
		}
		free(t, m)
	})
}

// All slots are available before anybody locks, and the release tells the new number; a second unlock makes no slot.
func TestAvailable(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		for _, n := range []int{1, 2, 5} {
			m := l.Semaphore(redistest.Name(t), n)
			has := func(free int) {
				t.Helper()
				fresh(t, l)
				wantAvailable(t, m, free)
				wantLocked(t, m, free == 0)
				if there := client(t).Exists(t.Context(), m.Key()).Val(); (there > 0) != (free < n) || inUse(t, m) != (free < n) {
					t.Errorf("with %d of %d free: %d keys; %s", free, n, there, dump(m))
				}
			}
			has(n)
			var leases []*lock.Lease
			for i := range n {
				leases = append(leases, mustTry(t, m))
				has(n - 1 - i)
			}
			for i, le := range leases {
				began := time.Now()
				fresh(t, l)
				if free, err := le.Release(t.Context()); free != i+1 && time.Since(began) < time.Second || err != nil || le.Held() {
					t.Errorf("Release %d of %d: %d, %v; want %d; held %v", i+1, n, free, err, i+1, le.Held())
				}
				if free, err := le.Release(t.Context()); free != 0 || !errors.Is(err, lock.ErrNotHeld) {
					t.Errorf("again: %d, %v; want 0, ErrNotHeld", free, err)
				}
				has(i + 1)
			}
		}
	})
}

// What is deleted disappears without a trace, and holders are told. Who waits comes back, in a new line.
func TestDelete(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s, ownPrefix(t))
		mutex, p := l.Mutex("mutex"), pool.New(l, "pool")
		before, waits := mustTry(t, mutex), []*attempt{inLine(t, mutex, 1), inLine(t, mutex, 2)}
		mustPut(t, p, 3, "a", "b", "c")
		taken := mustTake(t, p, "a")
		working, taking := before.Bind(t.Context()), taken.Bind(t.Context())
		if n, err := p.Delete(t.Context()); n != 3 || err != nil {
			t.Errorf("Delete of the pool: %d, %v; want 3", n, err)
		}
		redistest.Must(t, mutex.Delete(t.Context()))
		for _, ctx := range []context.Context{working, taking} {
			ends(t, ctx, lock.ErrLost)
		}
		wantErr(t, taken.Unlock(t.Context()), lock.ErrNotHeld, "Unlock")
		free(t, insider.Pool(l, "pool")) // the value does not come back with its late taker
		eventually(t, func() bool { return !waits[0].pending() || !waits[1].pending() }, "one of two")
		if waits[0].pending() {
			slices.Reverse(waits)
		}
		mustUnlock(t, waits[0].got(t))
		mustUnlock(t, waits[1].got(t))
		wantErr(t, before.Unlock(t.Context()), lock.ErrNotHeld, "Unlock")
	})
}

// What somebody took who died, or who never heard of it, comes back when its time is up.
func TestTTL_takerDies(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		name, short := redistest.Name(t), []lock.Option{lock.TTL(2 * time.Second), lock.NoRenew()}
		m, p := hers.Semaphore(name, 2, short...), pool.New(hers, name, short...)
		mustPut(t, p, 1, "licence")
		mustTry(t, m)
		mustTry(t, m)
		mustTake(t, p, "licence")
		redistest.Must(t, hers.Close())
		for range 2 {
			untilTaken(t, his.Semaphore(name, 2))
		}
		mustUnlock(t, mustTake(t, pool.New(his, name), "licence").Lease)
		if s.Kind() == redistest.KindCluster {
			return // a Proxy hides one node only
		}
		_, far, proxy := through(t, s, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
		lost := insider.Pool(far, name, lock.TTL(2*time.Second))
		takesAndUnlocks(t, lost) // the scripts are known to the server
		proxy.DropReplyTo(touches(lost), 1)
		wantErr(t, second(lost.TryLock(t.Context())), lock.ErrBackend, "TryLock with its reply lost")
		mustUnlock(t, mustTake(t, pool.New(his, name), "licence").Lease)
	})
}

// Jobs go from producers to consumers unmodified, in order, each to one; the pool goes with its last value.
func TestPool_jobs(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		producer, consumer := twoProcesses(t, s)
		name := redistest.Name(t)
		jobs := []string{"first", "a b|c%20{d}~", "\x00\xff\n", `{"id":7}`, "ümläut \u2028 end"}
		in, out := pool.New(producer, name), pool.New(consumer, name)
		first := takeBeside(t, out) // the consumer comes first, and waits
		mustPut(t, in, len(jobs), jobs...)
		job := come(t, first, "a job")
		for i, want := range jobs {
			if i > 0 {
				job = mustTake(t, out, want)
			}
			mustPut(t, in, 0, want) // it has a holder
			if info, err := out.Inspect(t.Context()); err != nil || info.Taken != 1 || !slices.Equal(info.Values, jobs[i+1:]) ||
				info.Holders[0].Value != want || job.Value() != want {
				t.Errorf("job %d: %+v, %v, want %q", i, info, err, want)
			}
			redistest.Must(t, job.Consume(t.Context()))
			wantErr(t, job.Consume(t.Context()), lock.ErrNotHeld, "consumed twice")
		}
		mustBeBusy(t, insider.Pool(consumer, name))
		free(t, insider.Pool(consumer, name))
	})
}

func mustPut(t *testing.T, p *pool.Pool, added int, values ...string) {
	t.Helper()
	if n, err := p.Put(t.Context(), values...); n != added || err != nil {
		t.Fatalf("Put: %d, %v; want %d", n, err, added)
	}
}

// mustTake takes what is to be the next value.
func mustTake(t *testing.T, p *pool.Pool, want string) *pool.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	le, err := p.Take(ctx)
	if err != nil || le.Value() != want {
		t.Fatalf("Take: %v, want %q", err, want)
	}
	return le
}

// takeBeside calls Take on a goroutine that ends with the test at the latest, and returns when the taker is in line.
func takeBeside(t *testing.T, p *pool.Pool) <-chan *pool.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	taken, done := make(chan *pool.Lease, 1), make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		if le, err := p.Take(ctx); err == nil {
			taken <- le
		}
	}()
	eventually(t, func() bool {
		info, err := p.Inspect(t.Context())
		return err == nil && info.Waiting == 1
	}, "a taker in line")
	return taken
}
