package lock

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// starts are those that a rate counts: their times in us, rising.
type starts []int64

// opens is when the rate allows the next start, computed from all starts anew.
func (all starts) opens(every, spare int64) int64 {
	opens := int64(math.MinInt64)
	for _, at := range all {
		opens = max(opens, at-spare) + every
	}
	return opens
}

// ratedByItsOwnClock returns a lock with ten slots on a Redis whose clock only pass moves on. One
// task starts per time, two at once.
func ratedByItsOwnClock(t *testing.T, per time.Duration) (m *Lock, pass func(time.Duration)) {
	s, now := redistest.StartMini(t), time.Now()
	s.SetTime(t, now)
	m = newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 10, Rate(1, per, 2), TTL(24*time.Hour), NoRenew())
	return m, func(d time.Duration) {
		now = now.Add(d)
		s.SetTime(t, now)
	}
}

// A start is refunded only while nobody has started after it, and once.
func TestRate_refundsTheLastStartOnly(t *testing.T) {
	t.Parallel()
	m, pass := ratedByItsOwnClock(t, 10*time.Second)
	first := mustTry(t, m)
	pass(4 * time.Second)
	second := mustTry(t, m)
	pass(time.Second)
	if err := first.giveBack(t.Context()); err != nil { // the second one came after it
		t.Fatal(err)
	}
	if busy := mustBeBusy(t, m); busy.Reason != ReasonRate || busy.ExpiresIn != 5*time.Second {
		t.Errorf("%+v, want the rate for five seconds more; %s", busy, dump(m))
	}
	redistest.Must(t, second.giveBack(t.Context()))
	third := mustTry(t, m)
	mustBeBusy(t, m)
	pass(10 * time.Second)
	mustUnlock(t, mustTry(t, m))
	redistest.Must(t, third.giveBack(t.Context()))
	mustBeBusy(t, m)
}

// A cooldown and a rate each last until a time of their own, also if the start is refunded. The
// cooldown is named while it lasts, though the rate lasts for longer.
func TestRate_besideACooldown(t *testing.T) {
	t.Parallel()
	m, pass := ratedByItsOwnClock(t, 10*time.Hour)
	mustUnlock(t, mustTry(t, m))
	pass(time.Hour)
	last := mustTry(t, m)
	redistest.Must(t, errors.Join(last.closeGate(t.Context(), time.Hour), last.Cooldown(t.Context(), 3*time.Hour)))
	for _, want := range []struct {
		reason string
		lasts  time.Duration // a cooldown is shorter by the real time that its release took
	}{{ReasonClosed, time.Hour}, {ReasonCooldown, 2 * time.Hour}, {ReasonRate, 6 * time.Hour}} {
		busy := mustBeBusy(t, m)
		if early := want.lasts - busy.ExpiresIn; busy.Reason != want.reason || early < 0 || early > soon {
			t.Errorf("%+v, want %s for %s; %s", busy, want.reason, want.lasts, dump(m))
		}
		if i, err := m.inspectAll(t.Context()); err != nil || i.Gate.Reason != want.reason || i.Gate.OpensIn != busy.ExpiresIn {
			t.Errorf("Inspect: %+v, %v", i, err)
		}
		pass(want.lasts)
	}
	mustUnlock(t, mustTry(t, m))
}

// rateWorld takes slots under a rate, and gives them back, by a clock of its own.
type rateWorld struct {
	m            *Lock
	s            *redistest.Server
	now          time.Time
	random       *rand.Rand
	every, spare int64
	counted      starts
	held         []heldStart
	last         *Lease // of the last start, until it is refunded

	refunded, refused, late int // late: refused although the counted starts allow one
}

type heldStart struct {
	lease *Lease
	at    int64
}

func newRateWorld(t *testing.T, burst int) *rateWorld {
	const every = 10_000 // us
	w := &rateWorld{s: redistest.StartMini(t), now: time.UnixMicro(time.Now().UnixMicro()), random: rand.New(rand.NewPCG(1, uint64(burst)))}
	w.every, w.spare = every, every*int64(burst-1)
	w.m = newLocker(t, w.s.Client(t)).Semaphore(redistest.Name(t), 1000, Rate(100, time.Second, burst), TTL(time.Hour), NoRenew())
	return w
}

func (w *rateWorld) pass(t *testing.T, most int64) {
	w.now = w.now.Add(time.Duration(w.random.Int64N(most)) * time.Microsecond)
	w.s.SetTime(t, w.now)
}

// try takes a slot, and compares what it is told with what the counted starts allow.
func (w *rateWorld) try(t *testing.T) {
	le, err := w.m.TryLock(t.Context())
	at := w.now.UnixMicro()
	opens := w.counted.opens(w.every, w.spare)
	switch {
	case err != nil:
		w.refused++
		if wantBusy(t, err).Reason != ReasonRate {
			t.Fatal(err)
		}
		if opens <= at {
			w.late++
		}
	case opens > at:
		t.Fatalf("a start %d us too early; %s", opens-at, dump(w.m))
	default:
		w.held, w.counted, w.last = append(w.held, heldStart{le, at}), append(w.counted, at), le
	}
}

// leave gives one of the slots back, half of the time the last one: of two of three the work has not
// begun.
func (w *rateWorld) leave(t *testing.T) {
	i := w.random.IntN(len(w.held))
	if w.random.IntN(2) == 0 {
		i = len(w.held) - 1
	}
	h := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	if w.random.IntN(3) == 0 {
		mustUnlock(t, h.lease)
		return
	}
	redistest.Must(t, h.lease.giveBack(t.Context()))
	if h.lease == w.last {
		w.refunded++
		w.counted, w.last = w.counted[:len(w.counted)-1], nil
	}
}

// Starts are given back at random times, the last one and others. The rate allows the next one when
// it would if those that were the last ones had not been, computed from all starts anew.
func TestRate_refundsAgreeWithAllStarts(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for _, burst := range []int{1, 3, 40} {
		w := newRateWorld(t, burst)
		w.takeAndLeave(t, 500)
		if w.late > 0 || w.refunded < 30 || w.refused < 20 {
			t.Errorf("Burst %d: %d refunded, %d refused, %d of them although a start was free", burst, w.refunded, w.refused, w.late)
		}
	}
}

func (w *rateWorld) takeAndLeave(t *testing.T, times int) {
	for range times {
		w.pass(t, w.every*3/4)
		if len(w.held) > 0 && w.random.IntN(5) < 2 {
			w.leave(t)
		} else {
			w.try(t)
		}
	}
}
