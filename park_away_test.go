package automutex

import (
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// tripsInVain counts how often parked tasks that nobody calls come back to a key that
// one holder keeps for job: places are kept, and the lease is renewed all the time.
func tripsInVain(parked int, job, ttl, hold time.Duration) (trips int) {
	for place := range parked {
		for at := time.Duration(0); ; trips++ {
			busy := &BusyError{ExpiresIn: ttl, Place: place, takenFor: at, inLine: at, parked: true}
			if at += busy.parkDelay(hold); at >= job {
				break
			}
		}
	}
	return trips
}

// Behind a holder that works for long, parked tasks come back in vain rarely: also when
// no hold was measured, and when earlier ones were short.
func TestPark_staysAwayBehindALongHolder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what      string
		ttl, hold time.Duration
		most      int
	}{
		{"no hold was measured, TTL 30 s", 30 * time.Second, 0, 50},
		{"no hold was measured, TTL 5 s", 5 * time.Second, 0, 100},
		{"holds were short so far, TTL 30 s", 30 * time.Second, 20 * time.Millisecond, 330},
		{"holds were short so far, TTL 5 s", 5 * time.Second, 20 * time.Millisecond, 400},
	} {
		if n := tripsInVain(300, time.Minute, c.ttl, c.hold); n > c.most {
			t.Errorf("%s: 300 tasks parked behind a job of a minute came back %d times, want %d at most", c.what, n, c.most)
		}
	}
	// A job that takes an hour: each comes back once in five to ten minutes.
	if n := tripsInVain(300, time.Hour, 30*time.Second, 0); n > 300*15 {
		t.Errorf("300 tasks parked behind a job of an hour came back %d times", n)
	}
}

// What is known of the holder reaches the task that parks behind it.
func TestPark_knowsHowLongTheKeyIsTaken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{{Task: "work", On: []string{"id"}, Busy: Park}}, workers: 1})
		held := r.take("work", "1")
		taken := time.Now()
		id := r.enqueue("work", one)
		r.awaitParked(id)
		redistest.Eventually(t, patience, func() bool { return time.Since(taken) > 1500*time.Millisecond }, "some time")
		since := time.Since(taken)
		r.rerun(id)
		var busy *BusyError
		redistest.Eventually(t, patience, func() bool {
			for _, e := range r.seen.list(EventParked) {
				busy = e.Busy
			}
			return busy != nil && busy.inLine > since/2
		}, "parked again")
		if busy.takenFor < since-100*time.Millisecond {
			t.Errorf("a task that parked %s after the key was taken knows of %s", since, busy.takenFor)
		}
		r.free(held)
		r.finish(id)
	})
}

// What is busy because of a cooldown says so, and for how long.
func TestPark_lastErrorTellsOfACooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{{Task: "work", On: []string{"id"}, Busy: Park}}, workers: 1})
		m := r.others.Mutex("work", lock.Parts("1"))
		held, err := m.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Cooldown(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		_, err = m.TryLock(t.Context())
		if err == nil || !strings.Contains(err.Error(), ": cooling down for ") || strings.Contains(err.Error(), "renewed") {
			t.Errorf("TryLock during a cooldown: %v", err)
		}
		id := r.enqueue("work", one)
		info := r.awaitParked(id)
		if !strings.Contains(info.LastErr, "place 1 in line: cooling down for ") || strings.Contains(info.LastErr, "renewed") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if info.State != asynq.TaskStateRetry {
			t.Errorf("the task is %s", info.State)
		}
	})
}
