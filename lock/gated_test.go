package lock_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// bucket is a rate as a bucket of tokens: what the gate does, said in another way.
type bucket struct {
	perUS, most, tokens float64
	at                  time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.tokens = math.Min(b.most, b.tokens+float64(now.Sub(b.at).Microseconds())*b.perUS)
	b.at = now
	if b.tokens+1e-6 < 1 {
		return false
	}
	b.tokens--
	return true
}

// The gate and a bucket of tokens agree on every take, over random pauses. miniredis has the clock of the test.
func TestRate_agreesWithABucket(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 3} {
		s := redistest.StartMini(t)
		now := time.UnixMicro(time.Now().UnixMicro())
		start := now
		s.SetTime(t, now)
		const starts, burst = 10, 4
		m := newLocker(t, s.Client(t)).Semaphore("x", limit, lock.Rate(starts, time.Second, burst), lock.TTL(time.Hour), lock.NoRenew())
		b := &bucket{perUS: starts / 1e6, most: burst, tokens: burst, at: now}
		random := rand.New(rand.NewPCG(1, uint64(limit)))
		granted, refused := 0, 0
		for range 600 {
			now = now.Add(time.Duration(random.IntN(100_000)) * time.Microsecond)
			s.SetTime(t, now)
			le, err := m.TryLock(t.Context())
			if want := b.take(now); want != (err == nil) {
				t.Fatalf("limit %d: after %s TryLock: %v, a bucket with %.3f tokens says %v", limit, now.Sub(start), err, b.tokens, want)
			}
			if err == nil {
				granted++
				mustUnlock(t, le)
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
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		slow, fast := l.Mutex(name, lock.Rate(1, time.Hour, 2)), l.Mutex(name, lock.Rate(1, time.Microsecond, 1))
		takesAndUnlocks(t, slow)
		takesAndUnlocks(t, slow)
		busy := mustBeBusy(t, slow)
		if busy.Reason != lock.ReasonRate || busy.Holder != "" || busy.ExpiresIn < 59*time.Minute || busy.ExpiresIn > time.Hour {
			t.Errorf("%+v, want the rate for an hour", busy)
		}
		wantAvailable(t, slow, 0)
		if i := looksAt(t, slow); i.Gate.Reason != lock.ReasonRate || i.Held != 0 || i.Gate.OpensIn < 59*time.Minute {
			t.Errorf("Inspect: %+v", i)
		}
		mustBeBusy(t, fast) // the gate stays where it is
		redistest.Must(t, second(slow.BreakAll(t.Context())))
		mustBeBusy(t, slow) // nor does BreakAll move it for a rate
		redistest.Must(t, slow.Delete(t.Context()))
		for range 5 {
			takesAndUnlocks(t, fast)
		}
		takesAndUnlocks(t, slow)
		takesAndUnlocks(t, l.Mutex(name)) // one without a rate takes none
		free(t, l.Mutex(name))
	})
}

// Those in line start one after the other as slots of the rate come up, in order.
func TestRate_pacesTheLine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const every = 60 * time.Millisecond
		rdb := s.Client(t)
		for _, limit := range []int{1, 4} {
			a, b := newLocker(t, rdb), newLocker(t, s.Client(t))
			name := redistest.Name(t)
			m := a.Semaphore(name, limit, lock.Rate(1, every, 1))
			var waiters []*attempt
			le := mustTry(t, m)
			redistest.Must(t, errors.Join(insider.CloseGate(t.Context(), le, time.Hour), le.Unlock(t.Context())))
			for i := range 6 {
				waiters = append(waiters, inLine(t, []*lock.Locker{a, b}[i%2].Semaphore(name, limit, lock.Rate(1, every, 1)), i+1))
			}
			began := clockOf(t, rdb)
			if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
				t.Fatalf("BreakAll: %d, %v; want the gate", n, err)
			}
			for i, w := range waiters {
				next := w.got(t)
				if took := clockOf(t, rdb).Sub(began); took < time.Duration(i)*every {
					t.Errorf("limit %d: waiter %d started after %s, want %s for each", limit, i, took, every)
				}
				mustUnlock(t, next)
			}
		}
	})
}

// Those in line count from their first start on, also where a release grants them whose holder knew of no rate.
func TestRate_grantedByOthers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		plain, rated := l.Semaphore(name, 3), l.Semaphore(name, 3, lock.Rate(1, time.Hour, 2))
		before := []*lock.Lease{mustTry(t, plain), mustTry(t, plain), mustTry(t, plain)}
		var waiters []*attempt
		for i := range 3 {
			waiters = append(waiters, inLine(t, rated, i+1))
		}
		for _, le := range before {
			mustUnlock(t, le)
		}
		for _, w := range waiters[:2] {
			mustUnlock(t, w.got(t))
		}
		if busy := mustBeBusy(t, rated); busy.Reason != lock.ReasonRate {
			t.Errorf("busy for %q, want the rate", busy.Reason)
		}
		waiting(t, rated, 1) // the third has no start
		waiters[2].cancel()
		wantBusy(t, waiters[2].failed(t))
	})
}

func TestRate_badInput(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		starts int
		per    time.Duration
		burst  int
		want   string
	}{
		{0, time.Second, 1, "0 starts"}, {-1, time.Second, 1, "-1 starts"}, {1, 0, 1, "per 0s"}, {1, -time.Second, 1, "per -1s"},
		{2, time.Microsecond, 1, "one a microsecond"}, {1, time.Nanosecond, 1, "one a microsecond"}, {math.MaxInt, time.Hour, 1, "one a microsecond"},
		{1, year + 1, 1, "at most 8760h"}, {1, time.Second, -5, "burst of -5"}, {1, time.Second, math.MaxInt, "smaller burst"},
	} {
		_, err := l.Mutex("x", lock.Rate(c.starts, c.per, c.burst)).TryLock(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("Rate(%d, %s, %d): %v, want %q and the lock's name", c.starts, c.per, c.burst, err, c.want)
		}
	}
	for _, c := range []lock.Option{lock.Rate(1, year, 1), lock.Rate(1_000_000, time.Second, 1_000_000), lock.Rate(7, time.Second, 1), lock.Rate(7, time.Second, 0)} {
		redistest.Must(t, insider.LockErr(l.Mutex("x", c)))
	}
}

// OpenGate ends a hold and a cooldown, lets the first in line in, and takes the lock from nobody; a rate's gate stays closed.
func TestOpenGate(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		m := l.Semaphore(name, 3)
		other := newLocker(t, s.Client(t)).Semaphore(name, 3)
		opens := func(m *lock.Lock, want bool) {
			t.Helper()
			if opened, err := insider.OpenGate(t.Context(), m); opened != want || err != nil {
				t.Errorf("OpenGate: %v, %v; want %v", opened, err, want)
			}
		}
		opens(other, false)
		le := mustTry(t, m)
		opens(other, false)
		for why, closeIt := range map[string]func(*lock.Lease) error{
			lock.ReasonClosed: func(it *lock.Lease) error {
				return errors.Join(insider.CloseGate(t.Context(), it, time.Hour), it.Unlock(t.Context()))
			},
			lock.ReasonCooldown: func(it *lock.Lease) error { return it.Cooldown(t.Context(), time.Hour) },
		} {
			redistest.Must(t, closeIt(mustTry(t, m)))
			if busy := mustBeBusy(t, m); busy.Reason != why || busy.ExpiresIn < 59*time.Minute {
				t.Errorf("busy with %+v, want %q", busy, why)
			}
			if info := looksAt(t, m); info.Gate.Reason != why || info.Held != 1 {
				t.Errorf("%+v, want %q", info, why)
			}
			w := inLine(t, m, 1)
			opens(other, true)
			mustUnlock(t, w.got(t))
			opens(other, false)
		}
		wantHeld(t, m, 1)
		mustUnlock(t, le)

		rated := l.Mutex(redistest.Name(t), lock.Rate(1, time.Hour, 1))
		opens(rated, false)
		held := mustTry(t, rated)
		opens(rated, false)
		mustUnlock(t, held)
		opens(rated, false)
		if busy := mustBeBusy(t, rated); busy.Reason != lock.ReasonRate {
			t.Errorf("busy with %q, want the rate", busy.Reason)
		}
	})
}
