package lock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A function of OnWait is called once, when the wait begins, and not where nobody waits. If it panics, that leaves neither a lock
// taken nor a waiter in line.
func TestOnWait(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		var told atomic.Int32
		m := l.Mutex(name, insiders.OnWait(func() { told.Add(1) }))
		held := mustTry(t, m)
		mustBeBusy(t, m)
		if n := told.Load(); n != 0 {
			t.Errorf("told of %d waits, though nobody waited", n)
		}
		w := inLine(t, m, 1)
		w.cancel()
		wantBusy(t, w.failed(t))
		if n := told.Load(); n != 1 {
			t.Errorf("told of %d waits, want 1", n)
		}
		first, second := l.Mutex(name+"1", lock.TTL(time.Hour)), l.Mutex(name, insiders.OnWait(func() { panic("boom") }))
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not come through")
				}
			}()
			_ = first.Do(t.Context(), func(ctx context.Context) error {
				_, err := second.Lock(ctx)
				return err
			})
		}()
		mustUnlock(t, held)
		free(t, first)
		free(t, m)
	})
}

// While a holder of a semaphore has a note, whoever asks with it gets no second slot, and is told of that holder. Of two that wait
// with one note one has a slot and the other waits for it, though there are slots for both. Others get theirs.
func TestOnePerNote(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		of := func(options ...lock.Option) *lock.Lock {
			return newLocker(t, s.Client(t)).Semaphore(name, 3, options...)
		}
		twin := []lock.Option{lock.Note("queue/task"), insiders.OnePerNote()}
		one, two, other := of(twin...), of(twin...), of()
		held := mustTry(t, one)
		for _, yield := range []<-chan struct{}{nil, parkNow, make(chan struct{})} {
			err := mustNotTry(t, two)
			if yield != nil {
				_, err = lock.LockOrPark(t.Context(), two, yield)
			}
			if busy := wantBusy(t, err); busy.Note != "queue/task" || isParked(err) {
				t.Errorf("%+v, want not parked, behind the holder with the note", busy)
			}
		}
		beside := mustTry(t, other)
		first, second := inLine(t, one, 1), inLine(t, two, 2)
		mustUnlock(t, held)
		held = first.got(t)
		mustUnlock(t, beside)
		takesAndUnlocks(t, other) // passes who waits for its twin
		if wantHeld(t, one, 1); !second.pending() {
			t.Fatal("two hold with one note")
		}
		mustUnlock(t, held)
		mustUnlock(t, second.got(t))
		free(t, one)
	})
}

// All waiters of a Locker share one subscription, and nobody publishes but scripts.
func TestRule07_OneSubscriptionPerProcess(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		var held []*lock.Lease
		var waiters []*attempt
		for range 20 {
			name := redistest.Name(t)
			held = append(held, mustTry(t, near.Mutex(name)))
			waiters = append(waiters, inLine(t, far.Mutex(name), 1))
		}
		for i, w := range waiters {
			mustUnlock(t, held[i])
			mustUnlock(t, w.got(t))
		}
		if n := p.Count("SUBSCRIBE"); n != 1 {
			t.Errorf("20 waiters made %d subscriptions, want 1", n)
		}
		if n := p.Count("PUBLISH"); n != 0 {
			t.Errorf("%d PUBLISHs outside the scripts", n)
		}
	})
}

// Messages only hasten: whatever happens to the subscription, a waiter has its lock, and there is a subscription again.
func TestWake_withoutMessages(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(p *redistest.Proxy) (again bool){
		"messages are lost": func(p *redistest.Proxy) bool { p.DropMessages(true); return false },
		"it is cut":         func(p *redistest.Proxy) bool { p.DropMessages(true); p.Cut(); return true },
		"it swallows all":   func(p *redistest.Proxy) bool { p.BlackholePubSub(true); return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachSingle(t, func(t *testing.T, s *redistest.Server) {
				near, far, p := through(t, s)
				name := redistest.Name(t)
				held := mustTry(t, near.Mutex(name))
				w := inLine(t, far.Mutex(name), 1)
				keep := redistest.Name(t) // somebody must wait, or nobody needs a subscription
				mustTry(t, near.Mutex(keep))
				inLine(t, far.Mutex(keep), 1)
				redistest.Eventually(t, soon, func() bool { return p.Count("SUBSCRIBE") == 1 }, "a subscription")
				again := fault(p)
				mustUnlock(t, held)
				mustUnlock(t, w.got(t))
				if again {
					redistest.Eventually(t, soon, func() bool { return p.Count("SUBSCRIBE") > 1 }, "another subscription")
				}
				p.Heal()
			})
		})
	}
}

// A user without the right to the channels: grants are found by asking again, and no script fails after its writes.
func TestWake_withoutTheRight(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	m := newLocker(t, withUser(t, s, s.Client(t), "limited", "resetchannels")).Mutex(redistest.Name(t))
	held := mustTry(t, m)
	first, second := inLine(t, m, 1), inLine(t, m, 2)
	mustUnlock(t, held)
	mustUnlock(t, first.got(t))
	mustUnlock(t, second.got(t))
	free(t, m)
}

// A subscription goes when nobody has waited for a while; waiting brings it back.
func TestWake_subscriptionEndsWhenIdle(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	channels := func() int { return len(rdb.PubSubChannels(t.Context(), "*").Val()) }
	m := newLocker(t, s.Client(t)).Mutex("x")
	for range 2 {
		idle := channels()
		held := mustTry(t, m)
		w := inLine(t, m, 1)
		redistest.Eventually(t, soon, func() bool { return channels() > idle }, "a subscription")
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
		most := 0
		redistest.Eventually(t, soon, func() bool { n := channels(); most = max(most, n); return n < most }, "the end of the subscription")
	}
}
