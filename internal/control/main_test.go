package control

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

const stoppedEnv = "AUTOMUTEX_TEST_STOPPED"

func TestMain(m *testing.M) {
	if addr := os.Getenv(stoppedEnv); addr != "" {
		beStopped(addr)
	}
	redistest.Main(m)
}

// beStopped counts in Redis how often it finds the lock free, and paused.
func beStopped(addr string) {
	ctx, rdb := context.Background(), redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Second, MaxRetries: -1})
	r := newReader(&testing.T{}, rdb, &redistest.Log{})
	for {
		_ = r.Know(ctx, "p:{report}")
		name := "free"
		if r.Bounds("p:{report}", Bounds{Slots: 1}).Slots == 0 {
			name = "paused"
		}
		rdb.Incr(ctx, name)
	}
}

// A process that was stopped for longer than Delay obeys an order that was given meanwhile, also if it was stopped
// while it read, and the reply did not come.
func TestReader_stopped(t *testing.T) {
	redistest.RealTime(t)
	s := redistest.StartReal(t)
	rdb, ctx, p := s.Client(t), t.Context(), redistest.NewProxy(t, s.Addr())
	operator := newReader(t, rdb, &redistest.Log{})
	child := redistest.StartChild(t, stoppedEnv+"="+p.Addr())
	count := func(name string) int { n, _ := rdb.Get(ctx, name).Int(); return n }
	for _, reads := range []bool{false, true} {
		free := count("free")
		redistest.Eventually(t, redistest.Patience, func() bool { return count("free") > free+10 }, "a child that runs")
		held := &redistest.Held{}
		if reads {
			held = p.Hold(redistest.IsControlRead, 1)
			redistest.Eventually(t, redistest.Patience, func() bool { return held.Count() == 1 }, "a read")
		}
		child.Pause(t)
		redistest.Must(t, operator.Give(ctx, Pauses, "report", Control{Paused: true}))
		free = count("free")
		paused := count("paused")
		stopped := time.Now()
		redistest.Eventually(t, redistest.Patience, func() bool { return time.Since(stopped) > Delay+100*time.Millisecond },
			"a read that times out")
		child.Resume(t)
		redistest.Eventually(t, redistest.Patience, func() bool { return count("paused") > paused }, "a child that obeys")
		if n := count("free") - free; n > 1 { // one look was before the stop
			t.Errorf("found free %d times while it was paused", n)
		}
		if reads {
			held.Release()
		}
		_, err := operator.End(ctx, Pauses, "report")
		redistest.Must(t, err)
	}
}
