package lock

import (
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

// A start is refunded after others have started. From then on the rate is as if it had not
// been: what it took from the burst would have been there, but not more than the burst.
func TestRate_lateRefund(t *testing.T) {
	t.Parallel()
	m, pass := ratedByItsOwnClock(t, 10*time.Second)
	first := mustTry(t, m)
	pass(4 * time.Second)
	mustUnlock(t, mustTry(t, m))
	pass(time.Second)
	if err := first.giveBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, mustTry(t, m))
	pass(8 * time.Second) // two have started within 9 s: the next one comes 10 s after the first of them
	if busy := mustBeBusy(t, m); busy.Reason != ReasonRate || (busy.ExpiresIn-time.Second).Abs() > time.Millisecond {
		t.Errorf("%+v, want the rate for a second more; %s", busy, dump(m))
	}
	pass(time.Second)
	mustUnlock(t, mustTry(t, m))
	mustBeBusy(t, m)
}

// A cooldown that ends before the rate allows the next start lasts, also if a start is refunded.
func TestRate_refundInACooldown(t *testing.T) {
	t.Parallel()
	m, pass := ratedByItsOwnClock(t, 10*time.Hour)
	first := mustTry(t, m)
	pass(time.Hour)
	if err := mustTry(t, m).Cooldown(t.Context(), 3*time.Hour); err != nil {
		t.Fatal(err)
	}
	pass(time.Hour)
	if err := first.giveBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A cooldown is shorter by the real time that its release took.
	if busy := mustBeBusy(t, m); busy.ExpiresIn < time.Hour || busy.ExpiresIn > 2*time.Hour {
		t.Errorf("%+v, want the cooldown for two hours more; %s", busy, dump(m))
	}
	pass(2 * time.Hour)
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
		w.held, w.counted = append(w.held, heldStart{le, at}), append(w.counted, at)
	}
}

// leave gives one of the slots back: of two of three the work has not begun.
func (w *rateWorld) leave(t *testing.T) {
	i := w.random.IntN(len(w.held))
	h := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	if w.random.IntN(3) == 0 {
		mustUnlock(t, h.lease)
		return
	}
	if err := h.lease.giveBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.refunded++
	if i := slices.Index(w.counted, h.at); i >= 0 {
		w.counted = slices.Delete(w.counted, i, i+1)
	}
}

// Starts are refunded at random times, after others. The rate allows the next one when it
// would if those had not been, computed from all starts anew.
func TestRate_refundsAgreeWithAllStarts(t *testing.T) {
	t.Parallel()
	for _, burst := range []int{1, 2, 3} {
		w := newRateWorld(t, burst)
		w.takeAndLeave(t, 1500)
		if w.late > 0 || w.refunded < 100 || w.refused < 50 {
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

// A hundred start, and most of them are refunded, while others start: then the gate no longer
// knows the levels of all. It allows none too early, and all again once it was full.
func TestRate_manyRefunds(t *testing.T) {
	t.Parallel()
	w := newRateWorld(t, 100)
	for range 4 {
		for range 140 {
			w.pass(t, w.every/10)
			w.try(t)
		}
		for len(w.held) > 0 {
			w.pass(t, 2*w.every)
			w.leave(t)
			if w.random.IntN(3) == 0 {
				w.try(t)
			}
		}
	}
	w.now = w.now.Add(2 * time.Second)
	w.s.SetTime(t, w.now)
	w.late = 0
	w.takeAndLeave(t, 100)
	if w.late > 0 || w.refunded < 100 || w.refused < 100 {
		t.Errorf("%d refunded, %d refused, %d of the last although a start was free; %s", w.refunded, w.refused, w.late, dump(w.m))
	}
}
