package lock_test

import (
	"testing"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// All waiters of a Locker share one subscription, and nobody publishes but scripts.
func TestRule07_OneSubscriptionPerProcess(t *testing.T) {
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
			redistest.EachSingle(t, func(t *testing.T, s *redistest.Server) {
				near, far, p := through(t, s)
				name := redistest.Name(t)
				held := mustTry(t, near.Mutex(name))
				w := inLine(t, far.Mutex(name), 1)
				keep := redistest.Name(t) // somebody must wait, or nobody needs a subscription
				mustTry(t, near.Mutex(keep))
				inLine(t, far.Mutex(keep), 1)
				eventually(t, func() bool { return p.Count("SUBSCRIBE") > 0 }, "a subscription")
				before, again := p.Count("SUBSCRIBE"), fault(p)
				mustUnlock(t, held)
				mustUnlock(t, w.got(t))
				if again {
					eventually(t, func() bool { return p.Count("SUBSCRIBE") > before }, "another subscription")
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
