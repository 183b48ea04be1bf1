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
	"github.com/automutex/automutex/internal/redistest"
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
		l.parking.handleCalls(l.Mutex(fmt.Sprint(name, i)), *f.reply.Load())
	}
	return l, f
}

// However many keys have parked work, and however soon their holders end: there are
// a thousand looks a second at most, and each key has its turn.
func TestChecksKeepToTheirBudget(t *testing.T) {
	t.Parallel()
	const keys, seconds = 5000, 20
	l := New(redistest.Mini(t).Client(t), Options{})
	if err := l.Close(); err != nil { // nothing looks but the test
		t.Fatal(err)
	}
	p := newParking(l, func(context.Context, string, string) inside.Fate { return inside.FateUnsure })
	began := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range keys {
		n := p.line(l.Mutex(fmt.Sprint(i)))
		p.checkSoon(n)
		n.checkAt, n.atDeadline = began, true
		p.reschedule(n)
	}
	taken, last := 0, make(map[*parkedLine]time.Time)
	var slowest time.Duration
	for at := began; at.Before(began.Add(seconds * time.Second)); at = at.Add(10 * time.Millisecond) {
		due := p.takeDue(at)
		if len(due) > 0 {
			p.rounds--
		}
		for _, n := range due {
			if before, ok := last[n]; ok {
				slowest = max(slowest, at.Sub(before))
			}
			last[n] = at
			taken++
			// Answered at once: due again in half a second.
			n.checking, n.checkAt, n.atDeadline = false, at.Add(500*time.Millisecond), true
			p.reschedule(n)
		}
	}
	if most := seconds*1000 + maxChecks; taken > most || taken < most*9/10 {
		t.Errorf("%d looks in %d s, want %d at most and not much less", taken, seconds, most)
	}
	if len(last) != keys {
		t.Errorf("%d keys of %d were looked after", len(last), keys)
	}
	if most := keys * time.Second / 1000; slowest > most+time.Second {
		t.Errorf("one key had its turn after %s, want %s", slowest, most)
	}
}

// A few keys do not feel the budget: those due at one time are looked after at once.
func TestFewKeysAreLookedAfterAtOnce(t *testing.T) {
	t.Parallel()
	l, f := parkedKeys(t, maxChecks, 300*time.Millisecond)
	f.says([]any{int64(0), int64(1), time.Hour.Milliseconds()})
	began, late := time.Now(), watchLateness(t, redistest.Mini(t))
	p := l.parking
	p.mu.Lock()
	latest := p.toCheck[0].checkAt
	for _, n := range p.toCheck {
		if n.checkAt.After(latest) {
			latest = n.checkAt
		}
	}
	p.mu.Unlock()
	redistest.Eventually(t, soon, func() bool { return f.looks.Load() >= maxChecks }, "a look at each")
	if d := time.Since(latest); d > nearly+late() {
		t.Errorf("all were looked after %s after the last holder's end, %s after the beginning", d, time.Since(began))
	}
}

// Redis hangs: looks that are due gather no goroutines, and go on afterwards.
func TestChecksThatHangGatherNoGoroutines(t *testing.T) {
	t.Parallel()
	l, f := parkedKeys(t, 0, 0)
	f.gate = make(chan struct{})
	name := redistest.Name(t)
	add := func(from int) {
		for i := range 2 * exchange.MaxBatch {
			l.parking.handleCalls(l.Mutex(fmt.Sprint(name, from+i)), []any{int64(0), int64(1), int64(0)})
		}
	}
	for round := range 12 {
		add(round * 2 * exchange.MaxBatch)
		was := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(was) > checkTogether }, "time for a batch")
	}
	redistest.Eventually(t, soon, func() bool { return f.underway.Load() == maxRounds }, "%d batches under way", maxRounds)
	l.parking.startChecks() // as the alarm would
	if n := f.most.Load(); n > maxRounds {
		t.Errorf("%d pipelines of looks at once, want %d at most", n, maxRounds)
	}
	f.says(int64(1)) // nothing is parked
	close(f.gate)
	redistest.Eventually(t, soon, func() bool {
		l.parking.mu.Lock()
		defer l.parking.mu.Unlock()
		return l.parking.parkedN == 0 && l.parking.rounds == 0
	}, "all lines looked after")
	if n := f.most.Load(); n > maxRounds {
		t.Errorf("%d pipelines of looks at once, want %d at most", n, maxRounds)
	}
}

// When nothing is parked any more, some idle lines are remembered for a minute, and
// then none: no map, no heap.
func TestParkingGivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	const keys = maxIdleLines + 1000
	l := New(redistest.Mini(t).Client(t), Options{})
	if err := l.Close(); err != nil { // nothing looks but the test
		t.Fatal(err)
	}
	p := newParking(l, func(context.Context, string, string) inside.Fate { return inside.FateUnsure })
	var locks []*Lock
	for i := range keys {
		locks = append(locks, l.Mutex(fmt.Sprint(i)))
		p.handleCalls(locks[i], []any{int64(0), int64(1), int64(60_000)})
	}
	p.mu.Lock()
	if len(p.lines) != keys || len(p.toCheck) != keys || p.parkedN != keys {
		t.Errorf("%d lines, %d of them to look after, %d parked on; want %d", len(p.lines), len(p.toCheck), p.parkedN, keys)
	}
	p.mu.Unlock()
	sent := time.Now().Add(time.Second)
	for _, m := range locks {
		p.noteNothingParked(m, sent)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) != maxIdleLines || len(p.idle) != maxIdleLines || len(p.toCheck) != 0 || p.parkedN != 0 || int(p.lineCount.Load()) != maxIdleLines {
		t.Errorf("%d lines are remembered, %d counted, %d idle, %d to look after, %d parked on; want %d idle ones",
			len(p.lines), p.lineCount.Load(), len(p.idle), len(p.toCheck), p.parkedN, maxIdleLines)
	}
	if p.lines[locks[0].Key()] != nil || p.lines[locks[keys-1].Key()] == nil {
		t.Error("not the least recently used ones were forgotten")
	}
	p.forgetIdle(time.Now().Add(forgetAfter + time.Second))
	if p.lines != nil || p.idle != nil || p.toCheck != nil || p.lineCount.Load() != 0 {
		t.Errorf("a minute later %d lines are remembered", len(p.lines))
	}
}

// The maps of a burst are not kept for the few lines that are left.
func TestParkingShrinksItsMaps(t *testing.T) {
	t.Parallel()
	l := New(redistest.Mini(t).Client(t), Options{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p := newParking(l, func(context.Context, string, string) inside.Fate { return inside.FateUnsure })
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range 3000 {
		p.line(l.Mutex(fmt.Sprint(i)))
	}
	kept := p.checkSoon(p.line(l.Mutex("kept")))
	p.forgetIdle(time.Now().Add(forgetAfter + time.Second))
	if len(p.lines) != 1 || p.peakLines > 1000 || cap(p.idle) > 1000 || cap(p.toCheck) != 1 || kept.IsZero() {
		t.Errorf("%d lines, for up to %d; capacity for %d idle ones", len(p.lines), p.peakLines, cap(p.idle))
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
		l.parking.mu.Lock()
		n := l.parking.lines[m.Key()]
		l.parking.mu.Unlock()
		if n == nil {
			t.Fatal("the line is forgotten")
		}
		notLooking := func() bool {
			l.parking.mu.Lock()
			defer l.parking.mu.Unlock()
			return !n.checking
		}
		redistest.Eventually(t, soon, notLooking, "a look from before the last release ends")
		l.parking.mu.Lock()
		if n.parked || l.parking.parkedN != 0 || len(n.calls) > 1 {
			t.Errorf("after the last release: %+v", n)
		}
		l.parking.mu.Unlock()
		before := scripts.count(callScript)
		began := time.Now()
		redistest.Eventually(t, soon, func() bool { return time.Since(began) > 2*checkEvery+100*time.Millisecond }, "time for a look")
		if looked := scripts.count(callScript) - before; looked > 0 {
			t.Errorf("%d looks after that", looked)
		}
	})
}

// A release that was sent before something was parked, but answered after it, does
// not say that nothing is.
func TestReleaseFromBeforeSomethingWasParkedEndsNoLooks(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), calls(func(context.Context, string, string) inside.Fate { return inside.FateUnsure }))
	m, p := l.Mutex(redistest.Name(t)), l.parking
	sent := time.Now()
	p.handleCalls(m, []any{int64(0), int64(1), time.Hour.Milliseconds()})
	p.noteNothingParked(m, sent)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; !n.parked || n.heap != &p.toCheck {
		t.Error("nobody looks after what is parked")
	}
}

// Whatever happens to lines, each is in the heap where it belongs, and first what is
// due first.
func TestLinesAreInOrder(t *testing.T) {
	t.Parallel()
	l := New(redistest.Mini(t).Client(t), Options{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p := newParking(l, func(context.Context, string, string) inside.Fate { return inside.FateUnsure })
	for step := range 3000 {
		m := l.Mutex(fmt.Sprint(step * step % 97))
		switch step % 5 {
		case 0:
			p.measureHeld(m)
		case 1, 2:
			p.handleCalls(m, []any{int64(0), int64(1), int64(step * 7919 % 1000)})
		case 3:
			p.noteNothingParked(m, time.Now().Add(time.Second))
		default:
			p.noteHeld(m, time.Second)
		}
		p.mu.Lock()
		if len(p.toCheck)+len(p.idle) != len(p.lines) || len(p.toCheck) != p.parkedN {
			t.Fatalf("%d to look after and %d idle of %d lines, %d parked on", len(p.toCheck), len(p.idle), len(p.lines), p.parkedN)
		}
		for _, h := range []*lineHeap{&p.toCheck, &p.idle} {
			for i, n := range *h {
				if n.place != i || n.heap != h || n.parked != (h == &p.toCheck) || h.Less(i, 0) {
					t.Fatalf("step %d: a line at %d of %d: %+v, the first %+v", step, i, len(*h), n, (*h)[0])
				}
			}
		}
		p.mu.Unlock()
	}
}
