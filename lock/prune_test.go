package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// leaveDead puts n waiters in front of the line of m that no process refreshes, as one
// that was killed leaves them.
func leaveDead(t *testing.T, m *Lock, n int) {
	t.Helper()
	for first := 0; first < n; first += 1000 {
		var dead []redis.Z
		for i := first; i < min(n, first+1000); i++ {
			id := fmt.Sprintf("gone.3000.%d|o|", i)
			dead = append(dead, redis.Z{Member: "e:" + id, Score: 2e15 + float64(i)}, redis.Z{Member: "d:" + id, Score: -1e12 - float64(i)})
		}
		redistest.Must(t, raw(m).ZAdd(t.Context(), m.Key(), dead...).Err())
	}
}

// deadWaiters is how many are left in line. miniredis sorts the set anew for each
// command: it has some, and nobody looks at the time.
func deadWaiters(s *redistest.Server) (n int, bound time.Duration) {
	if s.Kind() == redistest.KindMini {
		return 200, soon
	}
	return 2000, soon / 3
}

// Whoever comes to a free lock behind many dead waiters gets it at once: by TryLock,
// by Lock, by LockOrPark.
func TestRule06_ManyDeadWaitersDoNotHoldUpAFreeLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := newLocker(t, s.Client(t))
		for name, take := range map[string]func(m *Lock) (*Lease, error){
			"TryLock":    func(m *Lock) (*Lease, error) { return m.TryLock(t.Context()) },
			"Lock":       func(m *Lock) (*Lease, error) { return m.Lock(t.Context()) },
			"LockOrPark": func(m *Lock) (*Lease, error) { return m.lockOrPark(t.Context(), closedYield) },
		} {
			m := l.Mutex(redistest.Name(t)+name, Note("note"))
			n, bound := deadWaiters(s)
			leaveDead(t, m, n)
			raw(m).PExpire(t.Context(), m.Key(), time.Minute)
			began := time.Now()
			le, err := take(m)
			took := time.Since(began)
			if err != nil {
				t.Fatalf("%s behind %d dead waiters: %v", name, n, err)
			}
			t.Logf("%s: %s", name, took)
			if took > bound {
				t.Errorf("%s behind %d dead waiters took %s", name, n, took)
			}
			mustUnlock(t, le)
			free(t, m, soon)
		}
	})
}

// A release, or a Put, drops all dead waiters.
func TestRule06_AReleaseDropsAllDead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := asksAlways(newLocker(t, s.Client(t)))
		for _, limit := range []int{1, 2} {
			m := l.Semaphore(fmt.Sprint(redistest.Name(t), limit), limit)
			for range limit - 1 {
				mustTry(t, m)
			}
			held := mustTry(t, m)
			leaveDead(t, m, 300)
			mustUnlock(t, held)
			waiting(t, m, 0)
		}
		p := l.Pool(redistest.Name(t))
		leaveDead(t, p.m, 300)
		if _, err := p.Put(t.Context(), "value"); err != nil {
			t.Fatal(err)
		}
		dropped := func() {
			t.Helper()
			redistest.Eventually(t, soon, func() bool { return inspects(t, p).Waiting == 0 }, "no taker in line")
		}
		dropped()
		le := takes(t, p, "value")
		leaveDead(t, p.m, 300)
		givesBack(t, le)
		dropped()
	})
}

// When the process of the release dies, the refresh of a live waiter goes on.
func TestRule06_ARefreshGetsPastManyDead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		m := asksAlways(newLocker(t, s.Client(t))).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		n, bound := deadWaiters(s)
		leaveDead(t, m, n)
		w := inLine(t, handle(newLocker(t, s.Client(t)), m), n+1)
		// A process that dies right after its release.
		redistest.Must(t, raw(m).Eval(t.Context(), wire.ReleaseScript.Source, m.keys, held.body).Err())
		began := time.Now()
		w.got(t)
		if took := time.Since(began); took > bound {
			t.Errorf("the live waiter behind %d dead ones waited %s", n, took)
		}
	})
}

// What is parked behind many dead waiters is called at once.
func TestRule06_ParkedWorkIsCalledPastManyDead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		c := answers(map[string]inside.Fate{"parked": inside.FateComing})
		l := asksAlways(newLocker(t, s.Client(t), calls(c.call)))
		m := l.Mutex(redistest.Name(t), Note("holder"))
		held := mustTry(t, m)
		n, bound := deadWaiters(s)
		leaveDead(t, m, n)
		if _, err := handle(l, m, Note("parked")).lockOrPark(t.Context(), closedYield); !wantBusy(t, err).Parked {
			t.Fatalf("not parked: %v", err)
		}
		began := time.Now()
		mustUnlock(t, held)
		c.called(t, "parked", 1)
		if took := time.Since(began); took > bound {
			t.Errorf("what is parked behind %d dead waiters was called after %s", n, took)
		}
	})
}

// Whoever comes to a pool with a free value behind many dead takers gets it at once.
func TestRule06_ManyDeadTakersDoNotHoldUpAPool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := newLocker(t, s.Client(t))
		for name, take := range map[string]func(p *Pool) (*Lease, error){
			"TryTake": func(p *Pool) (*Lease, error) { return p.m.TryLock(t.Context()) },
			"Take":    func(p *Pool) (*Lease, error) { return p.Take(t.Context()) },
		} {
			p := l.Pool(redistest.Name(t) + name)
			putAll(t, p, "value")
			n, bound := deadWaiters(s)
			leaveDead(t, p.m, n)
			began := time.Now()
			le, err := take(p)
			if err != nil {
				t.Fatalf("%s behind %d dead takers: %v", name, n, err)
			}
			if took := time.Since(began); took > bound {
				t.Errorf("%s behind %d dead takers took %s", name, n, took)
			}
			givesBack(t, le)
		}
	})
}
