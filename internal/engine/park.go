package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
)

const (
	forgetAfter = 10 * time.Second // for so long a line without parked work is known after its last use
	// calls at once, each of another line
	maxCallers = 16
	// notes of all ordered keys called at once, at most; but one of each.
	maxInboundInOrder = 4 * maxInbound
	// how long a process calls a note alone. The Caller ends within the first half; the other half is for its
	// last command to reach Redis.
	callTime = 4 * time.Second
	// after a slower call no other is made while the Engine closes
	slowCall = time.Second
	// grid of checks that need not be exact: those of several lines go in one pipeline
	checksTogether = checkEvery / 4
	// rounds of checks under way at most, so that a hanging Redis does not collect goroutines. A Cluster's round has a
	// pipeline for each master.
	maxRounds, maxRoundsCluster = 4, 64
)

// parking calls parked work when its turn comes, and checks the lines that have some: so a call that was lost with its
// process is repeated, and a dead holder noticed. It is in memory: only speed depends on it. A process without a
// Caller knows nothing.
type parking struct {
	engine *Engine
	caller Caller // nil: this process calls nobody
	began  time.Time
	alarm  life.Alarm

	mu       sync.Mutex             // guards what follows; never held across I/O
	lines    map[string]*parkedLine // by key
	due      agenda                 // lines by when to check or to forget them, but those with a check under way
	parkedOn int                    // how many of lines have parked work
	rounds   int                    // rounds of checks under way
	// when one more check may begin: each moves it on by its part of checkEvery
	mayCheck  time.Time
	queue     []*parkedLine // lines with queued calls, but those a call of which is made now
	callers   int           // goroutines in makeCalls; each ends when queue is empty
	leastLife time.Duration // the least callLife: minCallLife, unless ArriveWithin has set more
}

func newParking(e *Engine, caller Caller) *parking {
	p := &parking{engine: e, caller: caller, began: time.Now(), lines: map[string]*parkedLine{}, leastLife: minCallLife}
	p.alarm.Ring = p.startChecks
	return p
}

// wanted returns arguments of release and check: how much called and waiting work the lock is to have, how long called
// work has to arrive (ms), and how many workers it may borrow, with the releaser's.
func (p *parking) wanted(r Ref, releases bool) (inbound, life, lend int64) {
	b := p.engine.bounds(&r)
	if p.caller == nil || b.Slots == 0 {
		return 0, minCallLife.Milliseconds(), 0
	}
	if r.borrows(b) {
		lend = int64(r.Lender.Calls(r.Key, r.Limit, releases))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.lines[r.Key]
	if n == nil {
		return 1, p.leastLife.Milliseconds(), lend // wake what others have parked
	}
	inbound = int64(n.inbound)
	if r.Ordered { // those called behind a task that fails come in vain
		inbound = max(1, min(inbound, int64(maxInboundInOrder/max(1, p.parkedOn))))
	}
	return inbound, n.callLife(p.leastLife).Milliseconds(), lend
}

// ArriveWithin has called work count as overdue after d at the earliest: its server takes that long to fetch it.
func (e *Engine) ArriveWithin(d time.Duration) {
	p := e.parking
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leastLife = max(p.leastLife, min(d, maxCallLife))
}

// sawReturn takes in the reply to an ask whose note was parked before, and is not now. It returns for how long, 0:
// never, and how long ago it had been called, below 0: it had not.
func (p *parking) sawReturn(r Ref, note string, a Answer) (parkedFor, sinceCall time.Duration) {
	if !a.Returned || a.Parked {
		return 0, -1
	}
	if p.caller != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := p.line(r)
		n.sawReturned(note, a.SinceCall, a.Yours, a.OthersParked)
		if a.OthersParked > 0 { // the process that parked them may be gone, and a slot free
			p.sawParkedWork(n, -1)
		}
		p.plan(n)
	}
	return max(a.InLine, 1), a.SinceCall // Redis counts whole milliseconds
}

// sawParked takes in a reply that parked its note; called: it had been called before, for another ask of the caller.
func (p *parking) sawParked(r Ref, note string, a Answer, called bool) {
	if !a.Parked || p.caller == nil {
		return
	}
	b := p.engine.bounds(&r)
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.line(r)
	n.paced = n.paced || !r.hasPace(b)
	n.sawParked(note, called || a.SinceCall >= 0)
	n.ready(r.borrows(b))
	p.sawParkedWork(n, -1)
}

// checkOrder has an ordered key checked while a task waits here: its head may never come.
func (p *parking) checkOrder(r Ref) {
	if p.caller == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sawParkedWork(p.line(r), -1)
}

// sawNamed takes in what the reply to a release or check says of parked work.
func (p *parking) sawNamed(r Ref, back named, sent time.Time) {
	if p.caller == nil {
		return
	}
	b := p.engine.bounds(&r)
	p.mu.Lock()
	defer p.mu.Unlock()
	if back.parked == 0 && len(back.called) == 0 {
		if n := p.lines[r.Key]; n != nil && n.sawNothing(sent) {
			n.ready(false)
			p.parkedOn--
			p.plan(n)
		}
		return
	}
	n := p.line(r)
	for _, note := range n.sawNamed(back.called, b.Slots == 0, n.callLife(p.leastLife), time.Now()) {
		p.queueCall(n, note)
	}
	n.ready(!back.gated && len(n.notNow) == 0 && r.borrows(b))
	p.sawParkedWork(n, back.opens)
}

// line returns the line of r, maybe new. Callers hold mu, and plan it at last.
func (p *parking) line(r Ref) *parkedLine {
	n := p.lines[r.Key]
	if n == nil {
		n = &parkedLine{key: r.Key, inbound: 1}
		n.line = n
		p.lines[r.Key] = n
	}
	if was := n.ref; !r.Rated && r.Lender == nil { // an operator's look knows no rule
		r.Rated, r.Pace, r.Lender = was.Rated, cmp.Or(r.Pace, was.Pace), was.Lender
	} else if l := was.Lender; l != nil && l != r.Lender { // who asked last borrows
		l.Calling(-n.counted)
		n.ready(false)
		n.counted = 0
	}
	n.ref, n.usedAt = r, time.Now()
	return n
}

// sawParkedWork takes in that something is parked on n; for opens see planCheck. Callers hold mu.
func (p *parking) sawParkedWork(n *parkedLine, opens time.Duration) {
	if !n.parked {
		p.parkedOn++
	}
	n.parked, n.seenAt = true, time.Now()
	p.planCheck(n, opens)
}

// planCheck plans the next check if something is parked. Callers hold mu.
func (p *parking) planCheck(n *parkedLine, opens time.Duration) {
	if now, every := time.Now(), n.interval(p.parkedOn); n.parked {
		at := now.Add(every + mathrand.N(every)) //nolint:gosec // jitter, no secret
		n.planCheck(at.Add(checksTogether-at.Sub(p.began)%checksTogether), opens, now)
	}
	p.plan(n)
}

// CheckSoon looks after the parked work of a key at once, which may borrow workers.
func (e *Engine) CheckSoon(key string) {
	p := e.parking
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[key]; n != nil && n.parked {
		n.checkAt = time.Now()
		p.plan(n)
	}
}

// plan moves n to its place in the agenda. Callers hold mu.
func (p *parking) plan(n *parkedLine) {
	at := n.checkAt
	if l := n.ref.Lender; l != nil && len(n.calls) != n.counted {
		l.Calling(len(n.calls) - n.counted)
		n.counted = len(n.calls)
	}
	switch {
	case n.checking:
		at = time.Time{}
	case !n.parked:
		at = n.usedAt.Add(forgetAfter)
	}
	if p.due.set(&n.entry, at) {
		p.alarm.Set(at)
	}
}

// Callers of forget hold mu.
func (p *parking) forget(n *parkedLine) {
	p.due.set(&n.entry, time.Time{})
	delete(p.lines, n.key)
	if len(p.lines) == 0 {
		p.lines, p.due = map[string]*parkedLine{}, nil // a map and a slice never shrink
	}
}

// startChecks begins the checks that are due, as mayCheck and maxRounds allow, and forgets unused lines. The alarm
// calls it. Two calls at a time are safe: takeDue gives each line to one of them.
func (p *parking) startChecks() {
	e := p.engine
	if e.life.Enter() != nil {
		return
	}
	defer e.life.Done()
	now := time.Now()
	p.mu.Lock()
	due := p.takeDue(now)
	next := p.next()
	p.mu.Unlock()
	p.alarm.Set(next)
	left := len(due) // of this round; mu guards it
	redisx.InBatches(e.conn, e.life.Branch, due, func(n *parkedLine) string { return n.key },
		func(batch []*parkedLine) { p.check(batch, &left) })
}

func (p *parking) hasRoom() bool {
	return p.rounds < maxRounds || p.engine.conn.IsCluster() && p.rounds < maxRoundsCluster
}

// takeDue takes the lines due for a check, and begins a round with them. Callers hold mu.
func (p *parking) takeDue(now time.Time) (due []*parkedLine) {
	hasRoom := p.hasRoom()
	if full := now.Add(-checkEvery); p.mayCheck.Before(full) { // maxChecks may begin together
		p.mayCheck = full
	}
	for len(p.due) > 0 && !p.due[0].at.After(now) {
		n := p.due[0].line
		switch {
		case n.parked && (!hasRoom || !p.mayCheck.Before(now)):
			return due
		case n.parked:
			if len(due) == 0 {
				p.rounds++
			}
			p.mayCheck = p.mayCheck.Add(checkEvery / maxChecks)
			n.beginCheck()
			p.plan(n)
			due = append(due, n)
		case len(n.calls) > 0: // one is under way, and would be made twice
			n.usedAt = now
			p.plan(n)
		default:
			p.forget(n)
		}
	}
	return due
}

// next is when startChecks has work; zero: not before a round ends, or something parks. Callers hold mu.
func (p *parking) next() time.Time {
	if len(p.due) == 0 || p.due[0].line.parked && !p.hasRoom() {
		return time.Time{}
	}
	if at := p.due[0].at; p.mayCheck.Before(at) {
		return at
	}
	return p.mayCheck.Add(checksTogether) // by then several may begin, in one pipeline
}

// check checks lines in one pipeline. left: lines of the round without a result.
func (p *parking) check(batch []*parkedLine, left *int) {
	calls := make([]*redisx.Call, len(batch))
	for i, n := range batch {
		p.mu.Lock()
		r := n.ref
		p.mu.Unlock()
		calls[i] = p.checkCall(r, "", "")
	}
	sent := time.Now()
	p.engine.conn.Pipeline(context.Background(), calls)
	for i, n := range batch {
		back, err := parseNamed(calls[i].Reply) // none: there is an error
		p.mu.Lock()
		r := n.ref
		n.endCheck(err == nil && r.Ordered && back.free > 0 && back.parked > 0 && len(back.called) == 0)
		p.planCheck(n, -1)
		p.mu.Unlock()
		if err == nil {
			p.sawNamed(r, back, sent)
		}
	}
	p.mu.Lock()
	if *left -= len(batch); *left == 0 {
		p.rounds--
	}
	next := p.next()
	p.mu.Unlock()
	p.alarm.Set(next)
}

// checkCall is the script that checks r, and says the fate of a plain lock's note.
func (p *parking) checkCall(r Ref, note, fate string) *redisx.Call {
	inbound, life, lend := p.wanted(r, false)
	b := p.engine.bounds(&r)
	if r.Ordered {
		return &redisx.Call{Script: orderActScript, Keys: r.keys(),
			Args: append([]any{int64(b.Slots), inbound, "none", "", 0, "", 0, 0, ""}, p.rateArgs(&r, b)...)}
	}
	return &redisx.Call{Script: checkScript, Keys: r.keys(),
		Args: append([]any{int64(b.Slots), inbound, life, note, fate, lend}, p.rateArgs(&r, b)...)}
}

func (r *Ref) hasPace(b control.Bounds) bool { return b.Every == r.Every && b.Spare == r.Spare }

// rateArgs end a check: an operator's rate; once after that the caller's; else nothing, if each task has its own.
func (p *parking) rateArgs(r *Ref, b control.Bounds) []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := cmp.Or(p.lines[r.Key], &parkedLine{})
	paced := n.paced
	if n.paced = !r.hasPace(b); !n.paced && !paced && !r.Rated {
		return nil
	}
	return []any{b.Every.Microseconds(), b.Spare.Microseconds(), b.Known}
}

// Callers of queueCall hold mu.
func (p *parking) queueCall(n *parkedLine, note string) {
	if p.callers < maxCallers && len(n.queue) == 0 && !n.calling {
		// It ends when the queue is empty.
		if p.engine.life.Spawn(p.makeCalls) {
			p.callers++
		} else if p.callers == 0 {
			return // the Engine is closed: another process that checks the line calls
		}
	}
	n.setCall(note, call{})
	if n.queue = append(n.queue, note); len(n.queue) == 1 && !n.calling {
		p.queue = append(p.queue, n)
	}
	p.plan(n)
}

// makeCalls makes the next call of each queued line in turn until the queue is empty. A line is not queued while a
// call of it is made.
func (p *parking) makeCalls() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for slow := false; len(p.queue) > 0; {
		n := p.queue[0]
		p.queue = p.queue[1:]
		if slow && p.engine.life.Closing.Err() != nil {
			n.queue = nil
			continue
		}
		note := n.queue[0]
		n.queue, n.calling = n.queue[1:], true
		if r := n.ref; n.beginCall(note) {
			p.mu.Unlock()
			began := time.Now()
			p.makeCall(n, r, note)
			slow = time.Since(began) > slowCall
			p.mu.Lock()
		}
		if n.calling = false; len(n.queue) > 0 {
			p.queue = append(p.queue, n)
		}
		p.plan(n)
	}
	p.queue = nil
	p.callers--
}

func (p *parking) makeCall(n *parkedLine, r Ref, note string) {
	fate := FateUnsure // if the Caller panics: the call is repeated
	p.callAlone(r, note, func(ctx context.Context) {
		life.CallUser(p.engine.o.Log, "Options.Call", func() { fate = p.caller(ctx, r.Key, note) })
		p.mu.Lock()
		leaves := n.sawFate(note, fate)
		p.mu.Unlock()
		if leaves {
			// While it calls alone, and this call is under way: so nobody calls the note again before it has left.
			// After an error the next check tries again.
			_ = p.tell(context.Background(), r, note, fate)
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.endCall(note, fate, time.Now()) {
		p.queueCall(n, note)
	}
}

// tell tells Redis the fate of a note, and handles what the reply names.
func (p *parking) tell(ctx context.Context, r Ref, note string, fate Fate) error {
	c, sent := p.checkCall(r, note, string(fate)), time.Now()
	reply, err := p.engine.conn.Run(ctx, c.Script, c.Keys, c.Args...)
	if err != nil {
		return err
	}
	back, err := parseNamed(reply)
	if err == nil {
		p.sawNamed(r, back, sent)
	}
	return err
}

// Unpark takes a note whose work has ended out of the line of a lock, and calls the next one if it is its turn.
func (e *Engine) Unpark(ctx context.Context, r Ref, note string) error {
	_, err := e.do(ctx, "unpark", r.Key, func() (any, error) {
		if err := e.Know(ctx, r.Key); err != nil {
			return nil, err
		}
		return nil, e.parking.tell(ctx, r, note, "ended")
	})
	return err
}

// callAlone runs f, unless another process calls the same note now: of two that find the work parked the slower would
// run it again after it is done.
func (p *parking) callAlone(r Ref, note string, f func(context.Context)) {
	// not one of r.keys, but in their slot
	e, key, holder, began := p.engine, r.Key+":call:"+note, rand.Text(), time.Now()
	taken, err := e.conn.SetNX(context.Background(), key, holder, callTime.Milliseconds())
	if !taken {
		e.o.Log.Debug("lock: parked work is not called now: another process calls it, or Redis did not answer",
			"lock", r.Key, "note", printable.Text(note), "error", err)
		return
	}
	ctx, cancel := context.WithDeadline(e.life.Closing, began.Add(callTime/2))
	defer cancel()
	f(ctx)
	if time.Since(began) <= callTime/2 {
		_, _ = e.conn.DeleteIfEqual(context.Background(), dropScript, key, holder) // an error: it lapses
	}
}

// Enlist gives a note to be enqueued the last place of the parked ones, and returns that, from 1 on. 0: nothing
// is parked. After an error it may have one.
func (e *Engine) Enlist(ctx context.Context, key, note string) (place int64, err error) {
	return e.code(ctx, math.MaxInt64, enlistScript, (&Ref{Key: key}).keys(), note)
}
