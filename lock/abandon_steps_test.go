package lock

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A token is released again for as long as the kernel may send a late ask: for two minutes.
// After a release that failed it is released two times more, and sooner.
func TestAbandoned_stepsSpanTwoMinutes(t *testing.T) {
	t.Parallel()
	late := []time.Duration{5 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute}
	for name, c := range map[string]struct {
		fails bool // each release
		want  []time.Duration
	}{
		"released": {false, late},
		"failed":   {true, append([]time.Duration{time.Second / 4, time.Second}, late...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Mini(t).Client(t)
			hook := &redistest.FailHook{}
			rdb.AddHook(hook)
			l := newLocker(t, rdb)
			m := l.Mutex(redistest.Name(t))
			warm(t, m)
			var releases atomic.Int32
			hook.Before(func(cmd redis.Cmder) error {
				if scriptName(cmd) != wire.ReleaseScript.Name {
					return nil
				}
				releases.Add(1)
				if c.fails {
					return redistest.ReplyError("ERR x")
				}
				return nil
			})
			a := l.abandoned
			a.alarm.Ring = func() {} // the test rings, and moves since instead of waiting
			a.add(m.newLease(), c.fails)
			var got []time.Duration
			for range c.want {
				got = append(got, ringWhenDue(t, a))
			}
			redistest.Eventually(t, soon, func() bool { return int(releases.Load()) >= len(c.want) }, "all releases")
			if !slices.Equal(got, c.want) {
				t.Errorf("released %s after it was abandoned, want %s", got, c.want)
			}
		})
	}
}

// ringWhenDue waits until the last ring has queued the only entry of a again, moves it back in
// time until it is due, and rings. It returns how long after it was abandoned that is.
func ringWhenDue(t *testing.T, a *abandoned) (wait time.Duration) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, queue := range a.steps {
			for i := range queue {
				e := &queue[i]
				wait = e.due().Sub(e.since)
				e.since = time.Now().Add(-wait)
			}
		}
		return a.count == 1
	}, "one more release to come")
	a.ring()
	return wait
}
