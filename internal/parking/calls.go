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

// queueCall queues a call. Callers hold mu.
func (p *Parking) queueCall(n *Line, note string) {
	if p.callers < MaxCallers && len(n.queue) == 0 && !n.calling {
		// It ends when the queue is empty; Close waits for it.
		if p.life.Spawn(p.makeCalls) {
			p.callers++
		} else if p.callers == 0 {
			return // this Locker is closed: another one that checks the line calls
		}
	}
	n.set(note, call{})
	if n.queue = append(n.queue, note); len(n.queue) == 1 && !n.calling {
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
		note := n.queue[0]
		n.queue, n.calling = n.queue[1:], true
		m, begins := n.lock, n.beginCall(note)
		p.mu.Unlock()
		if begins {
			began := time.Now()
			p.makeCall(n, m, note)
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
func (p *Parking) makeCall(n *Line, m Lock, note string) {
	fate := inside.FateUnsure // stays so if the Caller panics: the call is repeated
	p.withClaim(m, note, func(ctx context.Context) {
		life.CallUser(p.log, "Options.Call", func() { fate = p.caller(ctx, m.Key(), note) })
		p.mu.Lock()
		leaves := n.noteFate(note, fate)
		p.mu.Unlock()
		if leaves {
			// Within the claim, and while this call is under way: so neither another process nor this
			// one calls the note once more before it has left.
			p.runCall(m, note, fate)
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.endCall(note, fate, time.Now()) {
		p.queueCall(n, note)
	}
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
