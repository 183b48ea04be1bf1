package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

func TestSeedRedisSemaphore_NumberedResources(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	// Who wants to know which of the resources it got puts them into a pool.
	five := func(t *testing.T, s *redistest.Server) *Pool {
		p := newLocker(t, s.Client(t)).Pool(redistest.Name(t))
		mustPut(t, p, 5, "0", "1", "2", "3", "4")
		return p
	}
	seed(t, "all different when all are taken, and no sixth", func(t *testing.T, s *redistest.Server) {
		p := five(t, s)
		var nested func(n int) []string
		nested = func(n int) (values []string) {
			if n == 0 {
				if _, err := p.m.TryLock(ctx); !errors.Is(err, ErrBusy) {
					t.Errorf("a sixth: %v, want ErrBusy", err)
				}
				return nil
			}
			lease, err := p.Take(ctx)
			if err != nil {
				t.Error(err)
				return nil
			}
			defer func() { _ = lease.Unlock(ctx) }()
			return append(nested(n-1), lease.Value())
		}
		values := nested(5)
		if slices.Reverse(values); !slices.Equal(values, []string{"0", "1", "2", "3", "4"}) {
			t.Errorf("taken were %v", values)
		}
		if n, err := p.available(ctx); n != 5 || err != nil {
			t.Errorf("Available: %d, %v", n, err)
		}
	})
	seed(t, "one after the other: first in, first out, or the same again where there is one", func(t *testing.T, s *redistest.Server) {
		p := five(t, s)
		single := newLocker(t, s.Client(t)).Pool(redistest.Name(t) + "-single")
		mustPut(t, single, 1, "0")
		for i := range 7 {
			lease := mustTake(t, p, fmt.Sprint(i%5))
			again := mustTake(t, single, "0")
			mustPutBack(t, lease, again)
		}
	})
	seed(t, "the tokens of plain leases differ, always", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 5)
		seen := map[string]bool{}
		for range 2 {
			var leases []*Lease
			for range 5 {
				leases = append(leases, mustTry(t, m))
			}
			for _, le := range leases {
				seen[le.Token()] = true
				mustUnlock(t, le)
			}
		}
		if len(seen) != 10 {
			t.Errorf("10 stays had %d tokens", len(seen))
		}
	})
}

// mustPut puts values into a pool, of which so many are new to it.
func mustPut(t *testing.T, p *Pool, added int, values ...string) {
	t.Helper()
	if n, err := p.Put(t.Context(), values...); n != added || err != nil {
		t.Fatalf("Put: %d, %v; want %d", n, err, added)
	}
}

// mustTake takes what is to be the next value.
func mustTake(t *testing.T, p *Pool, want string) *Lease {
	t.Helper()
	le, err := p.m.TryLock(t.Context())
	if err != nil {
		t.Fatalf("TryTake: %v", err)
	}
	if le.Value() != want {
		t.Errorf("took %q, want %q", le.Value(), want)
	}
	return le
}

func mustPutBack(t *testing.T, leases ...*Lease) {
	t.Helper()
	for _, le := range leases {
		if err := le.Unlock(t.Context()); err != nil {
			t.Fatalf("Unlock of %q: %v", le.Value(), err)
		}
	}
}

func TestSeedRedisSemaphore_Work(t *testing.T) {
	t.Parallel()
	wrong := errors.New("semaphore exception")
	seed(t, "it runs, its value comes back, and its lease is there to be seen", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		n, err := With(t.Context(), m, func(ctx context.Context) (int, error) {
			if lease, ok := FromContext(ctx); !ok || lease.Token() == "" {
				t.Error("no lease, or no token")
			}
			wantAvailable(t, m, 1)
			return 42, nil
		})
		if n != 42 || err != nil {
			t.Errorf("With: %d, %v", n, err)
		}
		wantAvailable(t, m, 2)
	})
	seed(t, "its error passes through, its panic too, and nothing stays locked", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2)
		if err := m.Do(t.Context(), func(context.Context) error { return wrong }); !errors.Is(err, wrong) || err.Error() != wrong.Error() {
			t.Errorf("Do: %v", err)
		}
		p := l.Pool(m.name)
		mustPut(t, p, 1, "0")
		for _, do := range []func(){
			func() { _ = m.Do(t.Context(), func(context.Context) error { panic(wrong) }) },
			func() {
				lease := mustTake(t, p, "0")
				defer func() { _ = lease.Unlock(context.Background()) }()
				panic(wrong)
			},
		} {
			func() {
				defer func() {
					if r := recover(); r != any(wrong) {
						t.Errorf("recovered %v", r)
					}
				}()
				do()
			}()
		}
		wantAvailable(t, m, 2)
		mustPutBack(t, mustTake(t, p, "0"))
	})
}

func TestSeedRedisSemaphore_Delete(t *testing.T) {
	t.Parallel()
	seed(t, "it disappears without a trace, and holders are told", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), func(o *Options) { o.Prefix = redistest.Name(t) })
		m := l.Semaphore("semaphore", 2)
		p := l.Pool("pool")
		mustPut(t, p, 3, "a", "b", "c")
		held, taken := mustTry(t, m), mustTake(t, p, "a")
		working, taking := held.Bind(t.Context()), taken.Bind(t.Context())
		redistest.Must(t, m.Delete(t.Context()))
		if n, err := p.Delete(t.Context()); n != 3 || err != nil {
			t.Errorf("Delete of the pool: %d, %v; want 3", n, err)
		}
		if n, err := raw(m).Exists(t.Context(), m.Key()).Result(); n != 0 || err != nil {
			t.Errorf("the semaphore's key is left: %d, %v", n, err)
		}
		if n, err := raw(m).Exists(t.Context(), p.m.Key()).Result(); n != 0 || err != nil {
			t.Errorf("the pool's key is left: %d, %v", n, err)
		}
		renewNow(l)
		for _, ctx := range []context.Context{working, taking} {
			select {
			case <-ctx.Done():
				if !errors.Is(context.Cause(ctx), ErrLost) {
					t.Errorf("a holder's context ended with %v", context.Cause(ctx))
				}
			case <-time.After(soon):
				t.Error("a holder is not told")
			}
		}
		if err := taken.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v, want ErrNotHeld", err)
		}
		// The value does not come back with its late taker.
		if n, err := raw(m).Exists(t.Context(), p.m.Key()).Result(); n != 0 || err != nil {
			t.Errorf("the pool is there again: %d, %v", n, err)
		}
	})
}

func TestSeedRedisSemaphore_TimeoutZero(t *testing.T) {
	t.Parallel()
	seed(t, "0 does not block, and what it gets is locked", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		lease, ok, err := m.Acquire(t.Context(), 0)
		if !ok || err != nil {
			t.Fatalf("Acquire: %v, %v", ok, err)
		}
		wantLocked(t, m, true)
		if _, ok, err := m.Acquire(t.Context(), 0); ok || err != nil {
			t.Errorf("Acquire within: %v, %v", ok, err)
		}
		mustUnlock(t, lease)
	})
	seed(t, "for ever waits until the lock is released, or the context ends", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		var wg sync.WaitGroup
		redistest.Go(&wg, func() {
			lease, ok, err := m.Acquire(context.Background(), inside.MaxTTL)
			if !ok || err != nil {
				t.Errorf("Acquire: %v, %v", ok, err)
			} else if err := lease.Unlock(context.Background()); err != nil {
				t.Error(err)
			}
		})
		waiting(t, m, 1)
		ctx, cancel := context.WithCancel(t.Context())
		redistest.Go(&wg, func() {
			if _, ok, err := m.Acquire(ctx, inside.MaxTTL); ok || !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire with an ended context: %v, %v", ok, err)
			}
		})
		waiting(t, m, 2)
		cancel()
		waiting(t, m, 1)
		mustUnlock(t, held)
		wg.Wait()
	})
}

func TestSeedRedisSemaphore_NoTokenIsLost(t *testing.T) {
	t.Parallel()
	seed(t, "who dies with a resource gives it back when its time is up", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 2, TTL(200*time.Millisecond), NoRenew())
		p := hers.Pool(m.name, TTL(200*time.Millisecond), NoRenew())
		mustPut(t, p, 1, "licence")
		mustTry(t, m)
		mustTry(t, m)
		mustTake(t, p, "licence")
		redistest.Must(t, hers.Close())
		for range 2 {
			untilTaken(t, his.Semaphore(m.name, 2))
		}
		again := lockBeside(t, his.Pool(m.name).m).got(t) // in line, as Take is
		if again.Value() != "licence" {
			t.Errorf("what came back is %q", again.Value())
		}
		mustPutBack(t, again)
	})
	// Taking and recording are one script: there is no moment between. What
	// remains is a reply that is lost on its way to a client that gives up.
	t.Run("a resource whose taker never heard of it comes back", func(t *testing.T) {
		t.Parallel()
		eachSingle(t, func(t *testing.T, s *redistest.Server) {
			near, far, proxy := through(t, s, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
			p := near.Pool(redistest.Name(t), TTL(time.Minute))
			mustPut(t, p, 1, "licence")
			mustPutBack(t, mustTake(t, p, "licence")) // the scripts are known to the server
			proxy.DropReplyTo(isScript(wire.PoolTakeScript, p.m), 1)
			if _, err := far.Pool(p.m.name, TTL(time.Minute)).m.TryLock(t.Context()); !errors.Is(err, ErrBackend) {
				t.Fatalf("TryTake with its reply lost: %v, want ErrBackend", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			le, err := p.Take(ctx)
			redistest.Must(t, err)
			mustPutBack(t, le)
		})
	})
}

func TestSeedRedisSemaphore_LeavesNothingBehind(t *testing.T) {
	t.Parallel()
	seed(t, "no key after the last unlock, and one that expires where a holder died", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2, TTL(time.Minute))
		err := m.Do(t.Context(), func(context.Context) error { return nil })
		redistest.Must(t, err)
		if n, err := raw(m).Exists(t.Context(), m.Key()).Result(); n != 0 || err != nil {
			t.Errorf("the key is left: %d, %v", n, err)
		}
		mustTry(t, m)
		// Later than its holder's deadline, so that it never vanishes under one.
		if ttl := raw(m).PTTL(t.Context(), m.Key()).Val(); ttl <= 0 || ttl > time.Minute+keepSlack {
			t.Errorf("the key of a holder that may die lasts for %s", ttl)
		}
	})
	seed(t, "a pool goes with its last value", func(t *testing.T, s *redistest.Server) {
		p := newLocker(t, s.Client(t)).Pool(redistest.Name(t))
		mustPut(t, p, 2, "a", "b")
		for _, value := range []string{"a", "b"} {
			redistest.Must(t, mustTake(t, p, value).Consume(t.Context()))
		}
		if n, err := raw(p.m).Exists(t.Context(), p.m.Key()).Result(); n != 0 || err != nil {
			t.Errorf("the key is left: %d, %v", n, err)
		}
	})
}

func TestSeedRedisSemaphore_ChangingResources(t *testing.T) {
	t.Parallel()
	seed(t, "three more resources, then three less", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		name := redistest.Name(t)
		one, four := hers.Semaphore(name, 1), his.Semaphore(name, 4)
		held := mustTry(t, one)
		mustBeBusy(t, one)
		wantAvailable(t, four, 3)
		more := []*Lease{mustTry(t, four), mustTry(t, four), mustTry(t, four)}
		mustBeBusy(t, four)
		wantAvailable(t, four, 0)
		// Back to one: nobody is thrown out, and nobody comes in before.
		for _, le := range append(more, held) {
			mustBeBusy(t, one)
			wantAvailable(t, one, 0)
			mustUnlock(t, le)
		}
		wantAvailable(t, one, 1)
		mustUnlock(t, mustTry(t, one))
	})
	seed(t, "values are added to a pool, and waiting takers get them", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		p := hers.Pool(redistest.Name(t))
		mustPut(t, p, 1, "0")
		mustTake(t, p, "0")
		waiter := lockBeside(t, his.Pool(p.m.name).m)
		redistest.Eventually(t, soon, func() bool {
			info, err := p.Inspect(t.Context())
			return err == nil && info.Waiting == 1
		}, "a taker in line")
		mustPut(t, p, 3, "1", "2", "3")
		if v := waiter.got(t).Value(); v != "1" {
			t.Errorf("the waiter got %q", v)
		}
		if n, err := p.available(t.Context()); n != 2 || err != nil {
			t.Errorf("Available: %d, %v; want 2", n, err)
		}
	})
}

func TestSeedRedisSemaphore_AllTokens(t *testing.T) {
	t.Parallel()
	seed(t, "free and taken together are the same, whoever holds what", func(t *testing.T, s *redistest.Server) {
		p := newLocker(t, s.Client(t)).Pool(redistest.Name(t))
		all := []string{"a", "b|%", "c d", "é\n"}
		mustPut(t, p, len(all), all...)
		tokens := func() (tokens []string) {
			info, err := p.Inspect(t.Context())
			if err != nil || info.Free != len(info.Values) || info.Taken != len(info.Holders) {
				t.Fatalf("Inspect: %+v, %v", info, err)
			}
			tokens = append(tokens, info.Values...)
			for _, h := range info.Holders {
				tokens = append(tokens, h.Value)
			}
			slices.Sort(tokens)
			return tokens
		}
		slices.Sort(all)
		for i := range len(all) + 1 {
			if got := tokens(); !slices.Equal(got, all) {
				t.Errorf("with %d taken: %q, want %q", i, got, all)
			}
			if i < len(all) {
				if _, err := p.m.TryLock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
