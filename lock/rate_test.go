package lock

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// bucket is a rate as a bucket of tokens: what the gate does, said in another way.
type bucket struct {
	perUS, most, tokens float64
	at                  time.Time
}

func (b *bucket) take(now time.Time, n float64) bool {
	b.tokens = math.Min(b.most, b.tokens+float64(now.Sub(b.at).Microseconds())*b.perUS)
	b.at = now
	if b.tokens+1e-6 < n {
		return false
	}
	b.tokens -= n
	return true
}

// The gate and a bucket of tokens agree on every take, over random pauses, with some
// starts that did not happen. miniredis has the clock of the test.
func TestRate_agreesWithABucket(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 3} {
		s := redistest.StartMini(t)
		start := time.UnixMicro(time.Now().UnixMicro())
		now := start
		s.SetTime(t, now)
		const starts, burst = 10, 4
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), limit, Rate(starts, time.Second, burst), TTL(time.Hour), NoRenew())
		b := &bucket{perUS: starts / 1e6, most: burst, tokens: burst, at: now}
		random := rand.New(rand.NewPCG(1, uint64(limit)))
		var granted []time.Time
		refused := 0
		for range 600 {
			now = now.Add(time.Duration(random.IntN(100_000)) * time.Microsecond)
			s.SetTime(t, now)
			le, err := m.TryLock(t.Context())
			if want := b.take(now, 1); want != (err == nil) {
				t.Fatalf("Limit %d: after %s TryLock: %v, a bucket with %.3f tokens says %v; %s", limit, now.Sub(start), err, b.tokens, want, dump(m))
			}
			if err != nil {
				refused++
				busy := wantBusy(t, err)
				opens := time.Duration(math.Ceil((1-b.tokens)/b.perUS)) * time.Microsecond
				if busy.Reason != ReasonRate || (busy.ExpiresIn-opens).Abs() > 2*time.Microsecond {
					t.Fatalf("busy: %+v, want the gate to open in %s", busy, opens)
				}
				continue
			}
			audit(t, m)
			if random.IntN(4) == 0 {
				redistest.Must(t, le.giveBack(t.Context()))
				b.tokens = math.Min(b.most, b.tokens+1)
				continue
			}
			granted = append(granted, now)
			mustUnlock(t, le)
		}
		for i := range granted {
			n := 0
			for n < len(granted)-i && granted[i+n].Sub(granted[i]) <= time.Second {
				n++
			}
			if n > starts+burst {
				t.Errorf("Limit %d: %d starts within a second, at most %d", limit, n, starts+burst)
			}
		}
		if len(granted) < 100 || refused < 100 {
			t.Errorf("Limit %d: %d granted, %d refused: nothing was tried", limit, len(granted), refused)
		}
	}
}

// A start that did not happen is given back, once, also by a lease that nobody has seen.
func TestRate_givesBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Rate(1, time.Hour, 1))
		le := mustTry(t, m)
		redistest.Must(t, le.giveBack(t.Context()))
		audit(t, m)
		unseen := m.newLease()
		mustAsk(t, m, unseen, 0)
		if _, held, err := unseen.release(t.Context()); !held || err != nil {
			t.Fatal(held, err)
		}
		le = mustTry(t, m)
		mustUnlock(t, le)
		if _, _, err := unseen.release(t.Context()); err != nil { // again, later, as abandon does
			t.Fatal(err)
		}
		busy := mustBeBusy(t, m)
		if busy.Reason != ReasonRate || busy.Holder != "" || busy.ExpiresIn < 59*time.Minute || busy.ExpiresIn > time.Hour {
			t.Errorf("%+v, want the rate for an hour", busy)
		}
		if n, err := m.Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available: %d, %v; want 0", n, err)
		}
		if i, err := m.inspectAll(t.Context()); err != nil || i.Gate.Reason != ReasonRate || i.Held != 0 {
			t.Errorf("Inspect: %+v, %v", i, err)
		}
		lastsFor(t, "with an hour to remember", m, 59*time.Minute, time.Hour+time.Second+time.Millisecond)
	})
}

// With several slots a start is not given back that has run out meanwhile: the burst
// does not grow by it.
func TestRate_givesNothingBackTwice(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 10, Rate(1, time.Second, 2), TTL(time.Hour), NoRenew())
	first, second := mustTry(t, m), mustTry(t, m)
	now = now.Add(time.Minute) // the rate has filled up again
	s.SetTime(t, now)
	third := mustTry(t, m)
	for _, le := range []*Lease{first, second} {
		redistest.Must(t, le.giveBack(t.Context()))
	}
	fourth := mustTry(t, m)
	mustBeBusy(t, m)
	if err := fourth.giveBack(t.Context()); err != nil { // this one has not
		t.Fatal(err)
	}
	mustUnlock(t, mustTry(t, m))
	mustBeBusy(t, m)
	mustUnlock(t, third)
}

// Those in line start one after the other as slots of the rate come up, in order, and
// without anybody's refresh.
func TestRate_pacesTheLine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const every = 60 * time.Millisecond
		for _, limit := range []int{1, 4} {
			a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
			m := a.Semaphore(redistest.Name(t), limit, Rate(1, every, 1))
			var waiters []*attempt
			le := mustTry(t, m)
			redistest.Must(t, le.closeGate(t.Context(), time.Hour))
			mustUnlock(t, le)
			for i := range 6 {
				l := a
				if i%2 == 1 {
					l = b
				}
				waiters = append(waiters, inLine(t, handle(l, m, Rate(1, every, 1)), i+1))
			}
			began := serverNow(t, m)
			if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
				t.Fatalf("BreakAll: %d, %v; want the gate", n, err)
			}
			for i, w := range waiters {
				next := w.got(t)
				if took := serverNow(t, m).Sub(began); took < time.Duration(i)*every {
					t.Errorf("Limit %d: waiter %d started after %s, want %s for each", limit, i, took, every)
				}
				mustUnlock(t, next)
			}
		}
	})
}

// A rate that a new version has is in force from its first ask on.
func TestRate_changes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		slow, fast := l.Mutex(name, Rate(1, time.Hour, 2)), l.Mutex(name, Rate(1, time.Microsecond, 1))
		mustUnlock(t, mustTry(t, slow))
		mustUnlock(t, mustTry(t, slow))
		mustBeBusy(t, slow)
		mustBeBusy(t, fast) // the gate stays where it is
		if _, err := slow.BreakAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustBeBusy(t, slow) // nor does BreakAll move it for a rate
		redistest.Must(t, slow.Delete(t.Context()))
		for range 5 {
			mustUnlock(t, mustTry(t, fast))
		}
		mustUnlock(t, mustTry(t, slow))
		mustUnlock(t, mustTry(t, l.Mutex(name))) // one without a rate takes none
		free(t, l.Mutex(name), soon)
	})
}

// Those in line count from their first start on, also where a release grants them that
// knows of no rate: the holders before had none.
func TestRate_grantedByOthers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		plain, rated := l.Semaphore(name, 3), l.Semaphore(name, 3, Rate(1, time.Hour, 2))
		var before []*Lease
		for range 3 {
			before = append(before, mustTry(t, plain))
		}
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
		busy := wantBusy(t, mustNotTry(t, rated))
		if busy.Reason != ReasonRate {
			t.Errorf("busy for %q, want the rate", busy.Reason)
		}
		waiting(t, rated, 1) // the third has no start
		waiters[2].cancel()
		<-waiters[2].done
	})
}

func TestRate_badInput(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for _, c := range []struct {
		starts int
		per    time.Duration
		burst  int
		want   string
	}{
		{0, time.Second, 1, "0 starts"},
		{-1, time.Second, 1, "-1 starts"},
		{1, 0, 1, "per 0s"},
		{1, -time.Second, 1, "per -1s"},
		{2, time.Microsecond, 1, "one a microsecond"},
		{1, time.Nanosecond, 1, "one a microsecond"},
		{math.MaxInt, time.Hour, 1, "one a microsecond"},
		{1, maxRatePeriod + 1, 1, "at most 8760h"},
		{1, time.Second, -5, "burst of -5"},
		{1, time.Second, math.MaxInt, "smaller burst"},
	} {
		err := l.Mutex("x", Rate(c.starts, c.per, c.burst)).err
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("Rate(%d, %s, %d): %v, want %q and the lock's name", c.starts, c.per, c.burst, err, c.want)
		}
	}
	for _, c := range []Option{Rate(1, maxRatePeriod, 1), Rate(1_000_000, time.Second, 1_000_000), Rate(7, time.Second, 1), Rate(7, time.Second, 0)} {
		if err := l.Mutex("x", c).err; err != nil {
			t.Error(err)
		}
	}
}
