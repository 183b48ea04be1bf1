package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
)

// learned is what l knows of m: how many to call at once, and how long a called
// one has to come.
func learned(t testing.TB, m *Lock) (inbound float64, life time.Duration) {
	t.Helper()
	p := m.locker.parking
	p.View(func(lines map[string]*parking.Line) {
		n := lines[m.Key()]
		if n == nil {
			t.Fatalf("nothing is known of %s", m.Key())
		}
		inbound, life = n.Inbound, p.CallLife(n)
	})
	return inbound, life
}

// afterVain is what is left of the most after n trips in vain.
func afterVain(n int) float64 {
	return max(parking.MaxInbound*parking.VainCallFloor, float64(parking.MaxInbound-n))
}

// More are called at once when the slot was idle for want of them, fewer when
// they came in vain.
func TestInboundIsLearned(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		const jobs = 16
		for i := range jobs {
			mustPark(t, noted(m, fmt.Sprint("job", i)))
		}
		if inbound, life := learned(t, m); inbound != 1 || life != parking.MinCallLife {
			t.Fatalf("at first %v are called, with %v to come", inbound, life)
		}
		// Each finds the slot idle for longer than parking.SlotFreeLimit.
		for i, want := range []float64{2, 4, 8, 16, 32, parking.MaxInbound, parking.MaxInbound} {
			releases(t, held, 1, time.Hour)
			called := serverNow(t, m)
			redistest.Eventually(t, soon, func() bool { return serverNow(t, m).Sub(called) > 2*parking.SlotFreeLimit }, "an idle slot")
			held = mustTry(t, noted(m, fmt.Sprint("job", i)))
			if inbound, _ := learned(t, m); inbound != want {
				t.Fatalf("after %d idle slots %v are called, want %v", i+1, inbound, want)
			}
		}
		// In vain, all of them.
		job := noted(m, "job10")
		for i := range 3 {
			looksAfter(t, m, 64, time.Hour)
			mustPark(t, job)
			if inbound, _ := learned(t, m); inbound != afterVain(i+1) {
				t.Errorf("after %d trips in vain %v are called", i+1, inbound)
			}
		}
		mustPark(t, job) // it came by itself: no trip
		if inbound, _ := learned(t, m); inbound != afterVain(3) {
			t.Errorf("after one that was not called %v are called", inbound)
		}
		// One that came, waited and then parked was in vain as well.
		looksAfter(t, m, 64, time.Hour)
		a, yield := orParkBeside(t, job)
		waiting(t, m, 1)
		yield()
		_ = a.failed(t)
		if inbound, _ := learned(t, m); inbound != afterVain(4) {
			t.Errorf("after one that waited %v are called", inbound)
		}
		// Never below one. (TestVain has the rest.)
		m.locker.parking.View(func(lines map[string]*parking.Line) {
			lines[m.Key()].Inbound, lines[m.Key()].InboundMost = 1.5, 1.5
		})
		looksAfter(t, m, 64, time.Hour)
		mustPark(t, job)
		if inbound, _ := learned(t, m); inbound != 1 {
			t.Errorf("%v are called, at least 1", inbound)
		}
		redistest.Must(t, m.Delete(t.Context()))
	})
}

// An idle slot counts only where others were parked and could have come, and
// where it was idle.
func TestInboundStays(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "alone")
		releases(t, held, 1, time.Hour)
		called := serverNow(t, m)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).Sub(called) > 2*parking.SlotFreeLimit }, "an idle slot")
		held = mustTry(t, noted(m, "alone"))
		if inbound, _ := learned(t, m); inbound != 1 {
			t.Errorf("with nobody else parked %v are called", inbound)
		}
		// Called ahead, it stands in line when the slot comes free.
		parkAll(t, m, "ahead", "other")
		looksAfter(t, m, 1, time.Hour)
		w := lockBeside(t, noted(m, "ahead"))
		waiting(t, m, 1)
		mustUnlock(t, held)
		le := w.got(t)
		if inbound, _ := learned(t, m); inbound != 1 || le.parked <= 0 {
			t.Errorf("with no idle slot %v are called; parked for %v", inbound, le.parked)
		}
		mustUnlock(t, le)
		mustUnlock(t, mustTry(t, noted(m, "other")))
		free(t, m, 0)
	})
}

// A called one has twice the time that a trip took of late, and a second at
// least.
func TestLifeIsLearned(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		trips := func(n int, took time.Duration) {
			t.Helper()
			for range n {
				held := mustTry(t, noted(m, "holder"))
				mustPark(t, noted(m, "job"))
				releases(t, held, 1, time.Hour)
				// Called that much earlier than it was.
				redistest.Must(t, raw(m).ZIncrBy(t.Context(), m.Key(), float64(took.Milliseconds()), "l:job").Err())
				mustUnlock(t, mustTry(t, noted(m, "job")))
			}
		}
		within := func(low, high time.Duration) {
			t.Helper()
			if _, life := learned(t, m); life < low || life > high {
				t.Errorf("a called one has %v to come, want %v to %v", life, low, high)
			}
		}
		trips(1, 0)
		within(parking.MinCallLife, 2*parking.MinCallLife)
		m.locker.parking.View(func(lines map[string]*parking.Line) { lines[m.Key()].AvgReturn = 0 })
		trips(1, 10*time.Second)
		within(20*time.Second, 30*time.Second)
		trips(20, 2*time.Second) // a moving average
		within(4*time.Second, 12*time.Second)
	})
}

// The average hold is that of leases which ended once, in locks that are known.
func TestAverageHeld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Note("job"))
		mustUnlock(t, mustTry(t, m))
		if d := m.averageHeld(); d != 0 {
			t.Errorf("%v, of a lock for which nothing waited", d)
		}
		le := mustTry(t, m)
		mustPark(t, noted(m, "other"))
		mustUnlock(t, le)
		d := m.averageHeld()
		if d <= 0 || d > soon {
			t.Errorf("held for %v on average", d)
		}
		began := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(began) > 10*d+10*time.Millisecond }, "a while")
		if err := le.Unlock(t.Context()); err == nil {
			t.Error("unlocked twice")
		}
		if again := m.averageHeld(); again != d {
			t.Errorf("an Unlock too many changed it from %v to %v", d, again)
		}
		mustUnlock(t, mustTry(t, noted(m, "other")))
		free(t, m, 0)
	})
}
