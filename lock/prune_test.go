package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
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
		if err := raw(m).ZAdd(t.Context(), m.Key(), dead...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// atOnceBound is how long dropping 2,000 dead waiters may take here: 32 exchanges of
// a busy machine. A call for each refresh would take 31 s.
const atOnceBound = 10 * time.Second

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
			"LockOrPark": func(m *Lock) (*Lease, error) { return m.LockOrPark(t.Context(), closedYield) },
		} {
			m := l.Mutex(redistest.Name(t)+name, Note("note"))
			leaveDead(t, m, 2000)
			raw(m).PExpire(t.Context(), m.Key(), time.Minute)
			began := time.Now()
			le, err := take(m)
			took := time.Since(began)
			if err != nil {
				t.Fatalf("%s behind 2,000 dead waiters: %v", name, err)
			}
			t.Logf("%s: %s", name, took)
			if took > atOnceBound {
				t.Errorf("%s behind 2,000 dead waiters took %s", name, took)
			}
			mustUnlock(t, le)
			free(t, m, soon)
		}
	})
}

// A release that drops 64 dead waiters goes on until the one live waiter, of another
// process, has the lock; so for a semaphore with another holder.
func TestRule06_AReleaseReachesTheLiveWaiterBehindManyDead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := newLocker(t, s.Client(t))
		for _, limit := range []int{1, 2} {
			m := l.Semaphore(fmt.Sprint(redistest.Name(t), limit), limit)
			for range limit - 1 {
				mustTry(t, m)
			}
			held := mustTry(t, m)
			leaveDead(t, m, 2000)
			w := inLine(t, handle(newLocker(t, s.Client(t)), m), 2001)
			calm(t, w.lock.locker, 1) // its refresh is an hour away
			began := time.Now()
			mustUnlock(t, held)
			w.got(t)
			took := time.Since(began)
			t.Logf("limit %d: %s", limit, took)
			if took > atOnceBound {
				t.Errorf("limit %d: the live waiter behind 2,000 dead ones waited %s", limit, took)
			}
		}
	})
}

// The same when nobody follows up the release: the waiter's own refresh does.
func TestRule06_ARefreshGetsPastManyDead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		leaveDead(t, m, 2000)
		w := inLine(t, handle(newLocker(t, s.Client(t)), m), 2001)
		// A process that dies right after its release.
		if err := raw(m).Eval(t.Context(), releaseScript.src, m.keys, held.body).Err(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.got(t)
		if took := time.Since(began); took > atOnceBound {
			t.Errorf("the live waiter behind 2,000 dead ones waited %s", took)
		}
	})
}

// What is parked behind many dead waiters is called at once.
func TestRule06_ParkedWorkIsCalledPastManyDead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		c := answers(map[string]Fate{"parked": FateComing})
		l := newLocker(t, s.Client(t), calls(c.call))
		m := l.Mutex(redistest.Name(t), Note("holder"))
		held := mustTry(t, m)
		leaveDead(t, m, 2000)
		if _, err := handle(l, m, Note("parked")).LockOrPark(t.Context(), closedYield); !wantBusy(t, err).Parked {
			t.Fatalf("not parked: %v", err)
		}
		began := time.Now()
		mustUnlock(t, held)
		c.called(t, "parked", 1)
		if took := time.Since(began); took > atOnceBound {
			t.Errorf("what is parked behind 2,000 dead waiters was called after %s", took)
		}
	})
}

// A pool's takers, and values whose takers died: a Put, a release and a take go on
// until a live taker has a value.
func TestRule06_ManyDeadTakersDoNotHoldUpAPool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := newLocker(t, s.Client(t))
		atOnce := func(what string, began time.Time) {
			t.Helper()
			if took := time.Since(began); took > atOnceBound {
				t.Errorf("%s took %s", what, took)
			}
		}
		p := l.Pool(redistest.Name(t))
		leaveDead(t, p.m, 640)
		raw(p.m).PExpire(t.Context(), p.Key(), time.Minute)
		taker := newLocker(t, s.Client(t))
		w := lockBeside(t, poolHandle(taker, p).m)
		calm(t, taker, 1)
		began := time.Now()
		if _, err := p.Put(t.Context(), "value"); err != nil {
			t.Fatal(err)
		}
		le := w.got(t)
		atOnce("Take behind 640 dead takers after a Put", began)

		leaveDead(t, p.m, 640)
		w = lockBeside(t, poolHandle(newLocker(t, s.Client(t)), p).m)
		calm(t, w.lock.locker, 1)
		began = time.Now()
		if err := le.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		le = w.got(t)
		atOnce("Take behind 640 dead takers after an Unlock", began)

		leaveDead(t, p.m, 640)
		if err := raw(p.m).Eval(t.Context(), poolReleaseScript.src, p.m.keys, le.body, "").Err(); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		if _, err := p.TryTake(t.Context()); err != nil {
			t.Errorf("TryTake behind dead takers: %v", err)
		}
		atOnce("TryTake behind 576 dead takers", began)
	})
}
