package lock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// allCalls are the calls that ask Redis for something.
func allCalls(l *lock.Locker, name string) map[string]func(context.Context) error {
	m := l.Mutex(name, lock.Note("note"), insider.OnStop(1, func() {}))
	p, c, q := pool.New(l, name), insider.Claim(l, m.Key()), insider.ByOrder(l, m.Key())
	return map[string]func(context.Context) error{
		"TryLock":    func(ctx context.Context) error { return second(m.TryLock(ctx)) },
		"Lock":       func(ctx context.Context) error { return second(m.Lock(ctx)) },
		"LockOrPark": func(ctx context.Context) error { return second(insider.LockOrPark(ctx, m, nil)) },
		"Acquire":    func(ctx context.Context) error { _, _, err := m.Acquire(ctx, time.Minute); return err },
		"Do": func(ctx context.Context) error {
			return m.Do(ctx, func(context.Context) error { return errors.New("f ran") })
		},
		"Locked":    func(ctx context.Context) error { return second(m.Locked(ctx)) },
		"Available": func(ctx context.Context) error { return second(m.Available(ctx)) },
		"Holders":   func(ctx context.Context) error { return second(m.Holders(ctx)) },
		"Waiting":   func(ctx context.Context) error { return second(m.Waiting(ctx)) },
		"Inspect":   func(ctx context.Context) error { return second(insider.Inspect(ctx, m)) },
		"Break":     func(ctx context.Context) error { return second(m.Break(ctx, "token")) },
		"BreakAll":  func(ctx context.Context) error { return second(m.BreakAll(ctx)) },
		"Delete":    m.Delete,
		"OpenGate":  func(ctx context.Context) error { return second(insider.OpenGate(ctx, m)) },
		"Arrive":    func(ctx context.Context) error { _, _, err := insider.Arrive(ctx, m); return err },
		"Forget":    func(ctx context.Context) error { return insider.Forget(ctx, m) },
		"AskOlder":  func(ctx context.Context) error { return second(insider.AskOlderToStop(ctx, m)) },
		"Stamp": func(ctx context.Context) error {
			_, _, _, err := insider.Stamp(ctx, q, "note", "n", time.Minute, 1)
			return err
		},
		"ActOrder": func(ctx context.Context) error {
			return insider.ActOrder(ctx, q, inside.ActConfirm, inside.OrderItem{Nonce: "n", Ticket: 1, Note: "note"}, 0)
		},
		"SkipHead":   func(ctx context.Context) error { return second(insider.SkipHead(ctx, q, "note", 1)) },
		"Head":       func(ctx context.Context) error { return second(insider.Head(ctx, q)) },
		"Put":        func(ctx context.Context) error { return second(p.Put(ctx, "value")) },
		"Take":       func(ctx context.Context) error { return second(p.Take(ctx)) },
		"Pool":       func(ctx context.Context) error { return second(p.Inspect(ctx)) },
		"PoolDelete": func(ctx context.Context) error { return second(p.Delete(ctx)) },
		"Claim":      func(ctx context.Context) error { return second(c.Take(ctx, "holder", "", time.Minute)) },
		"Drop":       func(ctx context.Context) error { return second(c.Drop(ctx, "holder")) },
	}
}

// Whatever is asked for through a connection that Redis refuses ends with an error that Is ErrBackend, and not ErrBusy.
func TestAway_everyCallFails(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	l := newLocker(t, withUser(t, s, admin, "gone"))
	held := mustTry(t, l.Mutex("held"))
	waits := inLine(t, l.Mutex("held"), 1)
	tell(t, admin, "ACL", "DELUSER", "gone")
	for name, call := range allCalls(l, "x") {
		if err := call(t.Context()); !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
			t.Errorf("%s: %v; want ErrBackend", name, err)
		}
	}
	if err := held.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrBackend) {
		t.Errorf("Extend: %v; want ErrBackend", err)
	}
	if err := held.Unlock(t.Context()); !errors.Is(err, lock.ErrBackend) {
		t.Errorf("Unlock: %v; want ErrBackend", err)
	}
	waits.cancel()
	waits.failed(t)
}

// fixed is a hook that gives a reply of its own for every script and SET, and sends none.
type fixed struct {
	reply any
	on    *atomic.Bool // false: everything passes
}

func (fixed) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a fixed) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if a.answers(cmd) {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (a fixed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if !a.answers(cmd) {
				return next(ctx, cmds) // that of a new connection
			}
		}
		return nil
	}
}

func (a fixed) answers(cmd redis.Cmder) bool {
	if !a.on.Load() {
		return false
	}
	switch cmd := cmd.(type) {
	case interface { // *redis.Cmd, and what a release is sent as
		redis.Cmder
		SetVal(v any)
	}:
		if strings.HasPrefix(cmd.Name(), "eval") {
			cmd.SetVal(a.reply)
			return true
		}
	case *redis.StatusCmd:
		if cmd.Name() == "set" {
			cmd.SetVal(fmt.Sprint(a.reply))
			return true
		}
	}
	return false
}

// A reply that Redis never gives is an error of every call, never a yes, and no renewal.
func TestReply_unknown(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]any{
		"nil": nil, "empty": "", "text": "yes", "list of nil": []any{nil}, "nils for numbers": []any{nil, nil, nil, nil, nil}, "map": map[any]any{"yes": true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Mini(t).Client(t)
			hook := fixed{reply, new(atomic.Bool)}
			rdb.AddHook(hook)
			l := newLocker(t, rdb)
			le := mustTry(t, l.Mutex(redistest.Name(t), lock.TTL(time.Second)))
			hook.on.Store(true)
			for call, f := range allCalls(l, redistest.Name(t)) {
				if err := f(t.Context()); !errors.Is(err, lock.ErrBackend) {
					t.Errorf("%s: %v; want ErrBackend", call, err)
				}
			}
			redistest.Eventually(t, soon, func() bool { return !le.Held() }, "the end of a lease that nothing renews")
			if early := time.Until(le.Deadline()); early > 0 {
				t.Errorf("lost %s before its deadline", early)
			}
		})
	}
}

// On a Redis that hangs every call returns when its context ends, by its deadline or because it was cancelled, long before
// the client gives up; what it left behind ends.
func TestAway_callsEndWithTheirContext(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	takesAndUnlocks(t, l.Mutex("x")) // connected, and the scripts are there
	s.Pause(t)
	for name, call := range allCalls(l, "x") {
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
			if took := time.Since(began); took > 2500*time.Millisecond {
				t.Errorf("%s with %s after 200ms returned after %s", name, how, took)
			}
			if !errors.Is(err, ctx.Err()) {
				t.Errorf("%s with %s: %v; want that it Is %v", name, how, err, ctx.Err())
			}
			cancel()
		}
	}
	s.Resume(t)
	untilTaken(t, l.Mutex("x"))
}

// With the option Uninterrupted a call on a Redis that hangs ends by the client's own bounds, and a lease that comes after
// its context has ended is given back. Otherwise it is a lock like any other.
func TestUninterrupted(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex("x", insider.Uninterrupted(), lock.TTL(10*time.Second))
	takesAndUnlocks(t, m)
	held := mustTry(t, m)
	w := inLine(t, m, 1)
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	ctx, cancel := context.WithCancel(t.Context())
	s.Pause(t)
	got := make(chan error, 1)
	go func() {
		le, err := m.TryLock(ctx)
		if le != nil {
			err = errors.New("it has the lock")
		}
		got <- err
	}()
	cancel()
	s.Resume(t)
	if err := come(t, got, "TryLock"); !errors.Is(err, context.Canceled) {
		t.Errorf("TryLock after its context had ended: %v", err)
	}
	free(t, m)
	s.Pause(t)
	if _, err := m.TryLock(t.Context()); !errors.Is(err, lock.ErrBackend) {
		t.Errorf("TryLock: %v", err)
	}
	s.Resume(t)
	free(t, m)
}

// One master of a Cluster hangs. On the others leases are renewed, and waiters get their locks, though they fall due
// together with those of the hung one.
func TestAway_othersOfAClusterGoOn(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	l, others := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
	hung := l.Mutex(redistest.Name(t), lock.TTL(3*time.Second))
	elsewhere := func() string {
		for i := 0; ; i++ {
			name := fmt.Sprintf("%s %d", redistest.Name(t), i)
			if s.MasterOf(t, l.Mutex(name).Key()) != s.MasterOf(t, hung.Key()) {
				return name
			}
		}
	}
	mustTry(t, hung)
	le := mustTry(t, l.Mutex(elsewhere(), lock.TTL(3*time.Second)))
	waited := elsewhere()
	held := mustTry(t, others.Mutex(waited))
	inLine(t, hung, 1)
	w := inLine(t, l.Mutex(waited), 1)
	resume := s.PauseMaster(t, hung.Key())
	defer resume()
	hungAt := time.Now()
	redistest.Eventually(t, soon, func() bool { return time.Since(hungAt) > 1500*time.Millisecond }, "refreshes under way")
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	if took := time.Since(hungAt); took > 5*time.Second {
		t.Errorf("the waiter on a healthy master got its lock after %s", took)
	}
	redistest.Eventually(t, soon, func() bool { return time.Since(hungAt) > 9*time.Second }, "three times the TTL")
	if !le.Held() {
		t.Error("a lease on a healthy master was lost")
	}
}

// What nobody else wants costs a command to take and one to release, however it is asked for; a hand-off costs the one who
// leaves one, too.
func TestCosts(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	p := redistest.NewProxy(t, s.Addr())
	l := newCaller(t, p.Client(t), func(context.Context, string, string) inside.Fate { return inside.FateUnsure })
	sent := func() (n int) {
		for name, times := range p.Commands() {
			if !slices.Contains([]string{"PING", "HELLO", "CLIENT", "SELECT", "CONTROL", "SUBSCRIBE"}, name) {
				n += times
			}
		}
		return n
	}
	for range 3 { // then the Locker knows which commands the server has, and the server the scripts
		takesAndUnlocks(t, l.Mutex("warm"))
	}
	for what, m := range map[string]*lock.Lock{
		"a mutex": l.Mutex("m"), "a semaphore": l.Semaphore("s", 3), "a fenced one": l.Mutex("f", lock.Fenced()), "a rated one": l.Mutex("r", lock.Rate(1000, time.Millisecond, 1000)),
	} {
		for i, yield := range []<-chan struct{}{nil, parkNow, nil, parkNow} {
			before := sent()
			le, err := insider.LockOrPark(t.Context(), insider.At(m, "x", m.Key(), 1, "note"), yield)
			redistest.Must(t, err)
			mustUnlock(t, le)
			if n := sent() - before; n != 2 && i > 1 { // the first ones bring the scripts
				t.Errorf("%s: %d commands for a take and a release, want 2: %v", what, n, p.Commands())
			}
		}
	}
	m := l.Mutex("h")
	held := mustTry(t, m)
	w := inLine(t, newLocker(t, s.Client(t)).Mutex("h"), 1)
	before := sent()
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	if n := sent() - before; n > 2 {
		t.Errorf("%d commands to hand a lock over, want 2 at most", n)
	}
}

// asUser are tests of what the locks promise that look at Redis with no more rights than the locks have.
var asUser = []string{
	"Rule02_LateReleaseLeavesTheSuccessorAlone", "Lease_releaseTellsWhatIsFree", "OnePerNote_refusesASecondSlot", "Park_oneCallAtATimeForANote",
	"Rate_grantedByOthers", "OpenGate", "Arrive", "Newest_older", "Order_lowestStampFirst", "Order_outcomes", "Order_skip", "Rights_pool", "Rights_walk", "Rights_slotThatMoves",
}

// The documented rights are enough: a user with these and no others runs tests again, in a process of its own.
func TestRights(t *testing.T) {
	t.Parallel()
	redistest.AsUser(t, redistest.DocumentedRights(t, "../docs/redis.md", "automutex"), asUser)
}

// The documented rights are no wider than what scripts call, and what is said here.
func TestRights_noneTooMany(t *testing.T) {
	t.Parallel()
	used := []string{
		"resetkeys", "resetchannels", "~automutex:*", "&automutex:*",
		"+eval", "+evalsha", "+scan", // the engine itself
		"+set", "+subscribe", "+unsubscribe", "+ping", // a free lock, and its wake channel
		"+hello", "+cluster|slots", "+asking", // go-redis, to connect, and to follow a slot that moves
	}
	files, err := filepath.Glob("../internal/*/lua/*.lua")
	redistest.Must(t, err)
	call := regexp.MustCompile(`\bp?call\('(\w+)'`)
	for _, f := range files {
		source, err := os.ReadFile(f)
		redistest.Must(t, err)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			used = append(used, "+"+strings.ToLower(m[1]))
		}
	}
	for _, right := range redistest.DocumentedRights(t, "../docs/redis.md", "automutex") {
		if !slices.Contains(used, right) {
			t.Errorf("%s is used by nothing", right)
		}
	}
}

// What walks all keys, under a prefix that the rights cover.
func TestRights_walk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), prefixed(inside.DefaultPrefix+":"+redistest.Name(t)))
		m := l.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		listed := map[string]bool{}
		for info, err := range insider.List(t.Context(), l) {
			redistest.Must(t, err)
			listed[info.Key] = true
		}
		if !maps.Equal(listed, map[string]bool{m.Key(): true}) {
			t.Errorf("listed are %v", listed)
		}
		redistest.Must(t, second(insider.Sweep(t.Context(), l)))
		wantLocked(t, m, true)
		redistest.Must(t, le.Extend(t.Context(), lock.DefaultTTL))
		mustUnlock(t, le)
	})
}

// In a Cluster, what lies in a slot that moves to another node: a free lock can be taken and given back, a lease goes on, and who comes
// then gets its turn when the slot has moved.
func TestRights_slotThatMoves(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		move := func(_ *lock.Lock, while func()) { while() }
		if s.Kind() == redistest.KindCluster {
			s = redistest.StartCluster(t, 0)
			move = func(m *lock.Lock, while func()) { s.MoveSlot(t, m.Key(), while) }
		}
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		move(m, func() { takesAndUnlocks(t, m) })
		le := mustTry(t, m)
		var next *attempt
		move(m, func() {
			redistest.Must(t, le.Extend(t.Context(), time.Minute))
			if next == nil {
				next = lockBeside(t, m)
			}
		})
		mustUnlock(t, le)
		mustUnlock(t, next.got(t))
	})
}

// Every operation of a pool.
func TestRights_pool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := pool.New(newLocker(t, s.Client(t)), redistest.Name(t))
		mustPut(t, p, 2, "a", "b")
		mustUnlock(t, mustTake(t, p, "a").Lease)
		wantFree(t, p, 2)
		redistest.Must(t, mustTake(t, p, "b").Consume(t.Context()))
		redistest.Must(t, second(p.Delete(t.Context())))
	})
}
