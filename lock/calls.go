package lock

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// maxCallers is how many calls are made at once.
	maxCallers = 16
	// maxNotNow is how many notes of a line go to its end between two checks, because their
	// Caller answered FateLater.
	maxNotNow = 64
)

// pendingCall is one call of a note, from when it is queued until the note arrives. Its
// fields belong to parking.mu.
type pendingCall struct {
	line *parkedLine
	note string
	// comingSince is when the Caller answered FateComing; zero: the call is queued or under way.
	comingSince time.Time
	arrived     bool // the note arrived meanwhile: the Caller's result is stale
	calledAgain bool // Redis named the note again after it arrived
}

// noteArrival ends the call of note, which has arrived or is not called any more. A call
// under way goes on, so that no second one runs beside it; its result is ignored. Callers
// hold mu.
func (n *parkedLine) noteArrival(note string) {
	delete(n.notNow, note)
	switch s := n.calls[note]; {
	case s == nil:
	case s.comingSince.IsZero():
		s.arrived, s.calledAgain = true, false
	default:
		n.dropCall(note)
	}
}

// dropCall forgets the call of note. Callers hold mu.
func (n *parkedLine) dropCall(note string) {
	delete(n.calls, note)
	if len(n.calls) == 0 {
		n.calls = nil // there may be many lines, and an empty map takes memory
	}
}

// queueCall queues a call, unless one is queued, under way or known to be coming.
// Callers hold mu.
func (p *parking) queueCall(n *parkedLine, note string) {
	s := n.calls[note]
	switch {
	case p.caller == nil || n.notNow[note]:
		return
	case s != nil && s.comingSince.IsZero():
		s.calledAgain = s.arrived
		return
	case s != nil && time.Since(s.comingSince) < n.callLife():
		return
	}
	if p.callers < maxCallers {
		// It ends when the queue is empty; Close waits for it.
		if p.locker.spawn(p.makeCalls) {
			p.callers++
		} else if p.callers == 0 {
			return // this Locker is closed: another one that checks the line calls
		}
	}
	s = &pendingCall{line: n, note: note}
	if n.calls == nil {
		n.calls = make(map[string]*pendingCall)
	}
	n.calls[note] = s
	p.queue = append(p.queue, s)
}

// slowCall is how long a call may take so that the next one is still made while the Locker
// closes. Close makes the calls that its last releases named, but does not wait for a Redis
// that does not answer.
const slowCall = time.Second

// makeCalls makes calls until the queue is empty. Up to maxCallers goroutines run it.
func (p *parking) makeCalls() {
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

// makeCall calls the Caller for one note, and handles its answer.
func (p *parking) makeCall(m *Lock, s *pendingCall) {
	fate := inside.FateUnsure // stays so if the Caller panics: the call is repeated
	p.withClaim(m, s.note, func(ctx context.Context) {
		p.locker.callUserFunc("Options.Call", func() { fate = p.caller(ctx, m.Key(), s.note) })
	})
	n, gone := s.line, false // gone: the note leaves its place among the called
	p.mu.Lock()
	if !s.arrived && fate == inside.FateComing {
		s.comingSince = time.Now()
	} else {
		n.dropCall(s.note)
	}
	switch {
	case s.arrived:
		if s.calledAgain {
			p.queueCall(n, s.note)
		}
	case fate == inside.FateLater:
		// Beyond maxNotNow the note stays called until its call lapses, and is passed over too.
		gone = len(n.notNow) < maxNotNow
		if n.notNow == nil {
			n.notNow = make(map[string]bool)
		}
		n.notNow[s.note] = true
	case fate == inside.FateGone:
		gone = true
	}
	p.mu.Unlock()
	if gone {
		p.runCall(m, s.note, fate)
	}
}

// callTime is how long the claim of a process to call a note lasts. The Caller must end
// within the first half; the other half is for its last command to reach Redis.
const callTime = 4 * time.Second

// withClaim runs f, unless another process calls the same note now. Without the claim two
// processes could both find the work parked, and the slower one would run it a second time
// after it is done. If f took longer than half of callTime, the claim is not dropped but
// lapses: the last command of f may not have reached Redis yet.
func (p *parking) withClaim(m *Lock, note string, f func(context.Context)) {
	l := p.locker
	claim, holder := l.claim(m.Key()+":call:"+note), rand.Text()
	began := time.Now()
	// Neither command calls enter, and the context has no end: a Locker that is being closed
	// still makes the calls that its last releases named.
	reply, err := l.conn.Run(context.Background(), claimTakeScript, claim.m.keys, []any{holder, "", callTime.Milliseconds()})
	var standing inside.Claimed
	if err == nil {
		standing, err = claim.taken(reply, holder)
	}
	if err != nil || standing.Holder != holder {
		l.log.Debug("lock: parked work is not called now, since another process calls it or Redis did not answer; a later check tries again", "lock", m.Key(), "note", printable.Text(note), "error", err)
		return
	}
	ctx, cancel := context.WithDeadline(l.closing, began.Add(callTime/2))
	defer cancel()
	f(ctx)
	if time.Since(began) > callTime/2 {
		return
	}
	if _, err := l.conn.Run(context.Background(), claimDropScript, claim.m.keys, []any{holder}); err != nil {
		l.log.Debug("lock: the claim to call parked work could not be dropped; it lapses within 4s", "lock", m.Key(), "note", printable.Text(note), "error", err)
	}
}

// runCall runs the script call, which removes note from the called or, after FateLater,
// moves it to the end of the line. It ignores an error: the next check tries again.
func (p *parking) runCall(m *Lock, note string, fate inside.Fate) {
	sent := time.Now()
	reply, err := p.locker.conn.Run(context.Background(), callScript, m.keys, p.args(m, note, fate))
	if err != nil {
		return
	}
	if _, nothing := reply.(int64); nothing && !mustPruneAgain(reply) {
		p.noteNothingParked(m, sent)
	}
	p.handleCalls(m, reply)
}

// args returns the arguments of the script call. An empty note only checks the line.
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
