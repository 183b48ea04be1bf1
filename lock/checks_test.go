package lock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// fakeRedis answers the looks of a client in Redis' place, and counts them.
type fakeRedis struct {
	reply    atomic.Pointer[any]
	looks    atomic.Int64
	underway atomic.Int32
	most     atomic.Int32  // the most pipelines at once
	gate     chan struct{} // if not nil, pipelines wait until it is closed
}

func (f *fakeRedis) says(reply any) { f.reply.Store(&reply) }

func (f *fakeRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fakeRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f *fakeRedis) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := f.underway.Add(1)
		defer f.underway.Add(-1)
		for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
		}
		if f.gate != nil {
			select {
			case <-f.gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for _, cmd := range cmds {
			cmd.(*redis.Cmd).SetVal(*f.reply.Load())
		}
		f.looks.Add(int64(len(cmds)))
		return nil
	}
}

// parkedKeys is a Locker that believes work to be parked on so many keys, whose first
// holders end in so long. Of Redis it sees f alone.
func parkedKeys(t testing.TB, n int, firstEnd time.Duration) (*Locker, *fakeRedis) {
	t.Helper()
	f := &fakeRedis{}
	f.says([]any{int64(0), int64(1), firstEnd.Milliseconds()})
	rdb := redistest.Mini(t).Client(t)
	rdb.AddHook(f)
	l := newLocker(t, rdb, calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
	name := redistest.Name(t)
	for i := range n {
		l.parking.HandleCalls(l.Mutex(fmt.Sprint(name, i)).parked(), *f.reply.Load())
	}
	return l, f
}

// A few keys do not feel the budget: those due at one time are looked after at once.
func TestFewKeysAreLookedAfterAtOnce(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	l, f := parkedKeys(t, parking.MaxChecks, 300*time.Millisecond)
	f.says([]any{int64(0), int64(1), time.Hour.Milliseconds()})
	began, late := time.Now(), watchLateness(t, redistest.Mini(t))
	var latest time.Time
	l.parking.View(func(lines map[string]*parking.Line) {
		for _, n := range lines {
			if n.CheckAt.After(latest) {
				latest = n.CheckAt
			}
		}
	})
	redistest.Eventually(t, soon, func() bool { return f.looks.Load() >= parking.MaxChecks }, "a look at each")
	if d := time.Since(latest); d > nearly+late() {
		t.Errorf("all were looked after %s after the last holder's end, %s after the beginning", d, time.Since(began))
	}
}

// Redis hangs: looks that are due gather no goroutines, and go on afterwards.
func TestChecksThatHangGatherNoGoroutines(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	l, f := parkedKeys(t, 0, 0)
	f.gate = make(chan struct{})
	name := redistest.Name(t)
	add := func(from int) {
		for i := range 2 * exchange.MaxBatch {
			l.parking.HandleCalls(l.Mutex(fmt.Sprint(name, from+i)).parked(), []any{int64(0), int64(1), int64(0)})
		}
	}
	for round := range 12 {
		add(round * 2 * exchange.MaxBatch)
		was := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(was) > parking.CheckTogether }, "time for a batch")
	}
	redistest.Eventually(t, soon, func() bool { return f.underway.Load() == parking.MaxRounds }, "%d batches under way", parking.MaxRounds)
	l.parking.StartChecks() // as the alarm would
	if n := f.most.Load(); n > parking.MaxRounds {
		t.Errorf("%d pipelines of looks at once, want %d at most", n, parking.MaxRounds)
	}
	f.says(int64(1)) // nothing is parked
	close(f.gate)
	redistest.Eventually(t, soon, func() bool {
		busy := false
		l.parking.View(func(lines map[string]*parking.Line) {
			for _, n := range lines {
				busy = busy || n.Parked || n.Checking
			}
		})
		return !busy
	}, "all lines looked after")
	if n := f.most.Load(); n > parking.MaxRounds {
		t.Errorf("%d pipelines of looks at once, want %d at most", n, parking.MaxRounds)
	}
}

// The last parked work came and is done: its release says so, and no look follows.
func TestReleaseEndsTheLooks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		scripts := newTap(rdb)
		l := newLocker(t, rdb, calls(func(context.Context, string, string) inside.Fate { return inside.FateComing }))
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		mustPark(t, noted(m, "job"))
		mustUnlock(t, held)
		le := mustTry(t, noted(m, "job"))
		mustUnlock(t, le)
		var n *parking.Line
		l.parking.View(func(lines map[string]*parking.Line) { n = lines[m.Key()] })
		if n == nil {
			t.Fatal("the line is forgotten")
		}
		notLooking := func() (ok bool) {
			l.parking.View(func(map[string]*parking.Line) { ok = !n.Checking })
			return ok
		}
		redistest.Eventually(t, soon, notLooking, "a look from before the last release ends")
		l.parking.View(func(map[string]*parking.Line) {
			if n.Parked || len(n.Calls) > 1 {
				t.Errorf("after the last release: %+v", n)
			}
		})
		before := scripts.count(wire.CallScript)
		began := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(began) > 2*parking.CheckEvery+100*time.Millisecond }, "time for a look")
		if looked := scripts.count(wire.CallScript) - before; looked > 0 {
			t.Errorf("%d looks after that", looked)
		}
	})
}
