package lock

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// This file schedules checks. A check runs the script call on a line with parked work: it
// prunes the line and names the parked work whose turn has come. Checks repeat a call that
// was lost with its process, and notice a holder that died.
const (
	// checkEvery is the shortest interval between two checks of one line; twice that is the
	// longest, unless there are more than maxChecks lines.
	checkEvery = 250 * time.Millisecond
	// maxChecks is how many checks begin within checkEvery at most. With more lines than
	// that each line is checked less often.
	maxChecks = 250
	// checksPerSecond is maxChecks, per second.
	checksPerSecond = maxChecks * float64(time.Second) / float64(checkEvery)
	// checkTogether: a check that is due this soon is sent in the pipeline of one that is due.
	checkTogether = checkEvery / 4
	// maxRounds is how many rounds of checks are under way at most, each a pipeline on a
	// goroutine of its own: a Redis that hangs does not collect more of them. On a Cluster a
	// round has one pipeline for each master, and each line is in at most one round. The
	// larger bound there lets the other masters go on while one hangs.
	maxRounds        = 4
	maxRoundsCluster = 64
)

// refillBudget adds the checks that may begin since the last call: checksPerSecond, and at
// most maxChecks in store. Callers hold mu.
func (p *parking) refillBudget(now time.Time) {
	p.budget = min(p.budget+now.Sub(p.budgetAt).Seconds()*checksPerSecond, maxChecks)
	p.budgetAt = now
}

// reschedule moves n to its place in the heap that it belongs to. Code that changes
// n.parked, n.checking, n.checkAt or n.usedAt calls reschedule after it. Callers hold mu.
func (p *parking) reschedule(n *parkedLine) {
	switch {
	case n.checking:
		n.moveTo(nil)
	case n.parked:
		n.moveTo(&p.toCheck)
	default:
		n.moveTo(&p.idle)
		if first := p.idle[0]; len(p.idle) > maxIdleLines && first != n && len(first.calls) == 0 {
			p.forgetLine(first)
		}
	}
}

// forgetLine drops n. Nothing is parked on n and no pendingCall refers to it. Callers hold mu.
func (p *parking) forgetLine(n *parkedLine) {
	n.moveTo(nil)
	delete(p.lines, n.key)
	p.lineCount.Store(int32(len(p.lines))) //nolint:gosec // far from 2^31
	switch {
	case len(p.lines) == 0:
		p.lines, p.toCheck, p.idle, p.peakLines = nil, nil, nil, 0
	case p.peakLines > 1000 && len(p.lines) < p.peakLines/8:
		// A map and a slice never shrink, so copy them.
		lines := make(map[string]*parkedLine, len(p.lines))
		for key, n := range p.lines {
			lines[key] = n
		}
		p.lines, p.peakLines = lines, len(lines)
		p.toCheck, p.idle = append(lineHeap(nil), p.toCheck...), append(lineHeap(nil), p.idle...)
	}
}

// checkSoon notes that something is parked on n. It returns when the next check of n is
// due, or zero while a check of n is under way. Callers hold mu, and set the alarm.
func (p *parking) checkSoon(n *parkedLine) time.Time {
	n.parkedSeenAt = time.Now()
	if !n.parked {
		n.parked = true
		p.parkedN++
	}
	if n.checkAt.IsZero() {
		every := checkEvery * time.Duration(1+p.parkedN/maxChecks)
		n.checkAt = n.parkedSeenAt.Add(every + rand.N(every)) //nolint:gosec // jitter, no secret
	}
	p.reschedule(n)
	if n.checking {
		return time.Time{}
	}
	return n.checkAt
}

// nothingParked notes that Redis replied, to a command sent at sent, that nothing is parked
// or called on n. Checks of n end. It does nothing if a reply that came after sent named
// parked work: that command may have run later. Callers hold mu.
func (p *parking) nothingParked(n *parkedLine, sent time.Time) {
	if !n.parked || !n.parkedSeenAt.Before(sent) {
		return
	}
	n.parked, n.checkAt, n.atDeadline = false, time.Time{}, false
	p.parkedN--
	for note := range n.calls {
		n.noteArrival(note)
	}
	p.reschedule(n)
}

// noteNothingParked is nothingParked for the reply to a release or call that was sent at
// sent. It costs one atomic load while no line is known.
func (p *parking) noteNothingParked(m *Lock, sent time.Time) {
	if p.lineCount.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		p.nothingParked(n, sent)
	}
}

// startChecks begins the checks that are due, as far as the budget and maxRounds allow,
// and forgets lines not used for long. The alarm calls it on a goroutine that ends with it.
// Two calls at a time are safe: takeDue gives each line to one of them.
func (p *parking) startChecks() {
	if p.locker.enter() != nil {
		return
	}
	defer p.locker.work.Done()
	now := time.Now()
	p.mu.Lock()
	due := p.takeDue(now)
	p.forgetIdle(now)
	next := p.nextCheck(now)
	p.mu.Unlock()
	p.alarm.set(next)
	left := len(due) // of this round; mu guards it
	exchange.InBatches(p.locker.conn, p.locker.branch, due, func(n *parkedLine) string { return n.key }, func(batch []*parkedLine) { p.checkBatch(batch, &left) })
}

// roundsFree returns how many more rounds of checks may begin. Callers hold mu.
func (p *parking) roundsFree() int {
	if p.locker.conn.OnCluster() {
		return maxRoundsCluster - p.rounds
	}
	return maxRounds - p.rounds
}

// takeDue removes the lines that are due from the heap and begins a round with them, if
// there are any. Callers hold mu.
func (p *parking) takeDue(now time.Time) (due []*parkedLine) {
	p.refillBudget(now)
	soon, free := now.Add(checkTogether), p.roundsFree() > 0
	var early []*parkedLine
	for free && len(due) < int(p.budget) && len(p.toCheck) > 0 && p.toCheck[0].checkAt.Before(soon) {
		n := p.toCheck[0]
		n.moveTo(nil)
		if n.atDeadline && n.checkAt.After(now) {
			early = append(early, n)
			continue
		}
		n.checking, n.checkAt, n.atDeadline, n.notNow = true, time.Time{}, false, nil
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
func (p *parking) forgetIdle(now time.Time) {
	var called []*parkedLine
	for len(p.idle) > 0 && now.Sub(p.idle[0].usedAt) > forgetAfter {
		n := p.idle[0]
		if len(n.calls) > 0 { // a call is still under way
			n.moveTo(nil)
			called = append(called, n)
			continue
		}
		p.forgetLine(n)
	}
	for _, n := range called {
		n.usedAt = now.Add(-forgetAfter)
		p.reschedule(n)
	}
}

// nextCheck returns when startChecks has work again. Zero means: not before a round ends or
// something parks. Callers hold mu.
func (p *parking) nextCheck(now time.Time) (next time.Time) {
	if len(p.toCheck) > 0 && p.roundsFree() > 0 {
		next = p.toCheck[0].checkAt
		if enough := now.Add(checkTogether); p.budget < 1 && next.Before(enough) {
			next = enough // by then the budget allows several checks in one pipeline
		}
	}
	if len(p.idle) > 0 {
		next = earliest(next, p.idle[0].usedAt.Add(forgetAfter+time.Second))
	}
	return next
}

// checkBatch checks a batch of lines in one pipeline. It runs on a goroutine that ends when
// Redis has replied, or the exchange timed out; Close waits for it. left is the number of
// lines of the round that have no result yet.
func (p *parking) checkBatch(batch []*parkedLine, left *int) {
	calls := make([]*exchange.Call, len(batch))
	for i, n := range batch {
		p.mu.Lock()
		m := n.lock
		p.mu.Unlock()
		calls[i] = &exchange.Call{Keys: m.keys, Args: p.args(m, "", inside.FateUnsure)}
	}
	sent := time.Now()
	p.locker.conn.Pipeline(context.Background(), callScript, calls)
	for i, n := range batch {
		p.noteCheck(n, calls[i], sent)
	}
	p.mu.Lock()
	if *left -= len(batch); *left == 0 {
		p.rounds--
	}
	next := p.nextCheck(time.Now())
	p.mu.Unlock()
	p.alarm.set(next)
}

// noteCheck handles the reply to a check of n that was sent at sent.
func (p *parking) noteCheck(n *parkedLine, c *exchange.Call, sent time.Time) {
	_, nothing := c.Reply.(int64)
	again := mustPruneAgain(c.Reply)
	p.mu.Lock()
	m := n.lock
	n.checking = false
	if c.Err == nil && nothing && !again {
		p.nothingParked(n, sent)
	}
	// After an error n.parked says what is known: it is false if the reply to a release has
	// said meanwhile that nothing is parked.
	if n.parked || c.Err == nil && (!nothing || again) {
		p.checkSoon(n)
	}
	if again {
		n.checkAt, n.atDeadline = time.Now(), true
	}
	p.reschedule(n)
	p.mu.Unlock()
	if c.Err == nil {
		p.handleCalls(m, c.Reply)
	}
}

// lineHeap orders lines with parked work by checkAt, or idle lines by usedAt. No heap has
// lines of both kinds. parking.mu guards it.
type lineHeap []*parkedLine //nolint:recvcheck // heap.Interface wants both

// moveTo moves n to its place in h, out of the heap that it was in. With a nil h it only
// removes n. Callers hold mu.
func (n *parkedLine) moveTo(h *lineHeap) {
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
	if h[i].parked {
		return h[i].checkAt.Before(h[j].checkAt)
	}
	return h[i].usedAt.Before(h[j].usedAt)
}

func (h lineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push appends a *parkedLine, for package heap.
func (h *lineHeap) Push(x any) {
	n := x.(*parkedLine) //nolint:forcetypeassert // nothing else is pushed
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
