package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func start(t *testing.T, s *redistest.Server) *Engine {
	t.Helper()
	e := New(Options{Client: s.Client(t), Prefix: "automutex", Owner: "test", Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(e.Close)
	return e
}

func request(t *testing.T) Request {
	return Request{Ref: Ref{Key: "automutex:{" + redistest.Name(t) + "}", Limit: 1}, TTL: 30 * time.Second}
}

func inLine(r Request) Request {
	r.Wait = true
	return r
}

// must takes a lock that is to be had.
func must(t *testing.T, e *Engine, r Request) *Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	le, err := e.Take(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return le
}

func release(t *testing.T, le *Lease) {
	t.Helper()
	if _, err := le.Release(context.Background(), Ending{}); err != nil {
		t.Fatal(err)
	}
}

func isBusy(err error) bool {
	var busy *Busy
	return errors.As(err, &busy)
}

// TestTake: one holder at a time, by each way to take a lock.
func TestTake(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, other := start(t, s), start(t, s)
		for name, change := range map[string]func(*Request){
			"plain": func(*Request) {}, "fenced": func(r *Request) { r.Fenced = true }, "rate": func(r *Request) { r.Every = time.Microsecond },
			"semaphore": func(r *Request) { r.Limit = 2 }, "any number": func(r *Request) { r.Limit = 1 << 62 },
		} {
			t.Run(name, func(t *testing.T) {
				r := request(t)
				change(&r)
				for range 3 {
					var held []*Lease
					for range min(r.Limit, 3) {
						held = append(held, must(t, e, r))
					}
					_, err := other.Take(context.Background(), r)
					if full := r.Limit < 3; full != isBusy(err) {
						t.Fatalf("%v, want busy %v", err, full)
					}
					for i, le := range held {
						if r.Fenced && i == 0 && le.Fence() == 0 {
							t.Error("no fence")
						}
						release(t, le)
						if _, err := le.Release(context.Background(), Ending{}); !errors.Is(err, ErrNotHeld) {
							t.Errorf("released again: %v", err)
						}
					}
				}
			})
		}
	})
}

// TestLine: who waits gets the lock in the order of the line, from its own process and from others.
func TestLine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		engines := []*Engine{start(t, s), start(t, s)}
		r := request(t)
		first := must(t, engines[0], r)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 8 {
			waits := inLine(r)
			in := make(chan struct{})
			waits.OnWait = func() { close(in) }
			redistest.Go(&wg, func() {
				le := must(t, engines[i%2], waits)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				release(t, le)
			})
			<-in
		}
		release(t, first)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 8 {
			t.Errorf("served as %v", order)
		}
	})
}

// TestExclusion: many callers of several processes, and never two holders.
func TestExclusion(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := inLine(request(t))
		var inside, most, served atomic.Int32
		var wg sync.WaitGroup
		for range 3 {
			e := start(t, s)
			for range 10 {
				redistest.Go(&wg, func() {
					for range 5 {
						le := must(t, e, r)
						n := inside.Add(1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						served.Add(1)
						inside.Add(-1)
						release(t, le)
					}
				})
			}
		}
		wg.Wait()
		if most.Load() != 1 || served.Load() != 150 {
			t.Errorf("%d at once, %d served", most.Load(), served.Load())
		}
	})
}

// TestRenewal: a lease outlives its TTL many times, and is lost when its holder stops renewing it.
func TestRenewal(t *testing.T) {
	redistest.RealTime(t)
	s := redistest.Real(t)
	e, other := start(t, s), start(t, s)
	r := request(t)
	r.TTL = 300 * time.Millisecond
	le := must(t, e, r)
	waits := inLine(r)
	got := make(chan *Lease)
	go func() { got <- must(t, other, waits) }()
	select {
	case <-got:
		t.Fatal("a lease that is renewed was taken")
	case <-time.After(1200 * time.Millisecond): // four TTLs
	}
	if !le.Held() {
		t.Fatal("lost")
	}
	ctx := le.Bind(context.Background())
	e.Close()
	next := <-got
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), ErrLost) {
		t.Errorf("the context ended with %v", context.Cause(ctx))
	}
	release(t, next)
}

// TestLeave: who gives up leaves nothing behind, also when the lock is granted at that moment.
func TestLeave(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, other := start(t, s), start(t, s)
		r := request(t)
		for i := range 20 {
			le := must(t, e, r)
			ctx, cancel := context.WithCancel(context.Background())
			waits := inLine(r)
			in := make(chan struct{})
			waits.OnWait = func() { close(in) }
			done := make(chan error)
			go func() {
				le, err := other.Take(ctx, waits)
				if err == nil {
					_, err = le.Release(context.Background(), Ending{})
				}
				done <- err
			}()
			<-in
			if i%2 == 0 {
				cancel()
				release(t, le)
			} else {
				release(t, le)
				cancel()
			}
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			redistest.Eventually(t, 30*time.Second, func() bool {
				le, err := e.Take(context.Background(), r)
				if err == nil {
					release(t, le)
				}
				return err == nil
			}, "the lock stays taken")
		}
	})
}

// TestBroken: the context of a holder whose lock is broken ends.
func TestBroken(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := start(t, s)
		r := request(t)
		le := must(t, e, r)
		waits := inLine(r)
		got := make(chan *Lease)
		go func() { got <- must(t, e, waits) }()
		redistest.Eventually(t, 30*time.Second, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.listening
		}, "nobody listens")
		ctx := le.Bind(context.Background())
		redistest.Eventually(t, 30*time.Second, func() bool {
			_, err := e.conn.Run(context.Background(), breakScript, r.keys(), 1, le.Token(), "0", 0)
			redistest.Must(t, err)
			return ctx.Err() != nil || len(got) > 0
		}, "the context goes on")
		release(t, <-got)
		if !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
	})
}

// TestCrowd measures 20,000 callers that wait for one lock in one process: how long until all are in line, how long a free lock takes
// meanwhile, and how long until all are served after they may have it. CROWD=1 runs it.
func TestCrowd(t *testing.T) {
	if os.Getenv("CROWD") == "" {
		t.Skip("CROWD=1 measures")
	}
	const n = 20000
	s := redistest.StartReal(t)
	e := start(t, s)
	r := request(t)
	le := must(t, e, r)
	var wg sync.WaitGroup
	var in, served atomic.Int32
	began := time.Now()
	for range n {
		waits := inLine(r)
		waits.OnWait = func() { in.Add(1) }
		redistest.Go(&wg, func() {
			le, err := e.Take(context.Background(), waits)
			if err == nil {
				served.Add(1)
				_, _ = le.Release(context.Background(), Ending{})
			}
		})
	}
	slowest := time.Duration(0)
	for i := 0; in.Load() < n && time.Since(began) < time.Minute; i++ {
		free := r
		free.Key = fmt.Sprintf("automutex:{free%d}", i)
		at := time.Now()
		release(t, must(t, e, free))
		slowest = max(slowest, time.Since(at))
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d in line after %s; a free lock took %s at most", in.Load(), time.Since(began), slowest)
	began = time.Now()
	release(t, le)
	wg.Wait()
	t.Logf("%d served after %s", served.Load(), time.Since(began))
}

// TestReleaseSentTwice: a release that the client sends again has given the lock back; a lock that was broken is not held.
func TestReleaseSentTwice(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		plain, rdb := start(t, s), s.Client(t)
		resending := s.Client(t)
		resending.AddHook(redistest.Resend(func(cmd redis.Cmder) bool { return cmd.Name() == "evalsha" || cmd.Name() == "eval" }))
		twice := New(Options{Client: resending, Prefix: "automutex", Owner: "test", Log: slog.New(slog.DiscardHandler)})
		t.Cleanup(twice.Close)
		for _, limit := range []int{1, 3} { // thin, and fat
			r := request(t)
			r.Limit = limit
			le := must(t, twice, r)
			if limit > 1 {
				release(t, must(t, plain, r)) // leaves nothing thin
				must(t, plain, r)
			}
			release(t, le)
			le = must(t, plain, r)
			redistest.Must(t, rdb.Del(context.Background(), r.Key, r.Key+":holders", r.Key+":info").Err())
			if _, err := le.Release(context.Background(), Ending{}); !errors.Is(err, ErrNotHeld) {
				t.Errorf("limit %d: a lock that was deleted: %v", limit, err)
			}
		}
	})
}

// TestRefusedRenewal: a renewal that failed is sent again when it is due, and sooner only beside another one.
func TestRefusedRenewal(t *testing.T) {
	e := New(Options{Unfit: errors.New("no client")})
	now := time.Now()
	hold := func(renew time.Duration) {
		le := e.newLease(Request{TTL: time.Second})
		le.state, le.deadline, le.renewAt = held, now.Add(800*time.Millisecond), now.Add(renew)
		e.holds.set(&le.entry, le.next())
	}
	hold(100 * time.Millisecond)
	if _, renewals := e.takeHolds(now, true); len(renewals) > 0 || len(e.holds) != 1 {
		t.Errorf("%d are renewed before they are due, %d are planned", len(renewals), len(e.holds))
	}
	hold(0)
	if _, renewals := e.takeHolds(now, true); len(renewals) != 2 || len(e.holds) != 2 {
		t.Errorf("%d are renewed with one that is due, want 2; %d are planned", len(renewals), len(e.holds))
	}
}

// TestFullRedis: a Redis whose memory is full lets a lease of a fat lock be extended, beyond the life of its keys, too.
func TestFullRedis(t *testing.T) {
	s := redistest.StartReal(t, "--maxmemory-policy", "noeviction")
	e, r := start(t, s), request(t)
	r.Limit = 2
	le := must(t, e, r)
	must(t, e, r) // so the lock is fat
	if err := s.Client(t).ConfigSet(t.Context(), "maxmemory", "100kb").Err(); err != nil {
		t.Fatal(err)
	}
	for _, length := range []time.Duration{time.Minute, time.Hour} {
		if err := le.Extend(t.Context(), length); err != nil {
			t.Errorf("by %s: %v", length, err)
		}
	}
}

// TestCrowdOfFreeLocks: who gets a lock at once has not waited for it, however many ask at a time.
func TestCrowdOfFreeLocks(t *testing.T) {
	e := start(t, redistest.Mini(t))
	var wg sync.WaitGroup
	var waited atomic.Int64
	for i := range 4 * maxFirstAsks {
		r := inLine(request(t))
		r.Key = fmt.Sprintf("automutex:{%s|%d}", redistest.Name(t), i)
		r.OnWait = func() { waited.Add(1) }
		redistest.Go(&wg, func() { release(t, must(t, e, r)) })
	}
	wg.Wait()
	if waited.Load() > 0 {
		t.Errorf("%d waited for a lock that was free", waited.Load())
	}
}
