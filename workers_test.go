package automutex

import (
	"fmt"
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
	turn int64         // 0: the key is not ordered
}

func (c counter) Key() string                { return c.key }
func (c counter) AverageHeld() time.Duration { return c.hold }
func (c counter) Turn() int64                { return c.turn }

// office is a workers with what its tests do to it.
type office struct {
	*workers
	t *testing.T
}

func newOffice(t *testing.T, limit int) *office { return &office{newWorkers(limit), t} }

// comes is a worker that is taken and then stands in line for the lock called so.
func (o *office) comes(name string) *waitingWorker { return o.comesTo(counter{key: name}) }

func (o *office) comesTo(c counter) *waitingWorker {
	return o.enterLine(c, o.taskStarted())
}

// goes is what a worker does that was asked to give way, or got its lock and is through with it.
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

// check fails unless exactly these are asked to give way, now or when the newest task has had
// its time to stand in line itself.
func (o *office) check(all []*waitingWorker, want ...bool) {
	o.t.Helper()
	for i, p := range all {
		if want[i] {
			redistest.Eventually(o.t, patience, p.asked, fmt.Sprintf("place %d of %d is asked to give way", i+1, len(all)))
		}
	}
	for i, p := range all {
		if !want[i] && p.asked() {
			o.t.Errorf("place %d of %d is asked to give way", i+1, len(all))
		}
	}
}

// decided is when the newest task has had its time to stand in line itself.
func (o *office) decided() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.startedAt = time.Time{}
	o.askOneToPark()
}

// isBusy is how many workers count as busy.
func (o *office) isBusy() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.busy
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

// One who gives way frees a worker: until it is gone no other is asked, and after that none, while there is one free.
func TestWorkers_oneAtATime(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 3)
	all := []*waitingWorker{o.comes("a"), o.comes("b"), o.comes("c")}
	// The last one took the last worker, and then stands in line itself: those before it stay.
	o.check(all, false, false, true)
	o.goes(all[2], true)
	o.check(all, false, false, true)
	o.taskStarted() // the freed one is taken
	o.check(all, false, true, true)
	o.goes(all[1], true)
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

// One who is told to go by somebody else (its task's time is nearly up) is not counted as giving way for others.
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
	if p.asked() || o.isBusy() != 0 {
		t.Errorf("asked: %t, busy: %d", p.asked(), o.isBusy())
	}
}

// A wait that is over sooner than parking would be keeps its worker, and another
// gives way in its place. It is looked at again when it was to be over.
func TestWorkers_cheapWaits(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 3)
	long := o.comesTo(counter{key: "long", hold: nearTurn + 1})
	began := time.Now()
	short := o.comesTo(counter{key: "short", hold: nearTurn})
	o.taskStarted()
	o.decided()
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

// A short wait that is over before it is looked at again costs nobody anything, and the look finds nobody.
func TestWorkers_cheapWaitEnds(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 2)
	o.taskStarted()
	short := o.comesTo(counter{key: "short", hold: time.Millisecond})
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

// Those before it count: each one's hold is a part of the wait. Of other locks nobody is before it.
func TestWorkers_cheapWaitsAddUp(t *testing.T) {
	t.Parallel()
	const hold, fit = 2 * time.Millisecond, int(nearTurn / (2 * time.Millisecond))
	for _, c := range []struct{ same, asked int }{{fit, 0}, {fit + 1, 1}} {
		// Again where the machine takes so long that no wait is short any more.
		redistest.Eventually(t, patience, func() bool {
			o := newOffice(t, 100)
			var all []*waitingWorker
			for i := range 2 * c.same { // every other one for a lock of its own
				m := counter{key: "m", hold: hold}
				if i%2 == 1 {
					m.key += string(rune('a' + i))
				}
				all = append(all, o.comesTo(m))
			}
			for o.isBusy() < o.limit {
				o.taskStarted()
			}
			o.decided()
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
		number := o.taskStarted()
		defer o.taskEnded()
		switch round % 3 {
		case 0:
			p := o.enterLine(m, number)
			<-p.parkNow // until all workers are taken, and it is the newest
			o.leaveLine(p, true)
		case 1:
			o.leaveLine(o.enterLine(m, number), false) // gets its lock, asked or not
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
		free := limit - o.isBusy()
		for range free {
			o.taskStarted()
		}
		o.decided()
		for range free {
			o.taskEnded()
		}
		return false
	}, "all come to an end")
	if o.isBusy() != 0 || len(o.waiting) != 0 || len(o.inLine) != 0 || o.parking != nil {
		t.Errorf("left over: %d busy, %d in line, %v, %v", o.isBusy(), len(o.waiting), o.inLine, o.parking)
	}
}

// Of two tasks that come at once the one that started later gives way, in whatever order they stand in line.
func TestWorkers_orderOfStarts(t *testing.T) {
	t.Parallel()
	for _, swapped := range []bool{false, true} {
		o := newOffice(t, 3)
		o.taskStarted()
		first, second := o.taskStarted(), o.taskStarted()
		numbers := []int64{first, second}
		if swapped {
			numbers = []int64{second, first}
		}
		p, q := o.enterLine(counter{key: "a"}, numbers[0]), o.enterLine(counter{key: "a"}, numbers[1])
		o.check([]*waitingWorker{p, q}, swapped, !swapped)
	}
}

// Tasks whose end is not known count as long as there may be so many.
func TestWorkers_endNotKnown(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 3)
	for range 10 {
		o.taskStarted()
	}
	if n := o.isBusy(); n != 3 {
		t.Errorf("%d of 3 workers are busy", n)
	}
	for range 3 {
		o.taskEnded()
	}
	if n := o.isBusy(); n != 0 {
		t.Errorf("%d workers are busy after as many ends as there are workers", n)
	}
}

// Of an ordered key the one whose turn comes last gives way, though it came first.
func TestWorkers_lastInOrderGivesWay(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 4)
	slow := func(key string, turn int64) *waitingWorker {
		return o.comesTo(counter{key: key, hold: time.Second, turn: turn})
	}
	all := []*waitingWorker{slow("b", 9), slow("a", 3), slow("a", 2)}
	o.taskStarted()
	o.decided()
	o.check(all, false, true, false)
	o.goes(all[1], true)
	o.taskStarted()
	o.decided()
	o.check(all, false, true, true)
}

// Those who wait for an ordered key keep their workers while turns go by, also before it is known how long one
// takes, and give way when none goes by.
func TestWorkers_turnsGoBy(t *testing.T) {
	t.Parallel()
	o := newOffice(t, 4)
	all := []*waitingWorker{o.comesTo(counter{key: "a", turn: 1}), o.comesTo(counter{key: "a", turn: 2}), o.comesTo(counter{key: "a", turn: 3})}
	o.taskStarted()
	since := func(d time.Duration) { // when the last turn was
		o.mu.Lock()
		o.lastTurn["a"] = time.Now().Add(-d)
		all[2].since = time.Now().Add(-time.Hour)
		o.mu.Unlock()
		o.decided()
	}
	since(-time.Hour) // it does not pass however slow the machine is
	if all[2].asked() {
		t.Error("asked to give way while turns go by")
	}
	o.goes(all[0], false)
	o.mu.Lock()
	if waited := time.Since(o.lastTurn["a"]); waited < 0 || waited > time.Minute {
		t.Errorf("the turn of the first counts as %s ago", waited)
	}
	o.mu.Unlock()
	since(time.Hour)
	o.check(all, false, false, true)
	o.goes(all[1], false)
	o.goes(all[2], true)
	if len(o.lastTurn) != 0 {
		t.Errorf("left over: %v", o.lastTurn)
	}
}
