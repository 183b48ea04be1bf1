package lock_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A cooldown keeps everybody from the lock for that long, and no one who holds it. Who waits is granted it then.
func TestCooldownKeepsTheSlotForThatLong(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		for _, cooldown := range []time.Duration{time.Minute, 24 * time.Hour} { // longer than the TTL, and than any
			m := hers.Semaphore(redistest.Name(t), 2, lock.TTL(20*time.Second))
			beside, le := mustTry(t, m), mustTry(t, m)
			before := time.Now()
			redistest.Must(t, le.Cooldown(t.Context(), cooldown))
			busy := mustBeBusy(t, m)
			if least := cooldown - time.Since(before) - time.Millisecond; busy.Reason != lock.ReasonCooldown ||
				busy.Holder != "" || busy.Note != "" ||
				busy.ExpiresIn < least || busy.ExpiresIn > cooldown {
				t.Errorf("busy during a cooldown of %s: %+v", cooldown, busy)
			}
			wantAvailable(t, m, 0)
			for what, err := range map[string]error{"Extend": le.Extend(t.Context(), time.Minute),
				"Cooldown": le.Cooldown(t.Context(), 48*time.Hour)} {
				wantErr(t, err, lock.ErrNotHeld, "%s in a cooldown", what)
			}
			redistest.Must(t, beside.Extend(t.Context(), time.Minute))
			mustUnlock(t, beside)
			if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
				t.Errorf("BreakAll: %d, %v; want the gate", n, err)
			}
			free(t, m)
		}

		m := hers.Mutex(redistest.Name(t))
		le, w := mustTry(t, m), inLine(t, handle(his, m), 1)
		end := time.Now().Add(300 * time.Millisecond)
		redistest.Must(t, le.Cooldown(t.Context(), 300*time.Millisecond))
		next := w.got(t)
		if early := time.Until(end); early > 2*time.Millisecond {
			t.Errorf("the waiter was granted the lock %s before the cooldown's end", early)
		}
		mustUnlock(t, next)
		for _, d := range []time.Duration{0, -time.Second, time.Microsecond} {
			redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), d))
			free(t, m)
		}
	})
}

// bucket is a rate as a bucket of tokens: what the gate does, said in another way.
type bucket struct {
	perUS, most, tokens float64
	at                  time.Time
}

func (b *bucket) add(now time.Time) {
	b.tokens = math.Min(b.most, b.tokens+float64(now.Sub(b.at).Microseconds())*b.perUS)
	b.at = now
}

func (b *bucket) take(now time.Time, cost float64) bool {
	b.add(now)
	if b.tokens+1e-6 < 1 {
		return false
	}
	b.tokens -= cost // below 0 for a dear one, which pays afterwards
	return true
}

// The gate and a bucket of tokens agree on every take, over random pauses and with random costs, also while an operator
// has ordered a slower rate, and after that. miniredis has the clock of the test.
func TestRate_agreesWithABucket(t *testing.T) {
	t.Parallel()
	for seed, test := range []struct{ limit, burst, most int }{{1, 4, 1}, {3, 4, 1}, {1, 1, 5}, {3, 4, 5}, {1, 9, 5}} {
		s, limit, burst := redistest.StartMini(t), test.limit, float64(test.burst)
		now := time.UnixMicro(time.Now().UnixMicro())
		start := now
		s.SetTime(t, now)
		const starts = 10
		l, operator := lockerOn(t, s), lockerOn(t, s)
		m := l.Semaphore("x", limit, lock.Rate(starts, time.Second, test.burst), lock.TTL(time.Hour), lock.NoRenew())
		b := &bucket{perUS: starts / 1e6, most: burst, tokens: burst, at: now}
		random := rand.New(rand.NewPCG(1, uint64(seed)))
		granted, refused, window, sum := 0, 0, now, 0.
		for i := range 900 {
			switch i {
			case 300:
				redistest.Must(t, operator.Controls().SetRate(t.Context(), "x", 2, time.Second, min(2, test.burst), ""))
				knows(t, l, "x")
			case 600:
				redistest.Must(t, operator.Controls().ClearRate(t.Context(), "x"))
				knows(t, l)
			}
			now = now.Add(time.Duration(random.IntN(100_000)) * time.Microsecond)
			s.SetTime(t, now)
			cost := 1
			if test.most > 1 {
				cost = random.IntN(test.most + 1)
			}
			inside.At(m).Request.Cost = cmp.Or(cost, -1)
			le, err := m.TryLock(t.Context())
			if i == 300 || i == 600 { // the tokens stay, and more come as the new rate says from the first ask on
				b.add(now)
				if b.perUS, b.most = starts/1e6, burst; i == 300 {
					b.perUS, b.most = 2/1e6, min(2, burst)
				}
			}
			if want := b.take(now, float64(cost)); want != (err == nil) {
				t.Fatalf("limit %d: after %s TryLock: %v, a bucket with %.3f tokens says %v", limit, now.Sub(start), err, b.tokens,
					want)
			}
			if err == nil {
				granted++
				mustUnlock(t, le)
				if d := now.Sub(window).Seconds(); d > 1 {
					window, sum = now, 0 // of the starts in any time d each window is one
				} else if sum += float64(cost); sum > burst-1+float64(test.most)+starts*d {
					t.Fatalf("%+v: costs of %v started within %.3f s", test, sum, d)
				}
				continue
			}
			refused++
			busy := wantBusy(t, err)
			opens := time.Duration(math.Ceil((1-b.tokens)/b.perUS)) * time.Microsecond
			if busy.Reason != lock.ReasonRate || (busy.ExpiresIn-opens).Abs() > 2*time.Microsecond {
				t.Fatalf("busy: %+v, want the gate to open in %s", busy, opens)
			}
		}
		if granted < 100 || refused < 100 {
			t.Errorf("limit %d: %d granted, %d refused: nothing was tried", limit, granted, refused)
		}
	}
}

// What others see of a lock whose rate is used up, and who may change it.
func TestRate_changes(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l, name := lockerOn(t, s), redistest.Name(t)
		slow, fast := l.Mutex(name, lock.Rate(1, time.Hour, 2)), l.Mutex(name, lock.Rate(1, time.Microsecond, 1))
		takesAndUnlocks(t, slow)
		takesAndUnlocks(t, slow)
		busy := mustBeBusy(t, slow)
		if busy.Reason != lock.ReasonRate || busy.Holder != "" || busy.ExpiresIn < 59*time.Minute ||
			busy.ExpiresIn > time.Hour {
			t.Errorf("%+v, want the rate for an hour", busy)
		}
		wantAvailable(t, slow, 0)
		if i := looksAt(t, slow); i.Gate.Reason != lock.ReasonRate || i.Held != 0 || i.Gate.OpensIn < 59*time.Minute {
			t.Errorf("Inspect: %+v", i)
		}
		redistest.Must(t, second(slow.BreakAll(t.Context())))
		mustBeBusy(t, slow) // it does not move the gate of a rate
		mustBeBusy(t, fast) // what is owed is owed: here, a microsecond
		takesAndUnlocks(t, fast)
		takesAndUnlocks(t, slow) // nothing is owed any more, and the rate of fast is forgotten
		takesAndUnlocks(t, slow)
		mustBeBusy(t, slow)
		redistest.Must(t, slow.Delete(t.Context()))
		for range 5 {
			takesAndUnlocks(t, fast)
		}
		takesAndUnlocks(t, slow)
		takesAndUnlocks(t, l.Mutex(name)) // one without a rate takes none
		free(t, l.Mutex(name))
	})
}
