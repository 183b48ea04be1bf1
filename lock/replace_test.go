package lock

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// arrived is m for one with that note, which has arrived, and counts who asks it
// to stop.
func arrived(t testing.TB, m *Lock, note string, options ...Option) (*Lock, *atomic.Int32) {
	t.Helper()
	options = append([]Option{TTL(m.ttl), Note(note)}, options...)
	arrival, _, err := m.locker.Semaphore(m.name, m.limit, options...).arrive(t.Context())
	redistest.Must(t, err)
	asked := new(atomic.Int32)
	return m.locker.Semaphore(m.name, m.limit, append(options, onStop(arrival, func() { asked.Add(1) }))...), asked
}

func mustStop(t testing.TB, m *Lock, want inside.Standing) {
	t.Helper()
	got, err := m.askOlderToStop(t.Context())
	if err != nil || got != want {
		t.Fatalf("Stop: %d, %v, want %d; %s", got, err, want, dump(m))
	}
}

// awaitAsked has m ask until asked was.
func awaitAsked(t testing.TB, m *Lock, asked *atomic.Int32) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		_, _ = m.askOlderToStop(t.Context())
		return asked.Load() > 0
	}, "asked to stop; %s", stringer(func() string { return dump(m) }))
}

// The holder is asked, keeps the lock for as long as it likes, and is succeeded.
func TestStop_holder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		near, far := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := near.Mutex(redistest.Name(t))
		old, asked := arrived(t, m, "old")
		le := mustTry(t, old)
		heard(t, old)
		young, _ := arrived(t, handle(far, m), "young")
		mustBeBusy(t, young)
		mustStop(t, young, inside.First)
		redistest.Eventually(t, soon, func() bool { return asked.Load() == 1 }, "asked once by one call")
		if _, ok := holds(t, le); !ok || !le.Held() {
			t.Error("to be asked ended the lease")
		}
		w := inLine(t, young, 1)
		mustUnlock(t, le)
		mustUnlock(t, w.got(t))
		free(t, m, soon)
	})
}

// While nobody may start, the holder is left alone: it would end for nobody. Those who
// only wait are asked all the same.
func TestStop_holderWhileNobodyMayStart(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, prevent := range map[string]func(m *Lock, le *Lease) (open func()){
			"hold": func(m *Lock, le *Lease) func() {
				redistest.Must(t, le.closeGate(t.Context(), time.Hour))
				return nil
			},
			"pause": func(m *Lock, _ *Lease) func() {
				controls := m.locker.Controls()
				redistest.Must(t, controls.Pause(t.Context(), m.name, time.Time{}, "a test"))
				return func() {
					redistest.Must(t, controls.Resume(t.Context(), m.name))
				}
			},
		} {
			m := newLocker(t, s.Client(t), ownPrefix(t)).Mutex(redistest.Name(t) + what)
			old, oldAsked := arrived(t, m, "old")
			le := mustTry(t, old)
			heard(t, old)
			middle, middleAsked := arrived(t, m, "middle")
			w := inLine(t, middle, 1)
			young, _ := arrived(t, m, "young")
			open := prevent(m, le)
			// The second message to the waiter comes after the first to the holder, if there is one.
			redistest.Eventually(t, soon, func() bool {
				mustStop(t, young, inside.First)
				return middleAsked.Load() >= 2
			}, "the waiter asked twice during a %s", what)
			if n := oldAsked.Load(); n != 0 {
				t.Errorf("during a %s the holder was asked to stop %d times", what, n)
			}
			if open != nil {
				open()
				awaitAsked(t, young, oldAsked)
			}
			w.cancel()
			wantBusy(t, w.failed(t))
			mustUnlock(t, le)
		}
	})
}

// A gate that has opened keeps nobody from asking the holder to stop, though it is still stored.
func TestStop_holderAfterAGateHasOpened(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		old, oldAsked := arrived(t, m, "old")
		le := mustTry(t, old)
		heard(t, old)
		redistest.Must(t, le.closeGate(t.Context(), time.Millisecond))
		_, opens, _ := gateOf(t, m)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(opens) }, "the gate to open")
		young, _ := arrived(t, m, "young")
		awaitAsked(t, young, oldAsked)
		if _, _, ok := gateOf(t, m); !ok {
			t.Errorf("the gate that has opened is not stored any more, so that this test shows nothing; %s", dump(m))
		}
		mustUnlock(t, le)
	})
}

// An older one asks nobody, and hears that it is behind.
func TestStop_older(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		old, oldAsked := arrived(t, m, "old")
		young, youngAsked := arrived(t, m, "young")
		le := mustTry(t, young)
		heard(t, young)
		mustStop(t, old, inside.BehindHolders)
		w := inLine(t, old, 1)
		mustStop(t, old, inside.BehindHolders)
		// The holder asks nobody, the waiter not either.
		mustStop(t, young, inside.First)
		youngest, _ := arrived(t, m, "youngest")
		waits := inLine(t, youngest, 2)
		mustStop(t, old, inside.BehindWaiters)
		mustStop(t, young, inside.BehindWaiters)
		if oldAsked.Load()+youngAsked.Load() != 0 {
			t.Errorf("asked to stop: the old one %d times, the young one %d times", oldAsked.Load(), youngAsked.Load())
		}
		awaitAsked(t, youngest, youngAsked)
		awaitAsked(t, youngest, oldAsked)
		w.cancel()
		wantBusy(t, w.failed(t))
		mustUnlock(t, le)
		mustUnlock(t, waits.got(t))
	})
}

// Of the holders of a semaphore the oldest goes, and of those that wait as many
// as there are slots stay.
func TestStop_semaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2)
		var locks []*Lock
		var asked []*atomic.Int32
		for i := range 5 {
			m, n := arrived(t, m, fmt.Sprint(i))
			locks, asked = append(locks, m), append(asked, n)
		}
		wait := func(want ...int32) {
			t.Helper()
			redistest.Eventually(t, soon, func() bool {
				for i, n := range want {
					if asked[i].Load() != n {
						return false
					}
				}
				return true
			}, "asked %v times", want)
		}
		one := mustTry(t, locks[1])
		mustStop(t, locks[2], inside.First) // a slot is free: nobody is asked
		two := mustTry(t, locks[0])
		heard(t, m)
		mustStop(t, locks[2], inside.First)
		wait(1, 0, 0, 0, 0)
		w2 := inLine(t, locks[2], 1)
		mustStop(t, locks[3], inside.First)
		wait(2, 1, 0, 0, 0)
		w3 := inLine(t, locks[3], 2)
		mustStop(t, locks[4], inside.First)
		wait(3, 2, 1, 0, 0)
		mustStop(t, locks[2], inside.First) // 3 alone is newer
		w4 := inLine(t, locks[4], 3)
		mustStop(t, locks[2], inside.BehindWaiters)
		mustStop(t, locks[0], inside.BehindWaiters)
		w2.cancel()
		wantBusy(t, w2.failed(t))
		mustUnlock(t, one)
		mustUnlock(t, two)
		three, four := w3.got(t), w4.got(t)
		mustStop(t, locks[2], inside.BehindHolders)
		mustStop(t, locks[4], inside.First)
		if asked[3].Load()+asked[4].Load() != 0 {
			t.Error("the newest were asked")
		}
		mustUnlock(t, three)
		mustUnlock(t, four)
	})
}

// Whoever knows nothing of arrivals is left alone, and its slot counts as gone.
func TestStop_leavesOthersAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2)
		plain := mustTry(t, m)
		old, asked := arrived(t, m, "old")
		le := mustTry(t, old)
		heard(t, old)
		w := inLine(t, m, 1)
		young, _ := arrived(t, m, "young")
		mustStop(t, young, inside.First)
		redistest.Eventually(t, soon, func() bool { return asked.Load() == 1 }, "the only one that can be is asked")
		if !plain.Held() || !w.pending() {
			t.Error("another holder or waiter was disturbed")
		}
		mustUnlock(t, le)
		mustUnlock(t, w.got(t))
		mustUnlock(t, plain)
	})
}

// A waiter that died counts no more when its entry is stale; nor does a holder
// past its deadline.
func TestStop_deadOnesDoNotCount(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := asksAlways(newLocker(t, s.Client(t))).Mutex(redistest.Name(t))
		plain := mustTry(t, m)
		old, _ := arrived(t, m, "old")
		dead, _ := arrived(t, m, "dead")
		body := dead.newLease().body
		now := serverNow(t, m)
		entry := func(until time.Time) {
			t.Helper()
			if err := raw(m).ZAdd(t.Context(), m.Key(), redis.Z{Score: 3e15, Member: "e:" + body},
				redis.Z{Score: -float64(until.UnixMilli()), Member: "d:" + body}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		entry(now.Add(time.Minute))
		mustStop(t, old, inside.BehindWaiters)
		entry(now.Add(-time.Millisecond))
		mustStop(t, old, inside.First)
		raw(m).ZAdd(t.Context(), m.Key(), redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: "h:" + body})
		mustStop(t, old, inside.BehindHolders)
		raw(m).ZAdd(t.Context(), m.Key(), redis.Z{Score: float64(now.UnixMilli()), Member: "h:" + body})
		mustStop(t, old, inside.First)
		mustUnlock(t, plain)
	})
}

// A holder that nobody waits for hears: its Locker has a subscription for as
// long as it holds, and is rid of it afterwards.
func TestStop_subscription(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.StartMini(t).Client(t))
	m := l.Mutex(redistest.Name(t))
	if mustTry(t, m); l.wake.listening {
		t.Error("a plain holder has a subscription")
	}
	old, asked := arrived(t, l.Mutex(redistest.Name(t)), "old")
	le := mustTry(t, old)
	heard(t, old)
	if !l.wake.used() {
		t.Error("the subscription counts as unused while it is held")
	}
	young, _ := arrived(t, handle(newLocker(t, l.rdb), old), "young")
	awaitAsked(t, young, asked)
	mustUnlock(t, le)
	if l.wake.used() {
		t.Error("the subscription counts as used after the release")
	}
	// Granted from the line, lost, and dropped twice.
	le = mustTry(t, old)
	w := inLine(t, young, 1)
	mustUnlock(t, le)
	le = w.got(t)
	if !young.locker.wake.used() {
		t.Error("the subscription counts as unused after a grant")
	}
	young.locker.renewer.lose(le)
	if young.locker.wake.used() {
		t.Error("the subscription counts as used after a loss")
	}
	err := le.Unlock(t.Context())
	r := young.locker.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil || r.withOnStop != 0 {
		t.Errorf("released after a loss: %v; %d can be asked to stop", err, r.withOnStop)
	}
}

// The message is lost: the next call's is not.
func TestStop_lostMessage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		old, asked := arrived(t, handle(far, m), "old")
		le := mustTry(t, old)
		heard(t, old)
		young, _ := arrived(t, m, "young")
		p.DropMessages(true)
		dropped := p.DroppedMessages()
		mustStop(t, young, inside.First)
		redistest.Eventually(t, soon, func() bool { return p.DroppedMessages() > dropped }, "the message")
		if asked.Load() != 0 {
			t.Fatal("the message was not lost")
		}
		p.DropMessages(false)
		awaitAsked(t, young, asked)
		mustUnlock(t, le)
	})
}

// A user that may not publish: the caller has its answer all the same.
func TestStop_withoutTheChannel(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	for _, channel := range []string{"resetchannels", "&*"} {
		redistest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", channel).Err())
		rdb := s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = "deaf", "x" })
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		old, asked := arrived(t, m, "old")
		le := mustTry(t, old)
		young, _ := arrived(t, m, "young")
		mustStop(t, young, inside.First)
		if channel == "&*" {
			awaitAsked(t, young, asked)
		} else if asked.Load() != 0 {
			t.Error("a message came without a channel")
		}
		mustUnlock(t, le)
	}
}
