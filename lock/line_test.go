package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Waiters of several processes get the lock in the order in which they came.
func TestFirstComeFirstServed(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		lockers := []*lock.Locker{lockerOn(t, s), lockerOn(t, s), lockerOn(t, s)}
		for n := range 2 {
			m := lockers[0].Semaphore(redistest.Name(t), n+1)
			var held []*lock.Lease
			for range n + 1 {
				held = append(held, mustTry(t, m))
			}
			var waiters []*attempt
			for i := range 12 {
				waiters = append(waiters, inLine(t, slots(lockers[i%3], m, n+1), i+1))
			}
			for i, w := range waiters {
				mustBeBusy(t, m)
				fresh(t, lockers[max(0, i-n-1)%3]) // it took held[0]
				mustUnlock(t, held[0])
				wantHeld(t, m, n+1) // whatever the waiter's process does
				held = append(held[1:], w.got(t))
				for j, other := range waiters[i+1:] {
					if !other.pending() {
						t.Fatalf("waiter %d was served before waiter %d", i+1+j, i+1)
					}
				}
			}
			for _, le := range held {
				mustUnlock(t, le)
			}
			free(t, m)
		}
	})
}

// A free slot goes to the line and not to a newcomer, even if nothing but the newcomer's own ask tells that the slot is
// free.
func TestNewcomerNeverOvertakes(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t) // whose clock stands still
	now := time.Now()
	s.SetTime(t, now)
	l := lockerOn(t, s)
	m := l.Semaphore(redistest.Name(t), 2, lock.TTL(time.Hour), lock.NoRenew())
	mustTry(t, m)
	mustTry(t, slots(l, m, 2, lock.TTL(time.Second), lock.NoRenew()))
	w := inLine(t, m, 1)
	s.SetTime(t, now.Add(time.Second+time.Millisecond))
	mustBeBusy(t, m)
	mustUnlock(t, w.got(t))
}

// A holder's process is killed: the waiter of another one has the lock soon after the deadline, also where redis-server
// is slow to delete what has expired, since there is much of it.
func TestRule05_KilledHolderIsSucceeded(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, others := range []int{0, 20_000} {
		t.Run(fmt.Sprintf("%d keys that expire", others), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			l := lockerOn(t, s)
			p := client(t).Pipeline()
			for i := range others {
				p.Set(t.Context(), "other:"+strconv.Itoa(i), i, time.Duration(1+i%5000)*time.Millisecond+time.Second)
			}
			_, err := p.Exec(t.Context())
			redistest.Must(t, err)
			var late []time.Duration
			for range 5 {
				name := redistest.Name(t)
				m := l.Mutex(name)
				c := startChild(t, s.Addr(), "1s", name)
				eventually(t, func() bool { h, err := m.Holders(t.Context()); return err == nil && len(h) == 1 }, "the child")
				w := inLine(t, m, 1)
				c.Kill()
				h, err := m.Holders(t.Context())
				if err != nil || len(h) != 1 {
					continue // it took too long to see the deadline
				}
				deadline := time.Now().Add(h[0].ExpiresIn)
				mustUnlock(t, w.got(t))
				late = append(late, time.Since(deadline))
			}
			slices.Sort(late)
			if len(late) == 0 || late[len(late)/2] > 200*time.Millisecond { // by refreshes alone it would be half a second
				t.Errorf("killed holders were succeeded %v after their deadlines", late)
			}
		})
	}
}

// A waiter's process is killed; its entry is fresh, so the next release grants to it.
func TestRule06_KilledWaiterCostsAtMostG(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	l := lockerOn(t, s)
	for _, stale := range []bool{false, true} {
		t.Run(fmt.Sprint("stale ", stale), func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			m := l.Mutex(name, lock.TTL(time.Hour))
			held := mustTry(t, m)
			c := startChild(t, s.Addr(), "1h", name)
			waiting(t, m, 1)
			behind := inLine(t, m, 2)
			c.Kill()
			if stale {
				waiting(t, m, 1) // its entry is stale
			}
			fresh(t, l)
			mustUnlock(t, held)
			if h, err := m.Holders(t.Context()); stale && (err != nil || len(h) != 1 || h[0].Owner == "child") {
				t.Errorf("holders %+v, %v", h, err)
			}
			mustUnlock(t, behind.got(t)) // long before an hour
		})
	}
}

// A granted lease has the TTL of its own lock, however short the grant was at first: by renewal, or at once without it.
func TestRule06_GrantedLeaseIsRenewedToItsFullTTL(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		for name, options := range map[string][]lock.Option{"renewed": {lock.TTL(time.Minute)},
			"not renewed": {lock.TTL(time.Minute), lock.NoRenew()}} {
			m := l.Mutex(redistest.Name(t)+name, options...)
			held := mustTry(t, handle(l, m, lock.TTL(20*time.Second)))
			w := inLine(t, m, 1)
			mustUnlock(t, held)
			le := w.got(t)
			eventually(t, func() bool {
				d, ok := left(t, m, le)
				return ok && d > 40*time.Second && time.Until(le.Deadline()) > 40*time.Second
			}, "%s: the full TTL", name)
			if d := time.Until(le.Deadline()); d > time.Minute {
				t.Errorf("%s: the local deadline is in %s, want about a minute", name, d)
			}
			mustUnlock(t, le)
		}
	})
}

// The caller's context ends while Redis is slow to reply, and the ask runs later: the lock is free then, long before a
// lease would end.
func TestRule03_ContextEndsBeforeTheReply(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		for _, n := range []int{1, 2} {
			for _, take := range []func(*lock.Lock, context.Context) (*lock.Lease, error){(*lock.Lock).TryLock,
				(*lock.Lock).Lock} {
				m := near.Semaphore(redistest.Name(t), n, lock.TTL(time.Hour))
				held := p.Hold(touches(m), 1)
				ctx, end := timeUp(t.Context())
				asks := beside(t, m, func(context.Context) (*lock.Lease, error) {
					return take(slots(far, m, n, lock.TTL(time.Hour)), ctx)
				})
				eventually(t, func() bool { return held.Count() == 1 }, "an ask on its way")
				end()
				if err := asks.failed(t); !errors.Is(err, lock.ErrBackend) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d slots: %v; want ErrBackend and that the context has ended", n, err)
				}
				held.Release()
				mustUnlock(t, untilTaken(t, m)) // before the ask runs, or after
				free(t, m)
			}
		}
	})
}

// The client gives up on an ask that runs: whether it did is not known, so the caller has an error, and the lock is
// free when its lease would end at the latest.
func TestRule03_UnknownOutcomeIsReleased(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(p *redistest.Proxy, m *lock.Lock, refuse func(bool)) (end func()){
		"reply lost": func(p *redistest.Proxy, m *lock.Lock, _ func(bool)) func() {
			p.DropReplyTo(touches(m), 1)
			return func() {}
		},
		"late": func(p *redistest.Proxy, m *lock.Lock, _ func(bool)) func() { return p.Hold(touches(m), 1).Release },
		"cannot dial": func(p *redistest.Proxy, m *lock.Lock, refuse func(bool)) func() {
			p.DropReplyTo(func(command []string) bool {
				ask := touches(m)(command)
				if ask {
					refuse(true)
				}
				return ask
			}, 1)
			return func() { refuse(false) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.EachSingle(t, func(t *testing.T, s *redistest.Server) {
				var away atomic.Bool
				near, far, p := through(t, s, func(o *redis.UniversalOptions) {
					o.MaxRetries, o.ReadTimeout, o.PoolSize = -1, 3*time.Second, 1
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						if away.Load() {
							return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused by the test")}
						}
						return new(net.Dialer).DialContext(ctx, network, addr)
					}
				})
				warm(t, far)
				m := near.Mutex(redistest.Name(t))
				end := lose(p, m, away.Store)
				if err := mustNotTry(t, handle(far, m, lock.TTL(6*time.Second))); !errors.Is(err, lock.ErrBackend) ||
					errors.Is(err, lock.ErrBusy) {
					t.Errorf("TryLock without an answer: %v, want ErrBackend", err)
				}
				end()
				free(t, m)
			})
		})
	}
}
