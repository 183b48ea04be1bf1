package parking

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// This file schedules checks. A check runs the script call on a line with parked work: it
// prunes the line and names the parked work whose turn has come. Checks repeat a call that
// was lost with its process, and notice a holder that died.
const (
	// CheckEvery is the shortest interval between two checks of one line; twice that is the
	// longest, unless there are more than MaxChecks lines.
	CheckEvery = 250 * time.Millisecond
	// maxStill bounds how often the interval is doubled for an ordered key whose next task does not come.
	maxStill = 3
	// MaxChecks is how many checks begin within CheckEvery at most. With more lines than
	// that each line is checked less often.
	MaxChecks = 250
	// checksPerSecond is MaxChecks, per second.
	checksPerSecond = MaxChecks * float64(time.Second) / float64(CheckEvery)
	// CheckTogether: a check that is due this soon is sent in the pipeline of one that is due.
	CheckTogether = CheckEvery / 4
	// MaxRounds is how many rounds of checks are under way at most, each a pipeline on a
	// goroutine of its own: a Redis that hangs does not collect more of them. On a Cluster a
	// round has one pipeline for each master, and each line is in at most one round. The
	// larger bound there lets the other masters go on while one hangs.
	MaxRounds        = 4
	maxRoundsCluster = 64
)

// refillBudget adds the checks that may begin since the last call: checksPerSecond, and at
// most MaxChecks in store. Callers hold mu.
func (p *Parking) refillBudget(now time.Time) {
	p.budget = min(p.budget+now.Sub(p.budgetAt).Seconds()*checksPerSecond, MaxChecks)
	p.budgetAt = now
}

// reschedule moves n to its place in the heap that it belongs to. Code that changes
// n.Parked, n.Checking, n.CheckAt or n.UsedAt calls reschedule after it. Callers hold mu.
func (p *Parking) reschedule(n *Line) {
	switch {
	case n.Checking:
		n.moveTo(nil)
	case n.Parked:
		n.moveTo(&p.toCheck)
	default:
		n.moveTo(&p.idle)
		if first := p.idle[0]; len(p.idle) > maxIdleLines && first != n && len(first.Calls) == 0 {
			p.forgetLine(first)
		}
	}
}

// forgetLine drops n. Nothing is parked on n, and n has no calls. Callers hold mu.
func (p *Parking) forgetLine(n *Line) {
	n.moveTo(nil)
	delete(p.lines, n.key)
	p.LineCount.Store(int32(len(p.lines))) //nolint:gosec // far from 2^31
	switch {
	case len(p.lines) == 0:
		p.lines, p.toCheck, p.idle, p.peakLines = nil, nil, nil, 0
	case p.peakLines > 1000 && len(p.lines) < p.peakLines/8:
		// A map and a slice never shrink, so copy them.
		lines := make(map[string]*Line, len(p.lines))
		for key, n := range p.lines {
			lines[key] = n
		}
		p.lines, p.peakLines = lines, len(lines)
		p.toCheck, p.idle = append(lineHeap(nil), p.toCheck...), append(lineHeap(nil), p.idle...)
	}
}

// checkSoon notes that something is parked on n. It returns when the next check of n is
// due, or zero while a check of n is under way. Callers hold mu, and set the alarm.
func (p *Parking) checkSoon(n *Line) time.Time {
	if !n.Parked {
		p.parkedN++
	}
	every := n.interval(p.parkedN)
	n.planCheck(every+rand.N(every), time.Now()) //nolint:gosec // jitter, no secret
	p.reschedule(n)
	if n.Checking {
		return time.Time{}
	}
	return n.CheckAt
}

// nothingParked notes that Redis replied, to a command sent at sent, that nothing is parked
// or called on n. Callers hold mu.
func (p *Parking) nothingParked(n *Line, sent time.Time) {
	if n.noteNothing(sent) {
		p.parkedN--
		p.reschedule(n)
	}
}

// NoteNothingParked is nothingParked for the reply to a release or call that was sent at
// sent. It costs one atomic load while no line is known.
func (p *Parking) NoteNothingParked(m Lock, sent time.Time) {
	if p.LineCount.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		p.nothingParked(n, sent)
	}
}

// StartChecks begins the checks that are due, as far as the budget and MaxRounds allow,
// and forgets lines not used for long. The alarm calls it on a goroutine that ends with it.
// Two calls at a time are safe: takeDue gives each line to one of them.
func (p *Parking) StartChecks() {
	if p.life.Enter() != nil {
		return
	}
	defer p.life.Done()
	now := time.Now()
	p.mu.Lock()
	due := p.takeDue(now)
	p.forgetIdle(now)
	next := p.nextCheck(now)
	p.mu.Unlock()
	p.Alarm.Set(next)
	left := len(due) // of this round; mu guards it
	exchange.InBatches(p.conn, p.life.Branch, due, func(n *Line) string { return n.key }, func(batch []*Line) { p.checkBatch(batch, &left) })
}

// roundsFree returns how many more rounds of checks may begin. Callers hold mu.
func (p *Parking) roundsFree() int {
	if p.conn.OnCluster() {
		return maxRoundsCluster - p.rounds
	}
	return MaxRounds - p.rounds
}

// takeDue removes the lines that are due from the heap and begins a round with them, if
// there are any. Callers hold mu.
func (p *Parking) takeDue(now time.Time) (due []*Line) {
	p.refillBudget(now)
	soon, free := now.Add(CheckTogether), p.roundsFree() > 0
	var early []*Line
	for free && len(due) < int(p.budget) && len(p.toCheck) > 0 && p.toCheck[0].CheckAt.Before(soon) {
		n := p.toCheck[0]
		n.moveTo(nil)
		if n.atDeadline && n.CheckAt.After(now) {
			early = append(early, n)
			continue
		}
		n.beginCheck()
		due = append(due, n)
	}
	for _, n := range early {
		p.reschedule(n)
	}
	p.budget -= float64(len(due))
	if len(due) > 0 {
		p.rounds++
	}
	return due
}

// forgetIdle forgets lines that were not used for long. Callers hold mu.
func (p *Parking) forgetIdle(now time.Time) {
	var called []*Line
	for len(p.idle) > 0 && now.Sub(p.idle[0].UsedAt) > ForgetAfter {
		n := p.idle[0]
		if len(n.Calls) > 0 { // a call is still under way
			n.moveTo(nil)
			called = append(called, n)
			continue
		}
		p.forgetLine(n)
	}
	for _, n := range called {
		n.UsedAt = now.Add(-ForgetAfter)
		p.reschedule(n)
	}
}

// nextCheck returns when StartChecks has work again. Zero means: not before a round ends or
// something parks. Callers hold mu.
func (p *Parking) nextCheck(now time.Time) (next time.Time) {
	if len(p.toCheck) > 0 && p.roundsFree() > 0 {
		next = p.toCheck[0].CheckAt
		if enough := now.Add(CheckTogether); p.budget < 1 && next.Before(enough) {
			next = enough // by then the budget allows several checks in one pipeline
		}
	}
	if len(p.idle) > 0 {
		next = life.Earliest(next, p.idle[0].UsedAt.Add(ForgetAfter+time.Second))
	}
	return next
}

// checkBatch checks a batch of lines in one pipeline. It runs on a goroutine that ends when
// Redis has replied, or the exchange timed out; Close waits for it. left is the number of
// lines of the round that have no result yet.
func (p *Parking) checkBatch(batch []*Line, left *int) {
	calls := make([]*exchange.Call, len(batch))
	byScript := map[*exchange.Script][]*exchange.Call{} // ordered keys have a script of their own
	for i, n := range batch {
		p.mu.Lock()
		m := n.lock
		p.mu.Unlock()
		s := wire.CallScript
		var args []any
		if m.Ordered {
			inbound, _ := p.WantedCalls(m)
			s, args = wire.OrderActScript, wire.OrderActArgs(p.slots(m), inbound, inside.ActNone, inside.OrderItem{}, 0)
		} else {
			args = p.args(m, "", inside.FateUnsure)
		}
		calls[i] = &exchange.Call{Keys: m.Keys, Args: args}
		byScript[s] = append(byScript[s], calls[i])
	}
	sent := time.Now()
	for s, calls := range byScript {
		p.conn.Pipeline(context.Background(), s, calls)
	}
	for i, n := range batch {
		p.noteCheck(n, calls[i], sent)
	}
	p.mu.Lock()
	if *left -= len(batch); *left == 0 {
		p.rounds--
	}
	next := p.nextCheck(time.Now())
	p.mu.Unlock()
	p.Alarm.Set(next)
}

// noteCheck handles the reply to a check of n that was sent at sent.
func (p *Parking) noteCheck(n *Line, c *exchange.Call, sent time.Time) {
	_, nothing := c.Reply.(int64)
	p.mu.Lock()
	m := n.lock
	f, _ := c.Reply.([]any)
	n.endCheck(m.Ordered && len(f) == 3 && f[0] != int64(0)) // the lock is free, and there is nobody to call: the next task is away
	if c.Err == nil && nothing {
		p.nothingParked(n, sent)
	}
	// After an error n.parked says what is known: it is false if the reply to a release has
	// said meanwhile that nothing is parked.
	if n.Parked || c.Err == nil && !nothing {
		p.checkSoon(n)
	}
	p.reschedule(n)
	p.mu.Unlock()
	if c.Err == nil {
		p.HandleCalls(m, c.Reply)
	}
}

// CheckOrder has the ordered key of m checked while a task of this process waits for its turn: the head
// that keeps it waiting may never come.
func (p *Parking) CheckOrder(m Lock) {
	if p.caller == nil {
		return // others look
	}
	p.mu.Lock()
	at := p.checkSoon(p.line(m))
	p.mu.Unlock()
	p.Alarm.Set(at)
}

// lineHeap orders lines with parked work by CheckAt, or idle lines by UsedAt. No heap has
// lines of both kinds. parking.mu guards it.
type lineHeap []*Line //nolint:recvcheck // heap.Interface wants both

// moveTo moves n to its place in h, out of the heap that it was in. With a nil h it only
// removes n. Callers hold mu.
func (n *Line) moveTo(h *lineHeap) {
	if n.heap != nil && n.heap != h {
		heap.Remove(n.heap, n.place)
	}
	was := n.heap
	n.heap = h
	switch {
	case h == nil:
	case was == h:
		heap.Fix(h, n.place)
	default:
		heap.Push(h, n)
	}
}

// Len implements heap.Interface, as do the methods below.
func (h lineHeap) Len() int { return len(h) }

func (h lineHeap) Less(i, j int) bool {
	if h[i].Parked {
		return h[i].CheckAt.Before(h[j].CheckAt)
	}
	return h[i].UsedAt.Before(h[j].UsedAt)
}

func (h lineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push appends a *Line, for package heap.
func (h *lineHeap) Push(x any) {
	n := x.(*Line) //nolint:forcetypeassert // nothing else is pushed
	n.place = len(*h)
	*h = append(*h, n)
}

// Pop removes the last one, for package heap.
func (h *lineHeap) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return n
}
