package automutex

import (
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// workers by itself: who gives way, when, and who does not. No Redis is asked,
// and no lock is there but its name and how long it is held.

type counter struct {
	key  string
	hold time.Duration // 0: not known
}

func (c counter) Key() string                { return c.key }
func (c counter) AverageHeld() time.Duration { return c.hold }

// office is a workers with what its tests do to it.
type office struct {
	*workers
	t *testing.T
}

func newOffice(t *testing.T, limit int) *office {
	t.Helper()
	return &office{newWorkers(limit), t}
}

// comes is a worker that is taken and then stands in line for the lock called
// so.
func (o *office) comes(name string) *waitingWorker { return o.comesTo(counter{key: name}) }

func (o *office) comesTo(c counter) *waitingWorker {
	o.taskStarted()
	return o.enterLine(c)
}

// goes is what a worker does that was asked to give way, or got its lock and is
// through with it.
func (o *office) goes(p *waitingWorker, parked bool) {
	o.leaveLine(p, parked)
	if parked {
		o.taskEnded()
	}
}

func (waiter *waitingWorker) asked() bool {
	select {
	case <-waiter.parkNow:
		return true
	default:
		return false
	}
}

// check fails unless exactly these were asked to give way.
func (o *office) check(all []*waitingWorker, want ...bool) {
	o.t.Helper()
	for i, p := range all {
		if p.asked() != want[i] {
			o.t.Errorf("place %d of %d: asked to give way: %t, want %t", i+1, len(all), p.asked(), want[i])
		}
	}
}

func TestWorkers_newestGivesWay(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 4)
	all := []*waitingWorker{o.comes("a"), o.comes("b"), o.comes("a")}
	o.check(all, false, false, false) // one worker is free
	o.taskStarted()                   // somebody who does not wait takes it
	o.check(all, false, false, true)
}

// One who comes as the last stands in line for no time at all.
func TestWorkers_lastOneComes(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 2)
	o.taskStarted()
	if p := o.comes("a"); !p.asked() {
		t.Error("the last worker is held for a wait")
	}
	alone := newOffice(t, 1)
	if p := alone.comes("a"); !p.asked() {
		t.Error("the only worker is held for a wait")
	}
}

// One who gives way frees a worker: until it is gone no other is asked, and
// after that none, while there is one free.
func TestWorkers_oneAtATime(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 3)
	all := []*waitingWorker{o.comes("a"), o.comes("b"), o.comes("c")}
	// The last one took the last worker, for which b was asked, and then stands in
	// line itself: b's is to come free.
	o.check(all, false, true, false)
	o.goes(all[1], true)
	o.check(all, false, true, false)
	o.taskStarted() // the freed one is taken
	o.check(all, false, true, true)
	o.goes(all[2], true)
	o.taskStarted()
	o.check(all, true, true, true)
	o.goes(all[0], true)
	o.taskStarted() // nobody is left to be asked
	if len(o.waiting) != 0 || len(o.inLine) != 0 || o.parking != nil {
		t.Errorf("left over: %d in line, %v, %v", len(o.waiting), o.inLine, o.parking)
	}
}

// One who gets its lock instead of giving way has freed nothing.
func TestWorkers_gotItsLockInstead(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 3)
	all := []*waitingWorker{o.comes("a"), o.comes("b")}
	o.taskStarted()
	o.check(all, false, true)
	o.goes(all[1], false)
	o.check(all, true, true)
}

// One who was not asked and gets its lock changes nothing.
func TestWorkers_otherGotItsLock(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 4)
	all := []*waitingWorker{o.comes("a"), o.comes("b"), o.comes("c")}
	o.taskStarted()
	o.goes(all[0], false)
	o.check(all, false, false, true)
	o.goes(all[2], false)
	o.check(all, false, true, true)
}

// One who is told to go by somebody else (its task's time is nearly up) is not
// counted as giving way for others.
func TestWorkers_leavesByItself(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 4)
	all := []*waitingWorker{o.comes("a"), o.comes("b"), o.comes("c")}
	all[0].askToPark()
	all[0].askToPark() // twice does no harm
	o.goes(all[0], true)
	o.taskStarted()
	o.check(all, true, false, false)
	o.taskStarted()
	o.check(all, true, false, true)
}

// A worker that does not wait comes and goes without anybody's being asked.
func TestWorkers_free(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 2)
	p := o.comes("a")
	o.taskEnded() // that of some other, so that one is free
	for range 10 {
		o.taskStarted()
		o.taskEnded()
	}
	if p.asked() || o.busy.Load() != 0 {
		t.Errorf("asked: %t, busy: %d", p.asked(), o.busy.Load())
	}
}

// A wait that is over sooner than parking would be keeps its worker, and another
// gives way in its place. It is looked at again when it was to be over.
func TestWorkers_cheapWaits(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 3)
	long := o.comesTo(counter{"long", nearTurn + 1})
	began := time.Now()
	short := o.comesTo(counter{"short", nearTurn})
	o.taskStarted()
	if !long.asked() {
		t.Error("the long wait keeps its worker")
	}
	if short.asked() && time.Since(began) < nearTurnCheck {
		t.Error("the short wait gives way at once")
	}
	o.goes(long, true)
	o.taskStarted()
	redistest.Eventually(t, patience, short.asked, "a wait that was to be short gives way")
	if waited := time.Since(began); waited < nearTurnCheck {
		t.Errorf("it was asked after %s", waited)
	}
}

// A short wait that is over before it is looked at again costs nobody anything,
// and the look finds nobody.
func TestWorkers_cheapWaitEnds(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 2)
	o.taskStarted()
	short := o.comesTo(counter{"short", time.Millisecond})
	o.goes(short, false)
	redistest.Eventually(t, patience, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !o.checkScheduled
	}, "the look")
	if o.parking != nil || len(o.waiting) != 0 {
		t.Errorf("left over: %v, %d in line", o.parking, len(o.waiting))
	}
}

// Those before it count: each one's hold is a part of the wait. Of other locks
// nobody is before it.
func TestWorkers_cheapWaitsAddUp(t *testing.T) {
	t.Parallel()
	const hold, fit = 2 * time.Millisecond, int(nearTurn / (2 * time.Millisecond))
	for _, c := range []struct{ same, asked int }{{fit, 0}, {fit + 1, 1}} {
		// Again where the machine takes so long that no wait is short any more.
		redistest.Eventually(t, patience, func() bool {
			o := newOffice(t, 100)
			var all []*waitingWorker
			for i := range 2 * c.same { // every other one for a lock of its own
				m := counter{"m", hold}
				if i%2 == 1 {
					m.key += string(rune('a' + i))
				}
				all = append(all, o.comesTo(m))
			}
			for o.busy.Load() < o.limit {
				o.taskStarted()
			}
			asked := 0
			for _, p := range all {
				if p.asked() {
					asked++
				}
			}
			if time.Since(all[0].since) >= nearTurnCheck {
				return false
			}
			if asked != c.asked {
				t.Errorf("%d in line for %s each: %d give way, want %d", c.same, hold, asked, c.asked)
			}
			return true
		}, "a quick try")
	}
}

// Comings and goings on as many goroutines as there are workers, and more: while
// all are taken somebody gives way, so that all come to an end.
func TestWorkers_stress(t *testing.T) {
	t.Parallel()
	const limit, rounds = 8, 500
	o := newOffice(t, limit)
	m := counter{key: "m"}
	slots := make(chan struct{}, limit) // asynq's own count of workers
	var wg sync.WaitGroup
	work := func(round int) {
		slots <- struct{}{}
		defer func() { <-slots }()
		o.taskStarted()
		defer o.taskEnded()
		switch round % 3 {
		case 0:
			p := o.enterLine(m)
			<-p.parkNow // until all workers are taken, and it is the newest
			o.leaveLine(p, true)
		case 1:
			o.leaveLine(o.enterLine(m), false) // gets its lock, asked or not
		}
	}
	for g := range 2 * limit {
		redistest.Go(&wg, func() {
			for i := range rounds {
				work(g + i)
			}
		})
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	redistest.Eventually(t, patience, func() bool {
		select {
		case <-over:
			return true
		default:
		}
		// The last ones have free workers beside them: these are taken now.
		for range limit {
			o.taskStarted()
		}
		for range limit {
			o.taskEnded()
		}
		return false
	}, "all come to an end")
	if o.busy.Load() != 0 || len(o.waiting) != 0 || len(o.inLine) != 0 || o.parking != nil {
		t.Errorf("left over: %d busy, %d in line, %v, %v", o.busy.Load(), len(o.waiting), o.inLine, o.parking)
	}
}
