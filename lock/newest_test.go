package lock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// arrived is a task that has arrived at a lock where the newest win, and counts who asks it to stop.
type arrived struct {
	*lock.Lock
	asked *atomic.Int32
}

func arrives(t testing.TB, l *lock.Locker, name string, limit int, note string) arrived {
	t.Helper()
	at, _, err := insider.Arrive(t.Context(), l.Semaphore(name, limit, lock.Note(note)))
	redistest.Must(t, err)
	asked := new(atomic.Int32)
	return arrived{l.Semaphore(name, limit, lock.Note(note), insider.OnStop(at, func() { asked.Add(1) })), asked}
}

func (m arrived) stops(t testing.TB, want inside.Standing) {
	t.Helper()
	if got, err := insider.AskOlderToStop(t.Context(), m.Lock); err != nil || got != want {
		t.Fatalf("AskOlderToStop: %d, %v; want %d; %s", got, err, want, dump(m.Lock))
	}
}

// until has m ask until older was: its subscription may not be there yet, and a message may be lost.
func (m arrived) until(t testing.TB, older arrived) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		_, err := insider.AskOlderToStop(t.Context(), m.Lock)
		redistest.Must(t, err)
		return older.asked.Load() > 0
	}, "asked to stop")
}

// The holder is asked, keeps the lock for as long as it likes, and is succeeded.
func TestNewest_holderIsAsked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		near, far := twoProcesses(t, s)
		name := redistest.Name(t)
		old := arrives(t, near, name, 1, "old")
		le := mustTry(t, old.Lock)
		young := arrives(t, far, name, 1, "young")
		mustBeBusy(t, young.Lock)
		young.until(t, old)
		if !le.Held() {
			t.Error("to be asked ended the lease")
		}
		wantHeld(t, young.Lock, 1)
		w := inLine(t, young.Lock, 1)
		mustUnlock(t, le)
		mustUnlock(t, w.got(t))
		free(t, old.Lock)
	})
}

// While nobody may start, the holder is left alone: it would end for nobody. Those who only wait are asked all the same.
func TestNewest_whileNobodyMayStart(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, what := range []string{"gate", "pause"} {
			l, name := newLocker(t, s.Client(t), ownPrefix(t)), redistest.Name(t)
			old := arrives(t, l, name, 1, "old")
			le := mustTry(t, old.Lock)
			middle := arrives(t, l, name, 1, "middle")
			w := inLine(t, middle.Lock, 1)
			young := arrives(t, l, name, 1, "young")
			if what == "gate" {
				redistest.Must(t, insider.CloseGate(t.Context(), le, time.Hour))
			} else {
				redistest.Must(t, l.Controls().Pause(t.Context(), name, time.Time{}, "a test"))
			}
			// The second message to the waiter comes after the first to the holder, if there is one.
			redistest.Eventually(t, soon, func() bool { young.stops(t, inside.First); return middle.asked.Load() >= 2 }, "the waiter asked twice")
			if n := old.asked.Load(); n != 0 {
				t.Errorf("%s: the holder was asked to stop %d times", what, n)
			}
			if what == "gate" {
				redistest.Must(t, second(insider.OpenGate(t.Context(), young.Lock)))
			} else {
				redistest.Must(t, l.Controls().Resume(t.Context(), name))
			}
			young.until(t, old)
			w.cancel()
			wantBusy(t, w.failed(t))
			mustUnlock(t, le)
		}
	})
}

// An older one asks nobody, and hears that it is behind.
func TestNewest_older(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		old, young := arrives(t, l, name, 1, "old"), arrives(t, l, name, 1, "young")
		le := mustTry(t, young.Lock)
		old.stops(t, inside.BehindHolders)
		w := inLine(t, old.Lock, 1)
		old.stops(t, inside.BehindHolders)
		young.stops(t, inside.First)
		youngest := arrives(t, l, name, 1, "youngest")
		waits := inLine(t, youngest.Lock, 2)
		old.stops(t, inside.BehindWaiters)
		young.stops(t, inside.BehindWaiters)
		if old.asked.Load()+young.asked.Load() != 0 {
			t.Errorf("asked to stop: the old one %d times, the young one %d times", old.asked.Load(), young.asked.Load())
		}
		youngest.until(t, young)
		youngest.until(t, old)
		w.cancel()
		wantBusy(t, w.failed(t))
		mustUnlock(t, le)
		mustUnlock(t, waits.got(t))
	})
}

// Of the holders of a semaphore the oldest goes, and of those that wait as many as there are slots stay.
func TestNewest_semaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		var all []arrived
		for i := range 5 {
			all = append(all, arrives(t, l, name, 2, fmt.Sprint(i)))
		}
		one := mustTry(t, all[1].Lock)
		all[2].stops(t, inside.First) // a slot is free: nobody is asked
		two := mustTry(t, all[0].Lock)
		all[2].until(t, all[0])
		if all[1].asked.Load() != 0 {
			t.Error("the newer one of two holders was asked")
		}
		w2 := inLine(t, all[2].Lock, 1)
		all[3].until(t, all[1])
		w3 := inLine(t, all[3].Lock, 2)
		all[2].stops(t, inside.First) // 3 alone is newer
		all[4].until(t, all[2])
		w4 := inLine(t, all[4].Lock, 3)
		all[2].stops(t, inside.BehindWaiters)
		all[0].stops(t, inside.BehindWaiters)
		w2.cancel()
		wantBusy(t, w2.failed(t))
		mustUnlock(t, one)
		mustUnlock(t, two)
		three, four := w3.got(t), w4.got(t)
		all[2].stops(t, inside.BehindHolders)
		all[4].stops(t, inside.First)
		if all[3].asked.Load()+all[4].asked.Load() != 0 {
			t.Error("the newest were asked")
		}
		mustUnlock(t, three)
		mustUnlock(t, four)
	})
}

// Whoever knows nothing of arrivals is left alone, and its slot counts as gone. Who died does not count.
func TestNewest_leavesOthersAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		m := l.Semaphore(name, 2)
		plain := mustTry(t, m)
		old := arrives(t, l, name, 2, "old")
		le := mustTry(t, old.Lock)
		w := inLine(t, m, 1)
		young := arrives(t, l, name, 2, "young")
		young.until(t, old)
		if !plain.Held() || !w.pending() {
			t.Error("another holder or waiter was disturbed")
		}
		mustUnlock(t, le)
		mustUnlock(t, w.got(t))
		mustUnlock(t, plain)

		closing, name := newLocker(t, s.Client(t)), redistest.Name(t)
		old = arrives(t, l, name, 1, "old")
		at, _, err := insider.Arrive(t.Context(), closing.Mutex(name, lock.Note("dead")))
		redistest.Must(t, err)
		dead := closing.Mutex(name, lock.Note("dead"), insider.OnStop(at, func() {}), lock.TTL(time.Second), lock.NoRenew())
		mustTry(t, dead)
		old.stops(t, inside.BehindHolders)
		redistest.Eventually(t, soon, func() bool {
			standing, err := insider.AskOlderToStop(t.Context(), old.Lock)
			return err == nil && standing == inside.First
		}, "the dead one does not count")
	})
}

// The message is lost: the next call's is not. A user that may not publish has its answer all the same.
func TestNewest_withoutMessages(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		name := redistest.Name(t)
		old := arrives(t, far, name, 1, "old")
		le := mustTry(t, old.Lock)
		young := arrives(t, near, name, 1, "young")
		young.until(t, old)
		p.DropMessages(true)
		dropped, asked := p.DroppedMessages(), old.asked.Load()
		young.stops(t, inside.First)
		redistest.Eventually(t, soon, func() bool { return p.DroppedMessages() > dropped }, "the message")
		p.DropMessages(false)
		redistest.Eventually(t, soon, func() bool { young.stops(t, inside.First); return old.asked.Load() > asked }, "asked again")
		mustUnlock(t, le)
	})
	s := redistest.StartReal(t)
	admin := s.Client(t)
	l := newLocker(t, withUser(t, s, admin, "deaf", "resetchannels"))
	old := arrives(t, l, "x", 1, "old")
	le := mustTry(t, old.Lock)
	young := arrives(t, l, "x", 1, "young")
	young.stops(t, inside.First)
	mustUnlock(t, le)
}

// Many come at once, each asks until it holds or is asked itself: the newest holds, and no two at once.
func TestNewest_stress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		name := redistest.Name(t)
		lockers := []*lock.Locker{newLocker(t, s.Client(t)), newLocker(t, s.Client(t))}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		var mu sync.Mutex // guards what follows
		var now, most int
		var held, came []int64
		const all = 20
		var over atomic.Int32 // those that do not hold any more, or never did
		last := make(chan struct{})
		var wg sync.WaitGroup
		for i := range all {
			redistest.Go(&wg, func() {
				defer func() {
					if over.Add(1) == all-1 {
						close(last)
					}
				}()
				l, note := lockers[i%len(lockers)], lock.Note(fmt.Sprint(i))
				arrival, _, err := insider.Arrive(ctx, l.Mutex(name, note))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				came = append(came, arrival)
				mu.Unlock()
				ours, stop := context.WithCancel(ctx)
				defer stop()
				m := l.Mutex(name, note, insider.OnStop(arrival, stop))
				done := make(chan struct{})
				defer func() { <-done }()
				go func() { // asks until its wait or stay is over
					defer close(done)
					for ours.Err() == nil {
						if standing, err := insider.AskOlderToStop(ours, m); err == nil && standing != inside.First {
							stop()
						}
						select {
						case <-time.After(20 * time.Millisecond):
						case <-ours.Done():
						}
					}
				}()
				le, err := m.Lock(ours)
				if err != nil {
					return
				}
				mu.Lock()
				now++
				most = max(most, now)
				held = append(held, arrival)
				mu.Unlock()
				select {
				case <-ours.Done():
				case <-last: // all others are over, and nobody asks
				}
				stop()
				mu.Lock()
				now--
				mu.Unlock()
				if err := le.Unlock(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most != 1 || len(held) == 0 || held[len(held)-1] != slices.Max(came) || ctx.Err() != nil {
			t.Errorf("%d at once; held by %v, of %v", most, held, came)
		}
	})
}
