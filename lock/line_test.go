package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// One release frees one slot and wakes one waiter, the first.
func TestRule05_OneWakeUpPerFreedSlot(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// Entries without goroutines are stale after turn.EntryLifetime, so a busy machine may need
		// several tries until both releases come before that.
		for range 20 {
			if releasesWakeOneEach(t, s) {
				return
			}
		}
		t.Errorf("two releases never came within %s of the asks", turn.EntryLifetime)
	})
}

// releasesWakeOneEach reports false if it took so long that entries in line were stale.
func releasesWakeOneEach(t *testing.T, s *redistest.Server) (inTime bool) {
	m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
	// Entries without goroutines behind them, so that nothing else stirs. The
	// holders are another Locker's: one's own waiters are told by the reply.
	far := handle(newLocker(t, s.Client(t)), m)
	channel := m.locker.prefix + ":" + m.locker.channel
	sub := raw(m).Subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	holders := []*Lease{far.newLease(), far.newLease()}
	var waiters []*Lease
	for _, le := range holders {
		mustAsk(t, m, le, turn.EntryLifetime)
	}
	began := time.Now()
	for range 5 {
		waiters = append(waiters, m.newLease())
		mustAsk(t, m, waiters[len(waiters)-1], turn.EntryLifetime)
	}
	for i, le := range holders {
		if _, held, err := le.release(t.Context()); !held || err != nil {
			t.Fatalf("release: %v, %v", held, err)
		}
		_, ok := holds(t, waiters[i])
		holding, inLine := band(t, m, "h:"), band(t, m, "e:")
		switch {
		case time.Since(began) >= turn.EntryLifetime:
			return false
		case !ok || holding != 2 || inLine != 4-i:
			t.Fatalf("after release %d waiter %d should hold, and nobody else; %s", i, i, dump(m))
		}
	}
	// What came, up to a mark published last. In a cluster that may overtake.
	var told []string
	redistest.Eventually(t, soon, func() bool {
		got, err := sub.ReceiveTimeout(t.Context(), 10*time.Millisecond)
		if msg, ok := got.(*redis.Message); ok && err == nil {
			told = append(told, strings.Fields(msg.Payload)[0])
		}
		return len(told) >= 2
	}, "two messages")
	redistest.Must(t, raw(m).Publish(t.Context(), channel, "mark").Err())
	for {
		msg, err := sub.ReceiveMessage(t.Context())
		redistest.Must(t, err)
		if msg.Payload == "mark" {
			break
		}
		told = append(told, msg.Payload)
	}
	if len(told) != 2 || told[0] != waiters[0].token || told[1] != waiters[1].token {
		t.Errorf("two releases woke %q, want %q and %q", told, waiters[0].token, waiters[1].token)
	}
	return true
}

// A contended acquisition costs an ask and a release. Refreshes, one per waiter
// and second, come on top.
func TestRule05_TwoCallsPerContendedAcquisition(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		first := inLine(t, m, 1) // brings the subscription, and its re-ask
		calm(t, l, 1)
		const n = 60
		k.reset()
		began := time.Now()
		var wg sync.WaitGroup
		for range n {
			redistest.Go(&wg, func() {
				le, err := m.Lock(context.Background())
				if err != nil {
					t.Errorf("Lock: %v", err)
				} else if err := le.Unlock(context.Background()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			})
		}
		redistest.Eventually(t, soon, func() bool { return k.count(wire.AskScript) >= n }, "%d asks", n)
		mustUnlock(t, held)
		mustUnlock(t, first.got(t))
		wg.Wait()
		// Each second that this took, every waiter may have asked once more.
		seconds := int(time.Since(began) / (turn.RefreshEvery * 3 / 4))
		if asks := k.count(wire.AskScript); asks > n*(1+seconds)+2+seconds {
			t.Errorf("%d acquisitions in %s took %d asks", n, time.Since(began), asks)
		}
		// A grant that nobody came for in G is given back by whoever was late.
		lapsed := int(time.Since(began) / maxGrant)
		if releases := k.count(wire.ReleaseScript); releases < n+2 || releases > n+2+lapsed {
			t.Errorf("%d acquisitions in %s took %d releases, want one each", n+2, time.Since(began), releases)
		}
	})
}

// All waiters of a process are refreshed once a second, in one pipeline.
func TestRule05_RefreshesTravelTogether(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		holder, l := newLocker(t, s.Client(t)), newLocker(t, rdb)
		const n = 30
		for i := range n {
			m := holder.Mutex(fmt.Sprint(redistest.Name(t), i))
			mustTry(t, m)
			lockBeside(t, handle(l, m))
		}
		// When the Locker is subscribed its waiters ask again at once, each in a pipeline of its own
		// if they come to the line at that time. These asks are no refreshes.
		var began time.Time
		whenAnswered(t, l, n, 0, func(*waiter) { began = time.Now() })
		k.reset()
		redistest.Eventually(t, soon, func() bool { return k.count(wire.AskScript) >= 4*n }, "four refreshes of each")
		pipelines := k.sizes(wire.AskScript)
		took := time.Since(began)
		// 3 to 4 s; each waiter more often than once a second costs more.
		if took < 2*turn.RefreshEvery {
			t.Errorf("%d asks of %d waiters within %s", k.count(wire.AskScript), n, took)
		}
		// Waiters that came at different times are due at different times. A pipeline
		// goes to one server.
		most := 1 + int(took/(turn.RefreshEvery/4))
		if s.Kind() == redistest.KindCluster {
			most *= 3
		}
		if len(pipelines) > most {
			t.Errorf("%d refreshes travelled in %d pipelines, want at most %d: %v", 4*n, len(pipelines), most, pipelines)
		}
	})
}

// Only the first N in line watch the first deadline.
func TestRule05_OnlyTheFirstNSetATimer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 3)
		for range 3 {
			mustTry(t, m)
		}
		for i := range 8 {
			inLine(t, m, i+1)
		}
		redistest.Eventually(t, soon, func() bool { return timers(l) == 3 }, "3 waiters with timers")
		for range 20 {
			l.line.askAll()
			if n := timers(l); n > 3 {
				t.Fatalf("%d of 8 waiters have set a timer, want 3", n)
			}
		}
	})
}

func timers(l *Locker) (n int) {
	l.line.mu.Lock()
	defer l.line.mu.Unlock()
	for _, w := range l.line.waiters {
		if !w.turn.SlotFreeAt.IsZero() {
			n++
		}
	}
	return n
}

// The holder does not renew: the first in line takes over at its deadline, by
// its own timer and not by the next refresh.
func TestRule05_TheFirstInLineWatchesTheDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), TTL(3*time.Second), NoRenew())
		deadline, _ := holds(t, mustTry(t, m))
		w := inLine(t, m, 1)
		calm(t, l, 1)
		le := w.got(t)
		if late := time.UnixMicro(fenceOf(t, le)).Sub(deadline); late < -expiryError(s) {
			t.Errorf("taken over %s after the deadline", late)
		}
	})
}

func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		lockers := []*Locker{newLocker(t, rdb), newLocker(t, rdb), newLocker(t, rdb)}
		m := lockers[0].Mutex(redistest.Name(t), Fenced())
		held := mustTry(t, m)
		var waiters []*attempt
		for i := range 20 {
			waiters = append(waiters, inLine(t, handle(lockers[i%3], m), i+1))
		}
		fence := fenceOf(t, held)
		for i, w := range waiters {
			mustBeBusy(t, m)
			mustUnlock(t, held)
			held = w.got(t)
			if fenceOf(t, held) <= fence {
				t.Errorf("waiter %d has fence %d after %d", i, fenceOf(t, held), fence)
			}
			fence = fenceOf(t, held)
			for j, other := range waiters[i+1:] {
				if !other.pending() {
					t.Fatalf("waiter %d was served before waiter %d", i+1+j, i+1)
				}
			}
		}
		mustUnlock(t, held)
		free(t, m, soon)
	})
}

// A free slot goes to the line and not to a newcomer, even if nothing but the
// newcomer's own ask tells that the slot is free.
func TestNewcomerNeverOvertakes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		expiring, waiter := handle(m.locker, m, TTL(inside.MinTTL)).newLease(), m.newLease()
		mustAsk(t, expiring.lock, expiring, turn.EntryLifetime)
		mustAsk(t, m, waiter, time.Minute)
		deadline, _ := holds(t, expiring)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(deadline) }, "the holder's deadline")
		mustBeBusy(t, m)
		if _, ok := holds(t, waiter); !ok {
			t.Errorf("the newcomer's ask did not grant to the waiter; %s", dump(m))
		}
	})
}

// A waiter gives up in the moment in which it is granted, unnoticed: the slot
// is given back at once and not at the end of G.
func TestWaiterThatGivesUpWhenGranted(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		w := inLine(t, handle(far, m), 1)
		calm(t, far, 1)
		p.DropMessages(true)
		mustUnlock(t, held)
		if band(t, m, "h:") != 1 {
			t.Fatalf("not granted; %s", dump(m))
		}
		behind := inLine(t, m, 1)
		gaveUp := serverNow(t, m)
		w.cancel()
		if err := w.failed(t); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock: %v", err)
		}
		le := behind.got(t)
		if late := time.UnixMicro(fenceOf(t, le)).Sub(gaveUp); late > maxGrant/2 {
			t.Errorf("the slot came back after %s", late)
		}
		mustUnlock(t, le)
		free(t, m, soon)
	})
}

// The ask of a waiter is under way when the waiter gives up: its leave waits
// for it. Sent at once it would be overtaken, and the ask would take the lock
// for nobody.
func TestRule03_LeaveWaitsForTheAsk(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t), TTL(time.Minute))
		warm(t, m)
		holder := mustTry(t, m)
		w := inLine(t, handle(far, m), 1)
		calm(t, far, 1)
		held := p.Hold(isScript(wire.AskScript, m), 1)
		far.line.askAll()
		redistest.Eventually(t, soon, func() bool { return held.Count() == 1 }, "an ask under way")
		before := p.Count("EVALSHA")
		w.cancel()
		w.failed(t) // within leaveGrace, though the leave is not through
		if n := p.Count("EVALSHA") - before; n != 0 {
			t.Errorf("%d calls overtook the ask", n)
		}
		mustUnlock(t, holder) // grants to the entry, which nobody has taken out of line
		held.Release()
		free(t, m, soon)
	})
}

// As above, but the client gives up on the ask before: its outcome is unknown
// and it may still come.
func TestRule03_LeaveAfterAnAskOfUnknownOutcomeIsRepeated(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	near, far, p := through(t, s, func(o *redis.UniversalOptions) {
		o.MaxRetries, o.ReadTimeout = -1, time.Second
	})
	m := near.Mutex(redistest.Name(t), TTL(time.Minute))
	warm(t, m)
	holder := mustTry(t, m)
	w := inLine(t, handle(far, m), 1)
	calm(t, far, 1)
	held := p.Hold(isScript(wire.AskScript, m), 1)
	far.line.askAll()
	redistest.Eventually(t, soon, func() bool { return held.Count() == 1 }, "an ask under way")
	w.cancel()
	w.failed(t)
	waiting(t, m, 0) // the leave is through
	mustUnlock(t, holder)
	free(t, m, soon)
	held.Release()
	redistest.Eventually(t, soon, func() bool { return band(t, m, "h:") == 1 }, "the late ask taking the lock")
	free(t, m, soon)
}
