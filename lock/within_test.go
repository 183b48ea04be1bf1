package lock

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// On a Redis that hangs every call returns when its context ends, by its deadline
// or because it was cancelled, and what it left behind is released later.
func TestHungRedis_callsEndWithTheirContext(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(redistest.Name(t), TTL(time.Minute), Note("note"), onStop(1, func() {}))
	p, c := l.Pool(redistest.Name(t)), l.claim(m.Key())
	mustUnlock(t, mustTry(t, m)) // connected, and the scripts are there
	s.Pause(t)
	for name, call := range map[string]func(context.Context) error{
		"TryLock":    func(ctx context.Context) error { _, err := m.TryLock(ctx); return err },
		"Lock":       func(ctx context.Context) error { _, err := m.Lock(ctx); return err },
		"LockOrPark": func(ctx context.Context) error { _, err := m.lockOrPark(ctx, make(chan struct{})); return err },
		"Do":         func(ctx context.Context) error { return m.Do(ctx, func(context.Context) error { return nil }) },
		"Acquire":    func(ctx context.Context) error { _, _, err := m.Acquire(ctx, time.Minute); return err },
		"Inspect":    func(ctx context.Context) error { _, err := m.inspectAll(ctx); return err },
		"Line":       func(ctx context.Context) error { _, err := m.listLine(ctx, inside.Info{}, 10); return err },
		"Break":      func(ctx context.Context) error { _, err := m.BreakAll(ctx); return err },
		"Stop":       func(ctx context.Context) error { _, err := m.askOlderToStop(ctx); return err },
		"Arrive":     func(ctx context.Context) error { _, _, err := m.arrive(ctx); return err },
		"Put":        func(ctx context.Context) error { _, err := p.Put(ctx, "value"); return err },
		"Take":       func(ctx context.Context) error { _, err := p.Take(ctx); return err },
		"Claim.Take": func(ctx context.Context) error { _, err := c.Take(ctx, "q/1", "", time.Minute); return err },
		"Sweep":      func(ctx context.Context) error { _, err := l.sweep(ctx); return err },
	} {
		for how, begin := range map[string]func() (context.Context, context.CancelFunc){
			"a deadline": func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), 200*time.Millisecond)
			},
			"a cancellation": func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(200*time.Millisecond, cancel)
				return ctx, cancel
			},
		} {
			ctx, cancel := begin()
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); took > 2500*time.Millisecond { // the client alone gives up after 3 s
				t.Errorf("%s with %s after 200ms returned after %s", name, how, took)
			}
			if !errors.Is(err, ctx.Err()) {
				t.Errorf("%s with %s: %v; want that it Is %v", name, how, err, ctx.Err())
			}
			cancel()
		}
	}
	s.Resume(t)
	free(t, m, soon)
}

// otherMaster is a name whose lock is on another master than key.
func otherMaster(t *testing.T, s *redistest.Server, l *Locker, key string) string {
	t.Helper()
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s %d", redistest.Name(t), i)
		if s.MasterOf(t, l.Mutex(name).Key()) != s.MasterOf(t, key) {
			return name
		}
	}
}

// One master of a Cluster hangs. On the others leases are renewed, waiters get
// their locks and claims are taken, though they fall due together with those of
// the hung one.
func TestClusterHang_othersGoOn(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprintf("MinReplicas %d", replicas), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartCluster(t, replicas)
			l := newLocker(t, s.Client(t), minReplicas(replicas))
			others := newLocker(t, s.Client(t))
			hung := l.Mutex(redistest.Name(t), TTL(3*time.Second))
			healthy := l.Mutex(otherMaster(t, s, l, hung.Key()), TTL(3*time.Second))
			waited := others.Mutex(otherMaster(t, s, l, hung.Key()))
			waitedHung := others.Mutex(hung.name + " waited")
			waitedHung.keys = []string{hung.Key() + ":waited"} // in the slot of hung
			mustTry(t, hung)
			le := mustTry(t, healthy)
			held := mustTry(t, waited)
			mustTry(t, waitedHung)
			here := handle(l, waitedHung)
			here.keys = waitedHung.keys
			lockBeside(t, here)
			waiting(t, waitedHung, 1)
			a := inLine(t, handle(l, waited), 1)
			resume := s.PauseMaster(t, hung.Key())
			defer resume()
			hungAt := time.Now()
			go func() { _, _ = l.claim(hung.Key()).Take(t.Context(), "q/1", "", time.Minute) }() // ends within exchange.Timeout
			redistest.Eventually(t, soon, func() bool { return time.Since(hungAt) > 1500*time.Millisecond }, "refreshes under way")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if taken, err := l.claim(healthy.Key()).Take(ctx, "q/1", "", time.Minute); taken.Holder != "q/1" || err != nil {
				t.Errorf("Take on a healthy master: %+v, %v", taken, err)
			}
			mustUnlock(t, held)
			unlocked := time.Now()
			mustUnlock(t, a.got(t))
			if took := time.Since(unlocked); took > 3*time.Second {
				t.Errorf("the waiter on a healthy master got its lock after %s", took)
			}
			redistest.Eventually(t, soon, func() bool { return time.Since(hungAt) > 9*time.Second }, "three times the TTL")
			if !le.Held() {
				t.Error("a lease on a healthy master was lost")
			}
		})
	}
}

// caller is a redis.Hook that notes whether the commands of a name run on the goroutine
// that called a function with frame in its name.
type caller struct {
	frame  string
	inside atomic.Int64
	beside atomic.Int64
}

func (h *caller) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *caller) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *caller) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// Beside them the controls are read, under a key of their own.
		if name := cmd.Name(); (name == "evalsha" || name == "eval" || name == "set") && strings.Contains(fmt.Sprint(cmd.Args()...), "TestUninterrupted") {
			if strings.Contains(string(debug.Stack()), h.frame) {
				h.inside.Add(1)
			} else {
				h.beside.Add(1)
			}
		}
		return next(ctx, cmd)
	}
}

// With the option Uninterrupted a call sends its commands on its caller's goroutine,
// also with a context that can end. Without it another goroutine sends the first.
func TestUninterrupted_staysOnTheCallersGoroutine(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	seen := &caller{frame: "takesAndReleases"}
	rdb.AddHook(seen)
	l := newLocker(t, rdb)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	takesAndReleases(ctx, t, l.Mutex(redistest.Name(t)+"1"))
	if seen.beside.Load() == 0 {
		t.Error("without the option every command ran on the caller's goroutine: this test sees nothing")
	}
	seen.beside.Store(0)
	takesAndReleases(ctx, t, l.Mutex(redistest.Name(t)+"2", uninterrupted()))
	if n := seen.beside.Load(); n > 0 && transportFor(t, rdb) == nil {
		t.Errorf("%d commands ran beside", n)
	}
}

func takesAndReleases(ctx context.Context, t *testing.T, m *Lock) {
	t.Helper()
	le, err := m.TryLock(ctx)
	redistest.Must(t, err)
	mustUnlock(t, le)
	if le, err = m.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, le)
}

// With the option Uninterrupted a call on a Redis that hangs ends by the client's own
// bounds, and what it asked for is released later. A lease that comes after the
// context has ended is given back.
func TestUninterrupted_onAHungRedis(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(redistest.Name(t), TTL(time.Minute), uninterrupted())
	mustUnlock(t, mustTry(t, m))
	ctx, cancel := context.WithCancel(t.Context())
	s.Pause(t)
	time.AfterFunc(100*time.Millisecond, func() { cancel(); s.Resume(t) })
	if le, err := m.TryLock(ctx); le != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("TryLock after its context had ended: %v, %v", le, err)
	}
	free(t, m, soon)

	ctx, cancel = context.WithCancel(t.Context())
	s.Pause(t)
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	if _, err := m.TryLock(ctx); !errors.Is(err, ErrBackend) {
		t.Errorf("TryLock: %v", err)
	}
	if took := time.Since(began); took > soon {
		t.Errorf("TryLock returned after %s", took)
	}
	s.Resume(t)
	free(t, m, soon)
}
