package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// All waiters of a Locker share one subscription.
func TestRule07_OneSubscriptionPerProcess(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		var held []*Lease
		var waiters []*attempt
		for i := range 20 {
			m := near.Mutex(fmt.Sprint(redistest.Name(t), i))
			held = append(held, mustTry(t, m))
			waiters = append(waiters, inLine(t, handle(far, m), 1))
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

// Wake-ups come by message: with no refresh and no deadline due, the waiter has
// the lock all the same.
func TestRule07_MessagesWake(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		near, far := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := near.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		w := inLine(t, handle(far, m), 1)
		calm(t, far, 1)
		mustUnlock(t, held)
		le := w.got(t)
		believed := le.Deadline() // read first: a renewal in between makes the stored one later
		if deadline, ok := holds(t, le); !ok || deadline.Before(believed.Add(-time.Second)) {
			t.Errorf("we believe until %v, stored is %v, %v", believed, deadline, ok)
		}
		mustUnlock(t, le)
	})
}

// Messages are lost while the subscription looks healthy: the next refresh
// finds the grant.
func TestRule07_LostMessageCostsAboutASecond(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		w := inLine(t, handle(far, m), 1)
		calm(t, far, 1)
		refreshing(t, far)
		p.DropMessages(true)
		dropped := p.DroppedMessages()
		released := time.Now()
		mustUnlock(t, held)
		le := w.got(t)
		if late := time.Since(released); late > turn.RefreshEvery+2*time.Second {
			t.Errorf("without messages the waiter had the lock after %s, want about %s", late, turn.RefreshEvery)
		}
		redistest.Eventually(t, soon, func() bool { return p.DroppedMessages() > dropped }, "the message")
		mustUnlock(t, le)
	})
}

// refreshing undoes what calm did to refreshes: all waiters ask once more, and
// the answers say when next.
func refreshing(t testing.TB, l *Locker) {
	t.Helper()
	now := time.Now()
	l.line.askAll()
	redistest.Eventually(t, soon, func() bool {
		l.line.mu.Lock()
		defer l.line.mu.Unlock()
		for _, w := range l.line.waiters {
			if w.turn.Next().IsZero() || askedAt(w).Before(now) {
				return false
			}
		}
		return true
	}, "all answered")
}

// hearing makes a waiter by hand: in line on a lock that another holds, with
// its last answer read at server time us, and asked for ago before now.
func hearing(m *Lock, us int64, ago time.Duration) *waiter {
	w, now := m.newWaiter(time.Time{}, nil), time.Now()
	w.turn.Replied(turn.Reply{Answer: wire.Answer{ServerUS: us, Deadline: -1}, Sent: now.Add(-ago), Slots: 1}, now)
	n := m.locker.line
	n.mu.Lock()
	n.waiters[w.lease.token] = w
	n.mu.Unlock()
	return w
}

// askedAt is when the last ask of w was sent that has a reply.
func askedAt(w *waiter) time.Time {
	_, at := w.turn.Grant()
	return at
}

func (w *waiter) finished() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// The local deadline of a granted lease counts from when the last answered ask
// was sent, not from when the message came.
func TestRule07_GrantedLeaseCountsFromTheLastAsk(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for ttl, g := range map[time.Duration]time.Duration{time.Minute: maxGrant, 2 * time.Second: 2 * time.Second} {
		w := hearing(l.Mutex("x", TTL(ttl)), 1000, g/4)
		l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: 2000})
		if !w.finished() {
			t.Fatal("not believed")
		}
		if d, at := w.lease.Deadline(), askedAt(w); d.After(at.Add(g)) || d.Before(at.Add(g-g/8)) {
			t.Errorf("TTL %s: the lease ends %s after the ask, want %s", ttl, d.Sub(at), g)
		}
	}
}

// Less than half is left of it: ask again before running.
func TestRule07_LessThanHalfLeftAsksFirst(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	m := l.Mutex(redistest.Name(t), TTL(time.Minute))
	w := hearing(m, 1000, maxGrant*6/10)
	l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: 2000})
	// The lock is free here, so the answer is "yours".
	select {
	case <-w.done:
	case <-time.After(soon):
		t.Fatal("no re-ask")
	}
	if left := time.Until(w.lease.Deadline()); w.ended != turn.Won || left < 30*time.Second {
		t.Errorf("re-armed for %s, want about a minute", left)
	}
	mustUnlock(t, w.lease)
}

// "Yours" re-arms: the stored deadline reaches as far as the asker believes.
func TestRule07_YoursRearmsTheLease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(20*time.Second))
		holder, waiter := m.newLease(), m.newLease()
		mustAsk(t, m, holder, turn.EntryLifetime)
		mustAsk(t, m, waiter, turn.EntryLifetime)
		if _, held, err := holder.release(t.Context()); !held || err != nil {
			t.Fatal(held, err)
		}
		granted, _ := holds(t, waiter)
		before := serverNow(t, m)
		if a := mustAsk(t, m, waiter, turn.EntryLifetime); !a.Yours {
			t.Fatalf("a granted token's ask is answered %+v", a)
		}
		if now, ok := holds(t, waiter); !ok || !now.After(granted) || now.Before(before.Add(20*time.Second-time.Millisecond)) {
			t.Errorf("re-armed from %v to %v, want 20s after %v", granted, now, before)
		}
	})
}

// The connection breaks and with it the subscription: once there is another,
// everybody asks, for messages may have been missed.
func TestRule07_AllAskAgainAfterResubscribe(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		const n = 5
		var held []*Lease
		var waiters []*attempt
		for i := range n {
			m := near.Mutex(fmt.Sprint(redistest.Name(t), i))
			held = append(held, mustTry(t, m))
			waiters = append(waiters, inLine(t, handle(far, m), 1))
		}
		calm(t, far, n)
		p.DropMessages(true)
		for _, le := range held {
			mustUnlock(t, le)
		}
		redistest.Eventually(t, soon, func() bool { return p.DroppedMessages() >= n }, "%d lost messages", n)
		subscribed := p.Count("SUBSCRIBE")
		p.Cut()
		for _, w := range waiters {
			mustUnlock(t, w.got(t))
		}
		if p.Count("SUBSCRIBE") == subscribed {
			t.Error("no resubscription")
		}
	})
}

// The subscription's connection swallows everything, pongs too: it is replaced,
// and waiters get their locks meanwhile and afterwards.
func TestRule07_BlackholedSubscriptionIsReplaced(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		w := inLine(t, handle(far, m), 1)
		heard(t, w.lock)
		n := p.Count("SUBSCRIBE")
		p.BlackholePubSub(true)
		mustUnlock(t, held)
		held = w.got(t)
		w = inLine(t, m, 1)
		w.cancel()
		keep := inLine(t, handle(far, m), 1) // somebody must wait, or nobody needs one
		redistest.Eventually(t, soon, func() bool { return p.Count("SUBSCRIBE") > n }, "another subscription")
		p.BlackholePubSub(false)
		heard(t, keep.lock)
		mustUnlock(t, held)
		mustUnlock(t, keep.got(t))
	})
}

// A SUBSCRIBE gets lost and the connection lives on: its pongs do not pass for a
// subscription.
func TestRule07_LostSubscribeIsRepeated(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		p.Swallow(redistest.ToServer, redistest.Subscriptions, true)
		w := inLine(t, handle(far, m), 1)
		redistest.Eventually(t, soon, func() bool { return p.Swallowed("SUBSCRIBE") == 1 }, "a SUBSCRIBE that gets lost")
		p.Swallow(redistest.ToServer, redistest.Subscriptions, false)
		heard(t, w.lock)
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
	})
}

// A user without the right to the channels: grants are found by refresh, and
// PUBLISH failing does not abort a script after its writes.
func TestRule07_NoPermissionForTheChannel(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	redistest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret", "~*", "resetchannels", "+@all").Err())
	limited := newLocker(t, s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = "limited", "secret" }))
	m := newLocker(t, admin).Mutex(redistest.Name(t))
	held := mustTry(t, handle(limited, m))
	first := inLine(t, handle(limited, m), 1)
	second := inLine(t, handle(limited, m), 2)
	mustUnlock(t, held)
	mustUnlock(t, first.got(t))
	mustUnlock(t, second.got(t))
	free(t, m, soon)
}

// A subscription goes when nobody has waited for a while; waiting brings it back.
func TestSubscriptionEndsWhenIdle(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("takes over ten seconds")
	}
	s := redistest.Real(t)
	near, far, p := through(t, s)
	m := near.Mutex(redistest.Name(t))
	for round := 1; round <= 2; round++ {
		held := mustTry(t, m)
		w := inLine(t, handle(far, m), 1)
		heard(t, w.lock)
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
		if n := p.Count("SUBSCRIBE"); n != round {
			t.Errorf("round %d: %d subscriptions", round, n)
		}
		if round == 2 {
			return
		}
		redistest.Eventually(t, soon, func() bool {
			far.wake.mu.Lock()
			defer far.wake.mu.Unlock()
			return !far.wake.listening
		}, "the end of the subscription")
	}
}
