package lock

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// atOnce is how many calls are made at once.
	atOnce = 16
	// latersPerLook is how many are sent to the end of the line between two looks.
	latersPerLook = 64
)

// pendingCall is one call of a note, from when it is queued until the note arrives. Its
// fields belong to parking.mu.
type pendingCall struct {
	line *parkedLine
	note string
	// done is when the Caller answered FateComing; zero: the call is queued or under way.
	done        time.Time
	arrived     bool // the note arrived meanwhile: the Caller's result is stale
	calledAgain bool // after that Redis named the note again
}

// noteArrival notes that note is called no more. A call that is under way goes on:
// there is no second one beside it. Callers hold mu.
func (n *parkedLine) noteArrival(note string) {
	delete(n.laters, note)
	switch s := n.calls[note]; {
	case s == nil:
	case s.done.IsZero():
		s.arrived, s.calledAgain = true, false
	default:
		n.dropCall(note)
	}
}

// dropCall forgets the call of note. Callers hold mu.
func (n *parkedLine) dropCall(note string) {
	delete(n.calls, note)
	if len(n.calls) == 0 {
		n.calls = nil // many lines: an empty map is memory too
	}
}

// queueCall queues a call, unless one is queued, under way or known to be coming.
// Callers hold mu.
func (p *parking) queueCall(n *parkedLine, note string) {
	s := n.calls[note]
	switch {
	case p.caller == nil || n.laters[note]:
		return
	case s != nil && s.done.IsZero():
		s.calledAgain = s.arrived
		return
	case s != nil && time.Since(s.done) < n.life():
		return
	}
	if p.callers < atOnce {
		// It ends when the queue is empty; Close waits for it.
		if p.locker.spawn(p.work) {
			p.callers++
		} else if p.callers == 0 {
			return // a closed Locker calls nobody: others that look after the line will
		}
	}
	s = &pendingCall{line: n, note: note}
	if n.calls == nil {
		n.calls = make(map[string]*pendingCall)
	}
	n.calls[note] = s
	p.queue = append(p.queue, s)
}

// slowCall is how long a call may take for others to follow it while the Locker
// closes: what the last releases owe is called, but Close waits for no Redis
// that is away.
const slowCall = time.Second

// work makes calls until none is queued.
func (p *parking) work() {
	slow := false
	for {
		p.mu.Lock()
		if len(p.queue) == 0 || slow && p.locker.closing.Err() != nil {
			p.queue = nil
			p.callers--
			p.mu.Unlock()
			return
		}
		s := p.queue[0]
		p.queue = p.queue[1:]
		m, moot := s.line.lock, s.arrived && !s.calledAgain
		if s.arrived, s.calledAgain = false, false; moot {
			s.line.dropCall(s.note)
		}
		p.mu.Unlock()
		if !moot {
			began := time.Now()
			p.makeCall(m, s)
			slow = time.Since(began) > slowCall
		}
	}
}

// makeCall makes one call, and handles its fate.
func (p *parking) makeCall(m *Lock, s *pendingCall) {
	fate := inside.FateUnsure // also of a call that panicked: it is repeated
	p.withClaim(m, s.note, func(ctx context.Context) {
		p.locker.beside("Options.Call", func() { fate = p.caller(ctx, m.Key(), s.note) })
	})
	n, gone := s.line, false // gone: the note leaves its place among the called
	p.mu.Lock()
	if !s.arrived && fate == inside.FateComing {
		s.done = time.Now()
	} else {
		n.dropCall(s.note)
	}
	switch {
	case s.arrived:
		if s.calledAgain {
			p.queueCall(n, s.note)
		}
	case fate == inside.FateLater:
		// Beyond that many its call lapses, which comes to the same.
		gone = len(n.laters) < latersPerLook
		if n.laters == nil {
			n.laters = make(map[string]bool)
		}
		n.laters[s.note] = true
	case fate == inside.FateGone:
		gone = true
	}
	p.mu.Unlock()
	if gone {
		p.runCall(m, s.note, fate)
	}
}

// callTime is how long one process has a note to itself to call it. The Caller has the
// first half of it: the other half is for its last command to reach Redis.
const callTime = 4 * time.Second

// withClaim calls f, unless another process calls the same note now. Two processes could
// both find the work parked, and the slower one would run it again when it is done. A
// claim keeps them apart. When f took too long the claim is left to lapse: the last
// command of f may be on its way still.
func (p *parking) withClaim(m *Lock, note string, f func(context.Context)) {
	l := p.locker
	claim, holder := l.claim(m.Key()+":call:"+note), rand.Text()
	began := time.Now()
	// The context has no end, and neither command waits for enter: a Locker that is
	// being closed still makes the calls that its last releases owe.
	reply, err := l.conn.Run(context.Background(), claimTakeScript, claim.m.keys, []any{holder, "", callTime.Milliseconds()})
	var standing inside.Claimed
	if err == nil {
		standing, err = claim.taken(reply, holder)
	}
	if err != nil || standing.Holder != holder {
		l.log.Debug("lock: a call is not made now, and is tried again: another process makes it, or Redis did not answer", "lock", m.Key(), "note", printable.Text(note), "error", err)
		return
	}
	ctx, cancel := context.WithDeadline(l.closing, began.Add(callTime/2))
	defer cancel()
	f(ctx)
	if time.Since(began) > callTime/2 {
		return
	}
	if _, err := l.conn.Run(context.Background(), claimDropScript, claim.m.keys, []any{holder}); err != nil {
		l.log.Debug("lock: the claim to make a call could not be dropped, and lapses", "lock", m.Key(), "note", printable.Text(note), "error", err)
	}
}

// runCall runs the script call for one note. It ignores an error: the next look finds
// what is left to do.
func (p *parking) runCall(m *Lock, note string, fate inside.Fate) {
	sent := time.Now()
	reply, err := p.locker.conn.Run(context.Background(), callScript, m.keys, p.args(m, note, fate))
	if err != nil {
		return
	}
	if _, nothing := reply.(int64); nothing && !lookAgain(reply) {
		p.noteReply(m, sent)
	}
	p.handleCalls(m, reply)
}

func (p *parking) args(m *Lock, note string, fate inside.Fate) []any {
	inbound, life := p.wantedCalls(m)
	code := 0
	switch fate {
	case inside.FateUnsure, inside.FateComing:
	case inside.FateGone:
		code = 1
	case inside.FateLater:
		code = 2
	}
	return []any{m.slots(), inbound, life, note, code}
}
