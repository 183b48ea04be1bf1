package lock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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
	m, p, c := l.Mutex(name), pool.New(l, name), insider.Claim(l, l.Mutex(name).Key())
	return map[string]func(context.Context) error{
		"TryLock": func(ctx context.Context) error { return second(m.TryLock(ctx)) },
		"Lock":    func(ctx context.Context) error { return second(m.Lock(ctx)) },
		"Acquire": func(ctx context.Context) error { _, _, err := m.Acquire(ctx, time.Minute); return err },
		"Do": func(ctx context.Context) error {
			return m.Do(ctx, func(context.Context) error { return errors.New("f ran") })
		},
		"Locked":     func(ctx context.Context) error { return second(m.Locked(ctx)) },
		"Available":  func(ctx context.Context) error { return second(m.Available(ctx)) },
		"Holders":    func(ctx context.Context) error { return second(m.Holders(ctx)) },
		"Leader":     func(ctx context.Context) error { return second(l.Leader(ctx, name)) },
		"Waiting":    func(ctx context.Context) error { return second(m.Waiting(ctx)) },
		"Break":      func(ctx context.Context) error { return second(m.Break(ctx, "token")) },
		"BreakAll":   func(ctx context.Context) error { return second(m.BreakAll(ctx)) },
		"Delete":     m.Delete,
		"Put":        func(ctx context.Context) error { return second(p.Put(ctx, "value")) },
		"Take":       func(ctx context.Context) error { return second(p.Take(ctx)) },
		"Pool":       func(ctx context.Context) error { return second(p.Inspect(ctx)) },
		"PoolDelete": func(ctx context.Context) error { return second(p.Delete(ctx)) },
		"Claim":      func(ctx context.Context) error { return second(c.Take(ctx, "holder", "", time.Minute)) },
		"Drop":       func(ctx context.Context) error { return second(c.Drop(ctx, "holder")) },
	}
}

// What stands under the key is no lock, or Redis refuses: an error, and nothing is changed or told.
func TestForeignKey(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t))
		redistest.Must(t, rdb.RPush(t.Context(), m.Key(), "somebody's").Err())
		for what, err := range map[string]error{"TryLock": second(m.TryLock(t.Context())),
			"Lock": second(m.Lock(t.Context())), "Available": second(m.Available(t.Context()))} {
			if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
				t.Errorf("%s: %v, want ErrBackend", what, err)
			}
		}
		if v := rdb.LRange(t.Context(), m.Key(), 0, -1).Val(); !slices.Equal(v, []string{"somebody's"}) {
			t.Errorf("the value is now %q", v)
		}
		redistest.Must(t, rdb.Del(t.Context(), m.Key()).Err())
		redistest.Must(t, rdb.Close())
		if n, err := slots(l, m, 2).Available(t.Context()); n != 0 || !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Available without Redis: %d, %v; want 0 and ErrBackend", n, err)
		}
		if locked, err := m.Locked(t.Context()); locked || !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Locked without Redis: %v, %v", locked, err)
		}
	})
}

// One master of a Cluster hangs. On the others leases are renewed, and waiters get their locks, though they fall due
// together with those of the hung one.
func TestAway_othersOfAClusterGoOn(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	l, others := lockerOn(t, s), lockerOn(t, s)
	hung := l.Mutex(redistest.Name(t), lock.TTL(3*time.Second))
	elsewhere := func() string {
		for i := 0; ; i++ {
			name := fmt.Sprintf("%s %d", redistest.Name(t), i)
			if s.MasterOf(t, l.Mutex(name).Key()).Addr() != s.MasterOf(t, hung.Key()).Addr() {
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
	master := s.MasterOf(t, hung.Key())
	master.Pause(t)
	defer master.Resume(t)
	hungAt := time.Now()
	eventually(t, func() bool { return time.Since(hungAt) > 1500*time.Millisecond }, "refreshes under way")
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	if took := time.Since(hungAt); took > 5*time.Second {
		t.Errorf("the waiter on a healthy master got its lock after %s", took)
	}
	eventually(t, func() bool { return time.Since(hungAt) > 9*time.Second }, "three times the TTL")
	if !le.Held() {
		t.Error("a lease on a healthy master was lost")
	}
}

// What nobody else wants costs a command to take and one to release, however it is asked for; a hand-off costs the one
// who leaves one, too.
func TestCosts(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	p := redistest.NewProxy(t, s.Addr())
	l := newLocker(t, p.Client(t))
	sent := func() (n int) {
		for name, times := range p.Commands() {
			if !slices.Contains([]string{"PING", "HELLO", "CLIENT", "SELECT", "CONTROL", "SUBSCRIBE"}, name) {
				n += times
			}
		}
		return n
	}
	for what, m := range map[string]*lock.Lock{
		"a mutex": l.Mutex("m"), "a semaphore": l.Semaphore("s", 3), "a fenced one": l.Mutex("f", lock.Fenced()),
		"a rated one": l.Mutex("r", lock.Rate(1000, time.Millisecond, 1000)),
	} {
		for i, take := range []func(context.Context) (*lock.Lease, error){m.Lock, m.TryLock, m.Lock, m.TryLock} {
			before := sent()
			le, err := take(t.Context())
			redistest.Must(t, err)
			mustUnlock(t, le)
			if n := sent() - before; n != 2 && i > 1 { // the first ones bring the scripts, and learn what the server has
				t.Errorf("%s: %d commands for a take and a release, want 2: %v", what, n, p.Commands())
			}
		}
	}
	m := l.Mutex("h")
	held := mustTry(t, m)
	w := inLine(t, lockerOn(t, s).Mutex("h"), 1)
	before := sent()
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	if n := sent() - before; n > 2 {
		t.Errorf("%d commands to hand a lock over, want 2 at most", n)
	}
}

// asUser are tests of what the locks promise that look at Redis with no more rights than the locks have.
var asUser = []string{
	"Rule02_LateReleaseLeavesTheSuccessorAlone", "Rate_changes", "CooldownKeepsTheSlotForThatLong", "Rights_pool",
	"Rights_walk",
	"Rights_slotThatMoves", "Rights_clientOptions",
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
		"+hello", "+cluster|slots", "+asking", "+readonly", "+command", // go-redis, to connect, and to a Cluster
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
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s, prefixed(inside.DefaultPrefix+":"+redistest.Name(t)))
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

// What the options of a client have it send.
func TestRights_clientOptions(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 4 {
			var made sync.Map // of a node's address: closed when go-redis has made its client
			node := func(addr string) chan struct{} {
				ch, _ := made.LoadOrStore(addr, make(chan struct{}))
				return ch.(chan struct{})
			}
			rdb := s.Client(t, func(o *redis.UniversalOptions) {
				o.ReadOnly, o.RouteByLatency, o.RouteRandomly = i == 0, i == 1, i == 2
				if o.RouteByLatency && s.Kind() == redistest.KindCluster {
					// go-redis 9.22 and 9.23 start to ping a node before they have set all of its client's fields.
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						<-node(addr)
						return new(net.Dialer).DialContext(ctx, network, addr)
					}
				}
				if i == 3 {
					o.Protocol, o.ContextTimeoutEnabled, o.PoolFIFO, o.MaxRetries = 2, true, true, -1
				}
			})
			if c, ok := rdb.(*redis.ClusterClient); ok {
				c.OnNewNode(func(n *redis.Client) { close(node(n.Options().Addr)) })
			}
			m := newLocker(t, rdb).Mutex(redistest.Name(t))
			held := mustTry(t, m)
			next := inLine(t, m, 1)
			mustUnlock(t, held)
			mustUnlock(t, next.got(t))
			free(t, m)
		}
	})
}

// In a Cluster, what lies in a slot that moves to another node: a free lock can be taken and given back, a lease goes
// on, and who comes then gets its turn when the slot has moved, whether one holds the lock or several do.
func TestRights_slotThatMoves(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		move := func(_ *lock.Lock, while func()) { while() }
		if s.Kind() == redistest.KindCluster {
			s = redistest.StartCluster(t, 0)
			move = func(m *lock.Lock, while func()) { s.MoveSlot(t, m.Key(), while) }
		}
		l := lockerOn(t, s)
		for _, n := range []int{1, 2} {
			m := l.Semaphore(redistest.Name(t), n, lock.TTL(time.Minute))
			move(m, func() { takesAndUnlocks(t, m) })
			var held []*lock.Lease
			for range n {
				held = append(held, mustTry(t, m))
			}
			var next *attempt
			move(m, func() {
				if n == 1 { // scripts of several keys wait for the end of the move
					redistest.Must(t, held[0].Extend(t.Context(), time.Minute))
				}
				if next == nil {
					next = lockBeside(t, m)
				}
			})
			wantHeld(t, m, n)
			for _, le := range held {
				mustUnlock(t, le)
			}
			mustUnlock(t, next.got(t))
			free(t, m)
		}
	})
}

// Every operation of a pool.
func TestRights_pool(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		p := pool.New(lockerOn(t, s), redistest.Name(t))
		mustPut(t, p, 2, "a", "b")
		mustUnlock(t, mustTake(t, p, "a").Lease)
		if info, err := p.Inspect(t.Context()); info.Free != 2 || err != nil {
			t.Errorf("%d values free, %v; want 2", info.Free, err)
		}
		redistest.Must(t, mustTake(t, p, "b").Consume(t.Context()))
		redistest.Must(t, second(p.Delete(t.Context())))
	})
}
