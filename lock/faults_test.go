package lock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// traffic has n goroutines of a Locker for each client take the lock in turn, and holds that one at a time believes in it.
type traffic struct {
	stop   context.CancelFunc
	wg     sync.WaitGroup
	inside atomic.Int64
	turns  atomic.Int64
	errs   atomic.Int64 // ErrBackend from Lock, ErrBackend and ErrNotHeld from Unlock
}

func startTraffic(t *testing.T, name string, n int, rdbs ...redis.UniversalClient) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{stop: cancel}
	for _, rdb := range rdbs {
		m := newLocker(t, rdb).Mutex(name, lock.TTL(5*time.Second))
		for range n {
			redistest.Go(&tr.wg, func() {
				for ctx.Err() == nil {
					tr.turn(t, m)
				}
			})
		}
	}
	t.Cleanup(tr.end)
	return tr
}

func (tr *traffic) turn(t *testing.T, m *lock.Lock) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	le, err := m.Lock(ctx)
	if err != nil {
		if tr.errs.Add(1); !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Lock: %v", err)
		}
		return
	}
	bound := le.Bind(context.Background())
	if n := tr.inside.Add(1); n > 1 && bound.Err() == nil {
		t.Errorf("%d inside", n)
	}
	tr.inside.Add(-1)
	tr.turns.Add(1)
	if err := le.Unlock(context.Background()); err != nil {
		if tr.errs.Add(1); !errors.Is(err, lock.ErrBackend) && !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Unlock: %v", err)
		}
	}
}

func (tr *traffic) end() { tr.stop(); tr.wg.Wait() }

// more waits for n more turns.
func (tr *traffic) more(t *testing.T, n int64) {
	t.Helper()
	before := tr.turns.Load()
	redistest.Eventually(t, soon, func() bool { return tr.turns.Load() >= before+n }, "%d more turns", n)
}

func TestScriptFlushInMidTraffic(t *testing.T) {
	t.Parallel()
	s, name := redistest.StartReal(t), redistest.Name(t)
	tr := startTraffic(t, name, 5, s.Client(t), s.Client(t))
	for range 50 {
		tr.more(t, 5)
		redistest.Must(t, client(t).ScriptFlush(t.Context()).Err())
	}
	tr.more(t, 50)
	tr.end()
	if n := tr.errs.Load(); n != 0 {
		t.Errorf("%d errors", n)
	}
	free(t, newLocker(t, s.Client(t)).Mutex(name))
}

// Everything at once, over and over: connections cut, replies lost, messages dropped. At most one believes, and it goes on.
func TestChaos(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		name, p := redistest.Name(t), redistest.NewProxy(t, s.Addr())
		look := newLocker(t, s.Client(t))
		tr := startTraffic(t, name, 4, p.Client(t), s.Client(t))
		for i := range 10 {
			turns := int64(2) // each may take a second
			switch i % 5 {
			case 0:
				p.Cut()
			case 1:
				p.DropReplies(3)
			case 2:
				p.DropMessages(true)
			case 3:
				p.DropReplyTo(touches(look.Mutex(name)), 4)
				p.Cut()
			case 4:
				p.Heal()
			}
			tr.more(t, turns)
		}
		p.Heal()
		tr.more(t, 50)
		tr.end()
		free(t, look.Mutex(name))
	})
}

// Redis restarts and loses everything, the holder too: waiters get the lock in turn, and a holder from before finds its
// lease lost.
func TestRestartInMidTraffic(t *testing.T) {
	t.Parallel()
	s, name := redistest.StartReal(t), redistest.Name(t)
	m := newLocker(t, s.Client(t)).Mutex(name, lock.TTL(1500*time.Millisecond))
	before := mustTry(t, m)
	w := inLine(t, m, 1)
	s.Stop(t)
	s.Start(t)
	ends(t, before.Bind(t.Context()), lock.ErrLost)
	if err := before.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("Unlock by the holder from before: %v, want ErrNotHeld", err)
	}
	mustUnlock(t, w.got(t))
	tr := startTraffic(t, name, 5, s.Client(t), s.Client(t))
	tr.more(t, 100)
	tr.end()
	free(t, m)
}

// A Redis that is away for some seconds: who is in line stays in line, who holds and does not reach its deadline goes on
// holding.
func TestOutageOfSomeSeconds(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t)
	hers, his := twoProcesses(t, s)
	m := hers.Mutex(redistest.Name(t), lock.TTL(time.Minute))
	held := mustTry(t, m)
	w := inLine(t, handle(his, m), 1)
	s.Pause(t)
	began := time.Now()
	redistest.Eventually(t, soon, func() bool { return time.Since(began) > 4*time.Second || !w.pending() }, "4 s")
	s.Resume(t)
	if !held.Held() {
		t.Fatal("the lease is lost")
	}
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	free(t, m)
}

// A waiter bears what passes by itself, such as a role change, also as a Redis before 7.0 wraps it for a script. What does
// not pass ends its wait at once. Either way it asks at a pace, and not again and again.
func TestWaiterInLineIsRefused(t *testing.T) {
	t.Parallel()
	for reply, passes := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":                true,
		"MISCONF Redis is configured to save RDB snapshots, but cannot": true,
		"ERR Error running script (call to f_a8e2a1fb): @user_script:41: @user_script: 41: -READONLY You can't write against a read only replica.": true,
		"NOPERM this user has no permissions": false,
	} {
		rdb, hook := redistest.Mini(t).Client(t), &redistest.FailHook{}
		rdb.AddHook(hook)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		held, waiter := mustTry(t, m), inLine(t, m, 1)
		var asks atomic.Int64
		hook.Before(func(cmd redis.Cmder) error {
			if touching(m)(cmd) {
				asks.Add(1)
				return redistest.ReplyError(reply)
			}
			return nil
		})
		if !passes {
			if err := waiter.failed(t); !errors.Is(err, lock.ErrBackend) {
				t.Errorf("%s: %v, want ErrBackend", reply, err)
			}
			hook.Before(nil)
			mustUnlock(t, held)
			continue
		}
		began := time.Now()
		redistest.Eventually(t, soon, func() bool { return asks.Load() >= 3 || !waiter.pending() }, "%s: three asks", reply)
		if took := time.Since(began); took < 100*time.Millisecond {
			t.Errorf("%s: three asks within %s", reply, took)
		}
		hook.Before(nil)
		mustUnlock(t, held)
		mustUnlock(t, waiter.got(t))
	}
}

// A client that is closed, or leads to nothing: each call ends within a bound, with ErrBackend and the lock's key, whatever
// the client's options.
func TestRefusedPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	redistest.Must(t, err)
	addr := ln.Addr().String()
	redistest.Must(t, ln.Close())
	unreachable(t, addr)
}

// Somebody listens, accepts, and never answers.
func TestBlackhole(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Mini(t).Addr())
	p.Blackhole(true)
	unreachable(t, p.Addr())
}

func unreachable(t *testing.T, addr string) {
	var wg sync.WaitGroup
	closed := redis.NewClient(&redis.Options{Addr: addr})
	_ = closed.Close()
	for name, rdb := range map[string]redis.UniversalClient{
		"default":                redis.NewClient(&redis.Options{Addr: addr}),
		"closed":                 closed,
		"reads without timeout":  redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -1}),
		"context timeout":        redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}),
		"cluster, reads forever": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: -1}),
	} {
		t.Cleanup(func() { _ = rdb.Close() })
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t))
		redistest.Go(&wg, func() {
			var calls sync.WaitGroup
			for call, f := range map[string]func() error{
				"TryLock":   func() error { return second(m.TryLock(t.Context())) },
				"Lock":      func() error { return second(m.Lock(t.Context())) },
				"Available": func() error { return second(m.Available(t.Context())) },
				"Break":     func() error { return second(m.Break(t.Context(), "x")) },
			} {
				redistest.Go(&calls, func() {
					began := time.Now()
					err := f()
					if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) || !strings.Contains(err.Error(), m.Key()) || time.Since(began) > soon {
						t.Errorf("%s, %s: after %s: %v, want ErrBackend with the key", name, call, time.Since(began), err)
					}
				})
			}
			calls.Wait()
			if err := l.Close(); err != nil {
				t.Errorf("%s: Close: %v", name, err)
			}
		})
	}
	wg.Wait()
}

// A lease whose Redis has gone: Unlock and Extend end with an error within a bound, and the release is tried again.
func TestUnlockWithoutRedis(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t), lock.TTL(time.Minute))
		le := mustTry(t, m)
		p.Refuse(true)
		p.Cut()
		for what, err := range map[string]error{"Extend": le.Extend(t.Context(), time.Minute), "Unlock": le.Unlock(t.Context())} {
			if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrNotHeld) {
				t.Errorf("%s: %v, want ErrBackend", what, err)
			}
		}
		p.Heal()
		free(t, handle(near, m))
	})
}

// A user with fewer rights has a lock that works without them, or errors that say what is missing, again and again; then
// nothing is taken, and nothing stays.
func TestDeniedCommands(t *testing.T) {
	t.Parallel()
	for rights, works := range map[string]bool{"-evalsha": true, "-set": false, "-evalsha -eval": false, "-eval -evalsha -set": false} {
		t.Run(rights, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			admin, look := s.Client(t), newLocker(t, s.Client(t))
			l := newLocker(t, withUser(t, s, admin, "user"))
			var denied []any
			for _, right := range strings.Fields(rights) {
				denied = append(denied, right)
			}
			mustUnlock(t, mustTry(t, l.Mutex(redistest.Name(t))))
			tell(t, admin, append([]any{"ACL", "SETUSER", "user"}, denied...)...)
			for range 3 {
				m := l.Semaphore(redistest.Name(t), 2, lock.Rate(1000, time.Second, 1000), lock.TTL(3*time.Second)) // needs a script
				if !works {
					for what, err := range map[string]error{"TryLock": second(m.TryLock(t.Context())), "Lock": second(m.Lock(t.Context()))} {
						var said redis.Error
						if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) || !errors.As(err, &said) || !strings.Contains(err.Error(), "refuses ") {
							t.Errorf("%s: %v, want ErrBackend that names the command", what, err)
						}
					}
					free(t, slots(look, m, 2))
					continue
				}
				mustUnlock(t, mustTry(t, m))
				one := l.Mutex(redistest.Name(t), lock.TTL(3*time.Second))
				le, waiter := mustTry(t, one), inLine(t, one, 1)
				first := le.Deadline()
				redistest.Eventually(t, soon, func() bool { return le.Deadline().After(first) }, "a renewal")
				mustUnlock(t, le)
				mustUnlock(t, waiter.got(t))
				free(t, one)
			}
		})
	}
}

// The master dies and its replica takes over: the lease is held there, and can be released.
func TestClusterMasterDies(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartCluster(t, 1)
	rdb := s.Client(t)
	l, careless := newLocker(t, rdb, minReplicas(1)), newLocker(t, rdb) // so that the replica has it
	m := l.Mutex(redistest.Name(t), lock.TTL(30*time.Second))
	le := mustTry(t, m)
	before := s.MasterOf(t, m.Key())
	s.KillMaster(t, m.Key())
	redistest.Eventually(t, soon, func() bool { return s.MasterOf(t, m.Key()) != before }, "a successor")
	redistest.Eventually(t, soon, func() bool { return errors.Is(second(handle(careless, m).TryLock(t.Context())), lock.ErrBusy) }, "an answer from the successor")
	if !le.Held() {
		t.Error("the lease was lost")
	}
	redistest.Must(t, le.Unlock(t.Context()))
}

// While a Cluster moves a slot, a holder keeps its lock, and one who waits gets it in the end.
func TestClusterSlotThatMoves(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	hers, his := twoProcesses(t, s)
	for _, n := range []int{1, 2} { // one holder and nothing else, and more
		m := hers.Semaphore(redistest.Name(t), n, lock.TTL(time.Minute))
		var held []*lock.Lease
		for range n {
			held = append(held, mustTry(t, m))
		}
		var waiter *attempt
		s.MoveSlot(t, m.Key(), func() {
			if waiter == nil {
				waiter = lockBeside(t, slots(his, m, n))
			}
		})
		waiting(t, m, 1)
		wantHeld(t, m, n)
		for _, le := range held {
			mustUnlock(t, le)
		}
		mustUnlock(t, waiter.got(t))
		free(t, m)
	}
}

// With MinReplicas what was answered is known to the replica. What no replica acknowledges says so: a closed gate is in
// force all the same.
func TestMinReplicas_hold(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	l := newLocker(t, s.Client(t), minReplicas(1))
	m, late := l.Mutex(redistest.Name(t), lock.TTL(time.Minute)), l.Mutex(redistest.Name(t), lock.TTL(time.Minute))
	le, other := mustTry(t, m), mustTry(t, late)
	before := le.Deadline()
	redistest.Must(t, insider.CloseGate(t.Context(), le, time.Hour))
	if after := le.Deadline(); after.Before(before) {
		t.Errorf("the lease ends at %s, before CloseGate at %s", after, before)
	}
	replica.Pause(t)
	if err := insider.CloseGate(t.Context(), other, time.Hour); !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("CloseGate with a frozen replica: %v, want ErrNotReplicated", err)
	}
	if busy := mustBeBusy(t, handle(newLocker(t, s.Client(t)), late)); busy.Reason != lock.ReasonClosed {
		t.Errorf("busy for %q, want a closed gate", busy.Reason)
	}
	replica.Resume(t)
	replica.Promote(t)
	there := newLocker(t, replica.Client(t))
	if busy := mustBeBusy(t, handle(there, m)); busy.Reason != lock.ReasonClosed || busy.ExpiresIn < 59*time.Minute {
		t.Errorf("the replica says %+v, want a closed gate", busy)
	}
	if _, ok := left(t, handle(there, m), le); !ok {
		t.Errorf("the replica does not have the lease; %s", dump(handle(there, m)))
	}
}

// A failover forgets a lease while its caller waits for replicas: it is not handed out, and a CloseGate says so.
func TestMinReplicas_goneMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	redistest.StartReplica(t, s)
	rdb, admin, hook := s.Client(t), s.Client(t), &redistest.FailHook{}
	rdb.AddHook(hook)
	l := newLocker(t, rdb, minReplicas(1))
	warm(t, l)
	name := redistest.Name(t)
	m := l.Semaphore(name, 2)
	forget := func() {
		var once sync.Once
		hook.After(func(cmd redis.Cmder) (err error) {
			if touching(m)(cmd) && cmd.Err() == nil {
				once.Do(func() {
					err = admin.Eval(context.Background(), "for _, k in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', k) end", nil, "*"+name+"*").Err()
				})
				if errors.Is(err, redis.Nil) {
					err = nil
				}
			}
			return err
		})
	}
	for what, take := range map[string]func() error{
		"TryLock": func() error { return second(m.TryLock(t.Context())) }, "Lock": func() error { return second(m.Lock(t.Context())) },
	} {
		forget()
		if err := take(); !errors.Is(err, lock.ErrNotReplicated) {
			t.Errorf("%s: %v, want that the lease was gone", what, err)
		}
	}
	hook.After(nil)
	le := mustTry(t, m)
	forget()
	if err := insider.CloseGate(t.Context(), le, time.Hour); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("CloseGate: %v, want that the lease was gone", err)
	}
	hook.After(nil)
	if err := le.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("Unlock: %v, want ErrNotHeld", err)
	}
	free(t, m)
}
