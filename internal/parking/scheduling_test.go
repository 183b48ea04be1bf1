package parking

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
)

// newClosed is a parking whose owner is closed: nothing looks but the test.
func newClosed(t *testing.T) *Parking {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{}) // never dials
	t.Cleanup(func() { _ = rdb.Close() })
	owner := life.New()
	owner.Close(func() {})
	return New(Options{
		Life: owner, Conn: exchange.New(rdb, exchange.Options{Closing: owner.Closing.Done()}), Slots: func(m Lock) int { return m.Limit },
		Caller: func(context.Context, string, string) inside.Fate { return inside.FateUnsure },
	})
}

func mutex(key string) Lock { return Lock{Keys: []string{key}, Limit: 1} }

// However many keys have parked work, and however soon their holders end: there are
// a thousand looks a second at most, and each key has its turn.
func TestChecksKeepToTheirBudget(t *testing.T) {
	t.Parallel()
	const keys, seconds = 5000, 20
	p := newClosed(t)
	began := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range keys {
		n := p.line(mutex(fmt.Sprint(i)))
		p.checkSoon(n)
		n.CheckAt, n.atDeadline = began, true
		p.reschedule(n)
	}
	taken, last := 0, make(map[*Line]time.Time)
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
			n.Checking, n.CheckAt, n.atDeadline = false, at.Add(500*time.Millisecond), true
			p.reschedule(n)
		}
	}
	if most := seconds*1000 + MaxChecks; taken > most || taken < most*9/10 {
		t.Errorf("%d looks in %d s, want %d at most and not much less", taken, seconds, most)
	}
	if len(last) != keys {
		t.Errorf("%d keys of %d were looked after", len(last), keys)
	}
	if most := keys * time.Second / 1000; slowest > most+time.Second {
		t.Errorf("one key had its turn after %s, want %s", slowest, most)
	}
}

// When nothing is parked any more, some idle lines are remembered for a minute, and
// then none: no map, no heap.
func TestParkingGivesItsMemoryBack(t *testing.T) {
	t.Parallel()
	const keys = maxIdleLines + 1000
	p := newClosed(t)
	var locks []Lock
	for i := range keys {
		locks = append(locks, mutex(fmt.Sprint(i)))
		p.HandleCalls(locks[i], []any{int64(0), int64(1), int64(60_000)})
	}
	p.mu.Lock()
	if len(p.lines) != keys || len(p.toCheck) != keys || p.parkedN != keys {
		t.Errorf("%d lines, %d of them to look after, %d parked on; want %d", len(p.lines), len(p.toCheck), p.parkedN, keys)
	}
	p.mu.Unlock()
	sent := time.Now().Add(time.Second)
	for _, m := range locks {
		p.NoteNothingParked(m, sent)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) != maxIdleLines || len(p.idle) != maxIdleLines || len(p.toCheck) != 0 || p.parkedN != 0 || int(p.LineCount.Load()) != maxIdleLines {
		t.Errorf("%d lines are remembered, %d counted, %d idle, %d to look after, %d parked on; want %d idle ones",
			len(p.lines), p.LineCount.Load(), len(p.idle), len(p.toCheck), p.parkedN, maxIdleLines)
	}
	if p.lines[locks[0].Key()] != nil || p.lines[locks[keys-1].Key()] == nil {
		t.Error("not the least recently used ones were forgotten")
	}
	p.forgetIdle(time.Now().Add(ForgetAfter + time.Second))
	if p.lines != nil || p.idle != nil || p.toCheck != nil || p.LineCount.Load() != 0 {
		t.Errorf("a minute later %d lines are remembered", len(p.lines))
	}
}

// The maps of a burst are not kept for the few lines that are left.
func TestParkingShrinksItsMaps(t *testing.T) {
	t.Parallel()
	p := newClosed(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range 3000 {
		p.line(mutex(fmt.Sprint(i)))
	}
	kept := p.checkSoon(p.line(mutex("kept")))
	p.forgetIdle(time.Now().Add(ForgetAfter + time.Second))
	if len(p.lines) != 1 || p.peakLines > 1000 || cap(p.idle) > 1000 || cap(p.toCheck) != 1 || kept.IsZero() {
		t.Errorf("%d lines, for up to %d; capacity for %d idle ones", len(p.lines), p.peakLines, cap(p.idle))
	}
}

// A release that was sent before something was parked, but answered after it, does
// not say that nothing is.
func TestReleaseFromBeforeSomethingWasParkedEndsNoLooks(t *testing.T) {
	t.Parallel()
	m, p := mutex("m"), newClosed(t)
	sent := time.Now()
	p.HandleCalls(m, []any{int64(0), int64(1), time.Hour.Milliseconds()})
	p.NoteNothingParked(m, sent)
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; !n.Parked || n.heap != &p.toCheck {
		t.Error("nobody looks after what is parked")
	}
}

// Whatever happens to lines, each is in the heap where it belongs, and first what is
// due first.
func TestLinesAreInOrder(t *testing.T) {
	t.Parallel()
	p := newClosed(t)
	for step := range 3000 {
		m := mutex(fmt.Sprint(step * step % 97))
		switch step % 5 {
		case 0:
			p.MeasureHeld(m)
		case 1, 2:
			p.HandleCalls(m, []any{int64(0), int64(1), int64(step * 7919 % 1000)})
		case 3:
			p.NoteNothingParked(m, time.Now().Add(time.Second))
		default:
			p.NoteHeld(m, time.Second)
		}
		p.mu.Lock()
		if len(p.toCheck)+len(p.idle) != len(p.lines) || len(p.toCheck) != p.parkedN {
			t.Fatalf("%d to look after and %d idle of %d lines, %d parked on", len(p.toCheck), len(p.idle), len(p.lines), p.parkedN)
		}
		for _, h := range []*lineHeap{&p.toCheck, &p.idle} {
			for i, n := range *h {
				if n.place != i || n.heap != h || n.Parked != (h == &p.toCheck) || h.Less(i, 0) {
					t.Fatalf("step %d: a line at %d of %d: %+v, the first %+v", step, i, len(*h), n, (*h)[0])
				}
			}
		}
		p.mu.Unlock()
	}
}

// A look is set for right after the first holder's end, not for when one would
// come by chance, and travels with no earlier one.
func TestALookForTheEndOfAHolder(t *testing.T) {
	t.Parallel()
	m, p := mutex("m"), newClosed(t)
	for _, ms := range []int64{0, 1, 40, 249} {
		began := time.Now()
		p.HandleCalls(m, []any{int64(0), int64(1), ms})
		took := time.Since(began)
		p.mu.Lock()
		n := p.lines[m.Key()]
		end := time.Duration(ms+1) * time.Millisecond
		if d := n.CheckAt.Sub(began); !n.atDeadline || d < end || d > end+took {
			t.Errorf("a look in %v for a holder that ends in %d ms; exact: %v", d, ms, n.atDeadline)
		}
		if at := p.Alarm.Pending(); at.IsZero() && time.Now().Before(n.CheckAt) || at.After(n.CheckAt) { // zero: it has rung
			t.Errorf("the alarm is set for %v", at)
		}
		n.CheckAt, n.atDeadline = began.Add(time.Hour), false // as with nothing due
		p.mu.Unlock()
	}
	for _, ms := range []int64{-1, time.Hour.Milliseconds()} {
		p.mu.Lock()
		n := p.lines[m.Key()]
		n.CheckAt, n.atDeadline = time.Time{}, false
		p.mu.Unlock()
		began := time.Now()
		p.HandleCalls(m, []any{int64(0), int64(1), ms})
		took := time.Since(began)
		p.mu.Lock()
		if d := n.CheckAt.Sub(began); n.atDeadline || d < CheckEvery || d > 2*CheckEvery+took {
			t.Errorf("a look in %v for a holder that ends in %d ms; exact: %v", d, ms, n.atDeadline)
		}
		p.mu.Unlock()
	}
	// Due soon, but exact: not with what is due now.
	p.mu.Lock()
	n := p.lines[m.Key()]
	soonDue := time.Now().Add(CheckTogether / 2)
	n.CheckAt, n.atDeadline = soonDue, true
	p.mu.Unlock()
	p.StartChecks()
	p.mu.Lock()
	if left := n.Checking; left && time.Now().Before(soonDue) {
		t.Error("it was looked after too early")
	}
	p.mu.Unlock()
}

// The scripts are told how much to call and how long it has to come, where there is a Caller.
func TestWantedCalls(t *testing.T) {
	t.Parallel()
	m, p := mutex("m"), newClosed(t)
	if inbound, life := p.WantedCalls(m); inbound != int64(1) || life != MinCallLifeArg {
		t.Errorf("of a line that is not known: %v, %v", inbound, life)
	}
	p.mu.Lock()
	n := p.line(m)
	n.AvgReturn, n.Inbound = average(10*time.Second), 4.9
	p.mu.Unlock()
	if inbound, life := p.WantedCalls(m); inbound != int64(4) || life != int64(20_000) {
		t.Errorf("of one that is: %v, %v", inbound, life)
	}
	p.caller = nil
	if inbound, life := p.WantedCalls(m); inbound != int64(0) || life != MinCallLifeArg {
		t.Errorf("without a Caller: %v, %v", inbound, life)
	}
}

// The limit of a lock is that of its last handle, and whether a control may change it.
func TestLineKeepsTheLimit(t *testing.T) {
	t.Parallel()
	m, p := mutex("m"), newClosed(t)
	p.MeasureHeld(m)
	m.KeepsLimit = true
	p.MeasureHeld(m)
	if !p.lines["m"].lock.KeepsLimit {
		t.Error("the limit of the first handle is kept")
	}
}

// However many ordered keys have parked work, a process calls no more than asynq's queue has room for; one of each.
func TestInboundInOrder(t *testing.T) {
	t.Parallel()
	p := newClosed(t)
	called := func(ordered bool) any {
		m := Lock{Keys: []string{"0"}, Limit: 1, Ordered: ordered}
		inbound, _ := p.WantedCalls(m)
		return inbound
	}
	for i, want := range map[int]int64{1: MaxInbound, 10: maxInboundInOrder / 10, 1000: 1} {
		p.mu.Lock()
		for k := range i {
			n := p.line(mutex(fmt.Sprint(k)))
			n.Inbound = MaxInbound
			p.checkSoon(n)
		}
		p.parkedN = i
		p.mu.Unlock()
		if got := called(true); got != want {
			t.Errorf("%d keys: %v of one in order are called, want %d", i, got, want)
		}
		if got := called(false); got != int64(MaxInbound) {
			t.Errorf("%d keys: %v of one are called, want %d", i, got, MaxInbound)
		}
	}
}

// A line of which a call is under way is not forgotten, however long nothing else was heard of it: the call would
// be made twice.
func TestALineIsRememberedWhileItIsCalled(t *testing.T) {
	t.Parallel()
	p, m := newClosed(t), mutex("m")
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.line(m)
	n.set("note", call{})
	p.reschedule(n)
	p.reschedule(p.line(mutex("other")))
	for range 2 {
		p.forgetIdle(time.Now().Add(ForgetAfter + time.Second))
		if len(p.lines) != 1 || p.lines["m"] != n {
			t.Fatalf("%d lines are remembered, want the called one", len(p.lines))
		}
	}
	n.drop("note")
	p.forgetIdle(time.Now().Add(ForgetAfter + time.Second))
	if len(p.lines) != 0 {
		t.Error("a line is remembered whose call has ended")
	}
}
