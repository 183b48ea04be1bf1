package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// The fence grows from holder to holder, whether the lock was taken or granted,
// and is stored exactly.
func TestRule11_FenceGrows(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), Fenced())
		other := handle(newLocker(t, rdb), m)
		last := int64(0)
		grown := func(le *Lease) {
			t.Helper()
			if fenceOf(t, le) <= last {
				t.Fatalf("fence %d after %d", fenceOf(t, le), last)
			}
			last = fenceOf(t, le)
			if f := int64(stored(t, m)["f"]); f != -(1e15 + last) {
				t.Fatalf("fence %d is stored as %d", last, f)
			}
		}
		for i := range 60 {
			le := mustTry(t, m)
			grown(le)
			if i%3 == 0 {
				w := inLine(t, other, 1)
				mustUnlock(t, le)
				le = w.got(t)
				grown(le)
			}
			mustUnlock(t, le)
		}
	})
}

// The message carries the very number, and the server's time.
func TestRule11_FenceIsPrintedExactly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Fenced())
		sub := raw(m).Subscribe(t.Context(), m.locker.prefix+":"+m.locker.channel)
		t.Cleanup(func() { _ = sub.Close() })
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Of another Locker: one's own waiters are told by the reply.
		holder, waiter := handle(newLocker(t, s.Client(t)), m).newLease(), m.newLease()
		mustAsk(t, m, holder, turn.EntryLifetime)
		mustAsk(t, m, waiter, turn.EntryLifetime)
		before := serverNow(t, m)
		if _, held, err := holder.release(t.Context()); !held || err != nil {
			t.Fatal(held, err)
		}
		fence := -int64(stored(t, m)["f"]) - 1e15
		got, err := sub.ReceiveMessage(t.Context())
		redistest.Must(t, err)
		msg, ok := wire.ParseMessage(got.Payload)
		if !ok || msg.Token != waiter.token || msg.Fence != fence || msg.ServerUS < before.UnixMicro() || msg.ServerUS > serverNow(t, m).UnixMicro() {
			t.Errorf("message %q, want token %s and fence %d", got.Payload, waiter.token, fence)
		}
		if a := mustAsk(t, m, waiter, turn.EntryLifetime); !a.Yours || a.Fence <= 0 {
			t.Errorf("re-ask is answered %+v", a)
		}
	})
}

// Redis' clock steps back while the lock is held or waited for.
func TestRule11_FenceGrowsWhenTheClockStepsBack(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Fenced())
	now := time.Now()
	s.SetTime(t, now)
	le := mustTry(t, m)
	last := fenceOf(t, le)
	for i := range 3 {
		w := inLine(t, m, 1)
		s.SetTime(t, now.Add(-time.Duration(i+1)*time.Hour))
		mustUnlock(t, le)
		le = w.got(t)
		if fenceOf(t, le) <= last {
			t.Fatalf("step %d: fence %d after %d", i, fenceOf(t, le), last)
		}
		last = fenceOf(t, le)
	}
	mustUnlock(t, le)
}

// Two holders in the same microsecond do not share a fence.
func TestRule11_FenceGrowsWhenTheClockStands(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	s.SetTime(t, time.Now())
	m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 20, Fenced())
	last := int64(0)
	for range 20 {
		if le := mustTry(t, m); fenceOf(t, le) <= last {
			t.Fatalf("fence %d after %d", fenceOf(t, le), last)
		} else {
			last = fenceOf(t, le)
		}
	}
}
