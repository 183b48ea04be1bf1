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

// summons is one call. Its fields belong to parking.mu.
type summons struct {
	line *parkedLine
	note string
	done time.Time // since when it is known to be coming; zero: it is queued or under way
	came bool      // meanwhile it came: what the Caller says is of the past
	anew bool      // and was called anew
}

// answered notes that note is called no more. A call that is under way goes on:
// there is no second one beside it. Callers hold mu.
func (n *parkedLine) answered(note string) {
	delete(n.laters, note)
	switch s := n.calls[note]; {
	case s == nil:
	case s.done.IsZero():
		s.came, s.anew = true, false
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

// summon queues a call, unless one is queued, under way or known to be coming.
// Callers hold mu.
func (p *parking) summon(n *parkedLine, note string) {
	s := n.calls[note]
	switch {
	case p.caller == nil || n.laters[note]:
		return
	case s != nil && s.done.IsZero():
		s.anew = s.came
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
	s = &summons{line: n, note: note}
	if n.calls == nil {
		n.calls = make(map[string]*summons)
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
		m, moot := s.line.lock, s.came && !s.anew
		if s.came, s.anew = false, false; moot {
			s.line.dropCall(s.note)
		}
		p.mu.Unlock()
		if !moot {
			began := time.Now()
			p.call(m, s)
			slow = time.Since(began) > slowCall
		}
	}
}

// call has the Caller make one call, and sees to its fate.
func (p *parking) call(m *Lock, s *summons) {
	fate := inside.FateUnsure // also of a call that panicked: it is repeated
	p.alone(m, s.note, func(ctx context.Context) {
		p.locker.beside("Options.Call", func() { fate = p.caller(ctx, m.Key(), s.note) })
	})
	n, tells := s.line, false
	p.mu.Lock()
	if !s.came && fate == inside.FateComing {
		s.done = time.Now()
	} else {
		n.dropCall(s.note)
	}
	switch {
	case s.came:
		if s.anew {
			p.summon(n, s.note)
		}
	case fate == inside.FateLater:
		// Beyond that many its call lapses, which comes to the same.
		tells = len(n.laters) < latersPerLook
		if n.laters == nil {
			n.laters = make(map[string]bool)
		}
		n.laters[s.note] = true
	case fate == inside.FateGone:
		tells = true
	}
	p.mu.Unlock()
	if tells {
		p.tell(m, s.note, fate)
	}
}

// callTime is how long one process has a note to itself to call it. The Caller has the
// first half of it: the other half is for its last command to reach Redis.
const callTime = 4 * time.Second

// alone calls f, unless another process calls the same note now. Two of them could both
// find the work parked, and the slower one run it again when it is done. What keeps them
// apart is a claim. It is left to lapse when f took too long: its last command may be on
// its way still.
func (p *parking) alone(m *Lock, note string, f func(context.Context)) {
	l := p.locker
	claim, holder := l.claim(m.Key()+":call:"+note), rand.Text()
	began := time.Now()
	// The context has no end, and neither command waits for enter: a Locker that is
	// being closed still makes the calls that its last releases owe.
	reply, err := l.conn.run(context.Background(), claimTakeScript, claim.m.keys, []any{holder, "", callTime.Milliseconds()})
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
	if _, err := l.conn.run(context.Background(), claimDropScript, claim.m.keys, []any{holder}); err != nil {
		l.log.Debug("lock: the claim to make a call could not be dropped, and lapses", "lock", m.Key(), "note", printable.Text(note), "error", err)
	}
}

// tell runs call for one note. An error is nothing to act on: the next look
// finds what is left to do.
func (p *parking) tell(m *Lock, note string, fate inside.Fate) {
	sent := time.Now()
	reply, err := p.locker.conn.run(context.Background(), callScript, m.keys, p.args(m, note, fate))
	if err != nil {
		return
	}
	if _, nothing := reply.(int64); nothing && !lookAgain(reply) {
		p.noteReply(m, sent)
	}
	p.heard(m, reply)
}

func (p *parking) args(m *Lock, note string, fate inside.Fate) []any {
	inbound, life := p.wanted(m)
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
