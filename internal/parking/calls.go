package parking

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/wire"
)

const (
	// MaxCallers is how many calls are made at once, each of another line: the calls of one
	// line are made one after the other, in the order of the line.
	MaxCallers = 16
	// MaxNotNow is how many notes of a line go to its end between two checks, because their
	// Caller answered FateLater.
	MaxNotNow = 64
)

// pendingCall is one call of a note, from when it is queued until the note arrives. Its
// fields belong to parking.mu.
type pendingCall struct {
	line *Line
	note string
	// comingSince is when the Caller answered FateComing; zero: the call is queued or under way.
	comingSince time.Time
	arrived     bool // the note arrived meanwhile: the Caller's result is stale
	calledAgain bool // Redis named the note again after it arrived
}

// noteArrival ends the call of note, which has arrived or is not called any more. A call
// under way goes on, so that no second one runs beside it; its result is ignored. Callers
// hold mu.
func (n *Line) noteArrival(note string) {
	delete(n.notNow, note)
	switch s := n.Calls[note]; {
	case s == nil:
	case s.comingSince.IsZero():
		s.arrived, s.calledAgain = true, false
	default:
		n.dropCall(note)
	}
}

// dropCall forgets the call of note. Callers hold mu.
func (n *Line) dropCall(note string) {
	delete(n.Calls, note)
	if len(n.Calls) == 0 {
		n.Calls = nil // there may be many lines, and an empty map takes memory
	}
}

// queueCall queues a call, unless one is queued, under way or known to be coming.
// Callers hold mu.
func (p *Parking) queueCall(n *Line, note string) {
	s := n.Calls[note]
	switch {
	case p.caller == nil || n.notNow[note]:
		return
	case s != nil && s.comingSince.IsZero():
		s.calledAgain = s.arrived
		return
	case s != nil && time.Since(s.comingSince) < p.CallLife(n):
		return
	}
	if p.callers < MaxCallers && len(n.queue) == 0 && !n.calling {
		// It ends when the queue is empty; Close waits for it.
		if p.life.Spawn(p.makeCalls) {
			p.callers++
		} else if p.callers == 0 {
			return // this Locker is closed: another one that checks the line calls
		}
	}
	s = &pendingCall{line: n, note: note}
	if n.Calls == nil {
		n.Calls = make(map[string]*pendingCall)
	}
	n.Calls[note] = s
	if n.queue = append(n.queue, s); len(n.queue) == 1 && !n.calling {
		p.queue = append(p.queue, n)
	}
}

// slowCall is how long a call may take so that the next one is still made while the Locker
// closes. Close makes the calls that its last releases named, but does not wait for a Redis
// that does not answer.
const slowCall = time.Second

// makeCalls makes the next call of each queued line in turn until the queue is empty. Up to
// MaxCallers goroutines run it. A line is not queued while one of them makes a call of it.
func (p *Parking) makeCalls() {
	slow := false
	for {
		p.mu.Lock()
		if len(p.queue) == 0 || slow && p.life.Closing.Err() != nil {
			for _, n := range p.queue {
				n.queue = nil
			}
			p.queue = nil
			p.callers--
			p.mu.Unlock()
			return
		}
		n := p.queue[0]
		p.queue = p.queue[1:]
		s := n.queue[0]
		n.queue, n.calling = n.queue[1:], true
		m, moot := n.lock, s.arrived && !s.calledAgain
		if s.arrived, s.calledAgain = false, false; moot {
			s.line.dropCall(s.note)
		}
		p.mu.Unlock()
		if !moot {
			began := time.Now()
			p.makeCall(m, s)
			slow = time.Since(began) > slowCall
		}
		p.mu.Lock()
		if n.calling = false; len(n.queue) > 0 {
			p.queue = append(p.queue, n)
		} else {
			n.queue = nil
		}
		p.mu.Unlock()
	}
}

// makeCall calls the Caller for one note, and handles its answer.
func (p *Parking) makeCall(m Lock, s *pendingCall) {
	fate := inside.FateUnsure // stays so if the Caller panics: the call is repeated
	p.withClaim(m, s.note, func(ctx context.Context) {
		life.CallUser(p.log, "Options.Call", func() { fate = p.caller(ctx, m.Key(), s.note) })
		if p.leaves(s, fate) {
			// Within the claim, and while this call is known: so neither another process nor this
			// one calls the note once more before it has left.
			p.runCall(m, s.note, fate)
		}
	})
	n := s.line
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.arrived && fate == inside.FateComing {
		s.comingSince = time.Now()
		return
	}
	n.dropCall(s.note)
	if s.calledAgain {
		p.queueCall(n, s.note)
	}
}

// leaves reports whether the note of s leaves its place among the called, after that answer of its Caller.
func (p *Parking) leaves(s *pendingCall, fate inside.Fate) bool {
	n := s.line
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.arrived || fate != inside.FateLater {
		return !s.arrived && fate == inside.FateGone
	}
	// Beyond MaxNotNow the note stays called until its call lapses, and is passed over too.
	room := len(n.notNow) < MaxNotNow
	if n.notNow == nil {
		n.notNow = make(map[string]bool)
	}
	n.notNow[s.note] = true
	return room
}

// CallTime is how long the claim of a process to call a note lasts. The Caller must end
// within the first half; the other half is for its last command to reach Redis.
const CallTime = 4 * time.Second

// withClaim runs f, unless another process calls the same note now. Without the claim two
// processes could both find the work parked, and the slower one would run it a second time
// after it is done. If f took longer than half of CallTime, the claim is not dropped but
// lapses: the last command of f may not have reached Redis yet.
func (p *Parking) withClaim(m Lock, note string, f func(context.Context)) {
	claim, holder := []string{claims.Key(m.Key() + ":call:" + note)}, rand.Text()
	began := time.Now()
	// Neither command calls enter, and the context has no end: a Locker that is being closed
	// still makes the calls that its last releases named.
	reply, err := p.conn.Run(context.Background(), wire.ClaimTakeScript, claim, wire.ClaimTakeArgs(holder, "", CallTime))
	var standing inside.Claimed
	if err == nil {
		standing, err = wire.ParseClaimTake(reply, holder)
	}
	if err != nil || standing.Holder != holder {
		p.log.Debug("lock: parked work is not called now, since another process calls it or Redis did not answer; a later check tries again", "lock", m.Key(), "note", printable.Text(note), "error", err)
		return
	}
	ctx, cancel := context.WithDeadline(p.life.Closing, began.Add(CallTime/2))
	defer cancel()
	f(ctx)
	if time.Since(began) > CallTime/2 {
		return
	}
	if _, err := p.conn.Run(context.Background(), wire.ClaimDropScript, claim, wire.ClaimDropArgs(holder)); err != nil {
		p.log.Debug("lock: the claim to call parked work could not be dropped; it lapses within 4s", "lock", m.Key(), "note", printable.Text(note), "error", err)
	}
}

// runCall runs the script call, which removes note from the called or, after FateLater,
// moves it to the end of the line. It ignores an error: the next check tries again.
func (p *Parking) runCall(m Lock, note string, fate inside.Fate) {
	sent := time.Now()
	reply, err := p.conn.Run(context.Background(), wire.CallScript, m.Keys, p.args(m, note, fate))
	if err != nil {
		return
	}
	if _, nothing := reply.(int64); nothing {
		p.NoteNothingParked(m, sent)
	}
	p.HandleCalls(m, reply)
}

// args returns the arguments of the script call. An empty note only checks the line.
func (p *Parking) args(m Lock, note string, fate inside.Fate) []any {
	inbound, callLife := p.WantedCalls(m)
	return wire.CallArgs(p.slots(m), inbound, callLife, note, fate)
}
