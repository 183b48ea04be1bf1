package lock

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// How parked work is looked after.
const (
	// lookEvery to twice that is how often a line with parked work is looked
	// after, so that a call that was lost with its process is repeated.
	lookEvery = 250 * time.Millisecond
	// looks is how many lines are looked after in lookEvery at most, those at the
	// deadlines of holders included; with more lines each has its turn less often.
	looks = 250
	// looksPerSecond is the same for a second.
	looksPerSecond = looks * float64(time.Second) / float64(lookEvery)
	// lookTogether: looks due that soon travel with one that is due.
	lookTogether = lookEvery / 4
	// mostRounds is how many rounds of looks are under way at most, each a pipeline on
	// a goroutine of its own: a Redis that hangs does not gather more of them. With a
	// Cluster there may be more, of one pipeline for each master: the lines of one that
	// hangs, which are under way once each, shall not keep the others from their turn.
	mostRounds        = 4
	mostRoundsCluster = 64
)

// refill counts the looks that may begin at now: looksPerSecond, of which those of
// lookEvery are saved up at most. Callers hold mu.
func (p *parking) refill(now time.Time) {
	p.tokens = min(p.tokens+now.Sub(p.filled).Seconds()*looksPerSecond, looks)
	p.filled = now
}

// plan puts n into the heap where it belongs, and to its place in it. What changes
// n.parked, n.looking, n.lookAt or n.used calls plan after it. Callers hold mu.
func (p *parking) plan(n *parkedLine) {
	switch {
	case n.looking:
		n.moveTo(nil)
	case n.parked:
		n.moveTo(&p.looks)
	default:
		n.moveTo(&p.idle)
		if first := p.idle[0]; len(p.idle) > idleMost && first != n && len(first.calls) == 0 {
			p.forget(first)
		}
	}
}

// forget drops what is known of n, on which nothing is parked, and which no call
// refers to. Callers hold mu.
func (p *parking) forget(n *parkedLine) {
	n.moveTo(nil)
	delete(p.lines, n.key)
	p.known.Store(int32(len(p.lines))) //nolint:gosec // far from 2^31
	switch {
	case len(p.lines) == 0:
		p.lines, p.looks, p.idle, p.most = nil, nil, nil, 0
	case p.most > 1000 && len(p.lines) < p.most/8:
		// Maps and slices never give memory back by themselves.
		lines := make(map[string]*parkedLine, len(p.lines))
		for key, n := range p.lines {
			lines[key] = n
		}
		p.lines, p.most = lines, len(lines)
		p.looks, p.idle = append(lineHeap(nil), p.looks...), append(lineHeap(nil), p.idle...)
	}
}

// lookSoon notes that something is parked on n, and sets when n is looked after
// next. Callers hold mu, and set the alarm.
func (p *parking) lookSoon(n *parkedLine) time.Time {
	n.seen = time.Now()
	if !n.parked {
		n.parked = true
		p.parkedN++
	}
	if n.lookAt.IsZero() {
		every := lookEvery * time.Duration(1+p.parkedN/looks)
		n.lookAt = n.seen.Add(every + rand.N(every)) //nolint:gosec // jitter, no secret
	}
	p.plan(n)
	if n.looking {
		return time.Time{}
	}
	return n.lookAt
}

// nothingParked notes a reply to what was sent at sent: nothing is parked or called
// on n, so that no look comes any more. Not if Redis said otherwise to something
// that may have run later. Callers hold mu.
func (p *parking) nothingParked(n *parkedLine, sent time.Time) {
	if !n.parked || !n.seen.Before(sent) {
		return
	}
	n.parked, n.lookAt, n.exact = false, time.Time{}, false
	p.parkedN--
	for note := range n.calls {
		n.noteArrival(note)
	}
	p.plan(n)
}

// noteReply notes that the reply to a release or call that was sent at sent names
// nothing that is parked on m.
func (p *parking) noteReply(m *Lock, sent time.Time) {
	if p.known.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		p.nothingParked(n, sent)
	}
}

// look begins the looks that are due, as far as the budget and the rounds under
// way allow, and forgets lines not used for long. The alarm rings it, on a goroutine
// that ends with it; of two at a time each finds what the other has left.
func (p *parking) look() {
	if p.locker.enter() != nil {
		return
	}
	defer p.locker.work.Done()
	now := time.Now()
	p.mu.Lock()
	due := p.takeDue(now)
	p.forgetIdle(now)
	next := p.nextLook(now)
	p.mu.Unlock()
	p.alarm.set(next)
	left := len(due) // of this round; mu guards it
	exchange.InBatches(p.locker.conn, p.locker.branch, due, func(n *parkedLine) string { return n.key }, func(batch []*parkedLine) { p.lookAt(batch, &left) })
}

// roundsFree is how many more rounds of looks may begin. Callers hold mu.
func (p *parking) roundsFree() int {
	if p.locker.conn.OnCluster() {
		return mostRoundsCluster - p.rounds
	}
	return mostRounds - p.rounds
}

// takeDue takes lines that are due from the heap. If there are any they are a round,
// which is under way from now on. Callers hold mu.
func (p *parking) takeDue(now time.Time) (due []*parkedLine) {
	p.refill(now)
	soon, free := now.Add(lookTogether), p.roundsFree() > 0
	var early []*parkedLine
	for free && len(due) < int(p.tokens) && len(p.looks) > 0 && p.looks[0].lookAt.Before(soon) {
		n := p.looks[0]
		n.moveTo(nil)
		if n.exact && n.lookAt.After(now) {
			early = append(early, n)
			continue
		}
		n.looking, n.lookAt, n.exact, n.laters = true, time.Time{}, false, nil
		due = append(due, n)
	}
	for _, n := range early {
		p.plan(n)
	}
	p.tokens -= float64(len(due))
	if len(due) > 0 {
		p.rounds++
	}
	return due
}

// forgetIdle forgets lines that were not used for long. Callers hold mu.
func (p *parking) forgetIdle(now time.Time) {
	var called []*parkedLine
	for len(p.idle) > 0 && now.Sub(p.idle[0].used) > forget {
		n := p.idle[0]
		if len(n.calls) > 0 { // a call is still under way
			n.moveTo(nil)
			called = append(called, n)
			continue
		}
		p.forget(n)
	}
	for _, n := range called {
		n.used = now.Add(-forget)
		p.plan(n)
	}
}

// nextLook is when look has something to do again; zero: when a round that is under
// way ends, or something is parked. Callers hold mu.
func (p *parking) nextLook(now time.Time) (next time.Time) {
	if len(p.looks) > 0 && p.roundsFree() > 0 {
		next = p.looks[0].lookAt
		if enough := now.Add(lookTogether); p.tokens < 1 && next.Before(enough) {
			next = enough // some of them together
		}
	}
	if len(p.idle) > 0 {
		next = earliest(next, p.idle[0].used.Add(forget+time.Second))
	}
	return next
}

// lookAt looks after a batch of lines, in one pipeline. It runs on a goroutine that
// ends when Redis has answered, or the exchange timed out; Close waits for it. left is
// how many lines of the round are left.
func (p *parking) lookAt(batch []*parkedLine, left *int) {
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
		p.looked(n, calls[i], sent)
	}
	p.mu.Lock()
	if *left -= len(batch); *left == 0 {
		p.rounds--
	}
	next := p.nextLook(time.Now())
	p.mu.Unlock()
	p.alarm.set(next)
}

// looked notes what a look that was sent at sent has found.
func (p *parking) looked(n *parkedLine, c *exchange.Call, sent time.Time) {
	_, nothing := c.Reply.(int64)
	again := lookAgain(c.Reply)
	p.mu.Lock()
	m := n.lock
	n.looking = false
	if c.Err == nil && nothing && !again {
		p.nothingParked(n, sent)
	}
	// Not parked: by this reply, or by one to a release meanwhile while this is an error.
	if n.parked || c.Err == nil && (!nothing || again) {
		p.lookSoon(n)
	}
	if again {
		n.lookAt, n.exact = time.Now(), true
	}
	p.plan(n)
	p.mu.Unlock()
	if c.Err == nil {
		p.handleCalls(m, c.Reply)
	}
}

// lineHeap orders lines by when something is to be done about them: those with
// parked work by lookAt, the others by used. No heap has lines of both kinds.
// parking.mu guards it.
type lineHeap []*parkedLine //nolint:recvcheck // heap.Interface wants both

// moveTo puts n into h, to where it belongs, and takes it out of another heap; a nil
// h only takes it out. Callers hold mu.
func (n *parkedLine) moveTo(h *lineHeap) {
	if n.in != nil && n.in != h {
		heap.Remove(n.in, n.place)
	}
	was := n.in
	n.in = h
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
		return h[i].lookAt.Before(h[j].lookAt)
	}
	return h[i].used.Before(h[j].used)
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
