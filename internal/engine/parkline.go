package engine

import (
	"time"
)

const (
	maxInbound = 64 // notes of a line that are called at once, at most
	// idleLimit is how long called work may take to come and find the lock idle. If it takes longer, inbound doubles.
	idleLimit = 3 * time.Millisecond
	// vainFloor is the share of inbound that is left at least when called work comes in vain, which takes one off, until
	// other called work finds the lock idle.
	vainFloor = 1.0 / 2
	// How long called work has to arrive before it is overdue. Work that took an hour does not make the line wait as long
	// for the next.
	minCallLife, maxCallLife = time.Second, time.Minute
	// notes of a line that are passed over between two checks, because their Caller answered FateLater or FateMissing
	maxNotNow = 64

	// checkEvery is the shortest interval between two checks of a line; twice that is the longest, unless there are more
	// than maxChecks lines: so many checks begin within checkEvery at most.
	checkEvery = 250 * time.Millisecond
	maxChecks  = 250
	maxStill   = 3 // how often the interval is doubled at most, for an ordered key whose next task does not come
)

// parkedLine is what a process knows of the parked work of one lock. The methods in this file are functions of what
// comes and of the time, see testdata/parked.txt; they know nothing of other lines, of goroutines or of Redis. After
// those that change parked, checking, checkAt or usedAt, parking calls plan. parking.mu guards it.
type parkedLine struct {
	key    string // never changes
	ref    Ref
	usedAt time.Time

	inbound     float64       // called and waiting work that the line is to have; a script gets its whole part
	inboundMost float64       // inbound when called work last found the lock idle
	vain        int           // called work that came in vain since other called work found the lock idle
	knowsVain   bool          // some has come in vain: inbound is near what the workers take, and grows by one
	avgReturn   time.Duration // from a call until the called work arrives, a moving average; 0: none was measured

	parked     bool      // by the last reply, something is parked or called
	seenAt     time.Time // when a reply last named parked work
	checking   bool      // a check is under way
	checkAt    time.Time // of the next check; zero: of none
	stillCount int       // checks of an ordered key, one after the other, that found nothing to do

	calls   map[string]call // by note; nil while empty
	counted int             // so many of them the server's workers know of; parking's
	notNow  map[string]bool // notes that cannot run before the next check, as their Caller answered; nil while empty

	// Where it stands: parking's.
	entry
	queue   []string // notes to call, in the order of the line
	calling bool     // a goroutine of makeCalls makes a call of this line
}

// call is one call of a note, from when it is queued until the note arrives.
type call struct {
	state callState
	since time.Time // with coming: when the Caller answered so
}

// callState is how far a call is. A call that is under way goes on when its note arrives, so that no second one runs
// beside it; what the Caller answers is ignored then.
type callState uint8

const (
	underWay callState = iota // queued; or the Caller is called, or Redis is told what it said
	arrived                   // so, and the note has arrived meanwhile
	again                     // so, and Redis has named it again since
	coming                    // the Caller answered FateComing
)

// callLife is how long called work has to arrive: twice the average, within bounds.
func (n *parkedLine) callLife(least time.Duration) time.Duration {
	return min(max(least, 2*n.avgReturn), maxCallLife)
}

func (n *parkedLine) setCall(note string, c call) {
	if n.calls == nil {
		n.calls = make(map[string]call)
	}
	n.calls[note] = c
}

func (n *parkedLine) dropCall(note string) {
	delete(n.calls, note)
	if len(n.calls) == 0 {
		n.calls = nil // there may be many lines, and an empty map takes memory
	}
}

// noteArrival ends the call of a note that has arrived, or is not called any more; one that is under way goes on.
func (n *parkedLine) noteArrival(note string) {
	delete(n.notNow, note)
	switch c, known := n.calls[note]; {
	case !known:
	case c.state == coming:
		n.dropCall(note)
	default:
		n.setCall(note, call{state: arrived})
	}
}

// beginCall reports whether the queued call of a note is to be made: the note may have arrived while it stood in the
// queue.
func (n *parkedLine) beginCall(note string) bool {
	if n.calls[note].state == arrived {
		n.dropCall(note)
		return false
	}
	n.setCall(note, call{})
	return true
}

// noteFate reports whether a note leaves its place among the called, after that answer of its Caller. Of one that is
// gone others may be, too: more are called at once.
func (n *parkedLine) noteFate(note string, fate Fate) bool {
	if n.calls[note].state != underWay {
		return false
	}
	if fate == FateGone || fate == FateMissing {
		n.inbound = min(4*n.inbound, maxInbound)
	}
	if fate == FateLater {
		n.passOver(note) // beyond maxNotNow the note stays called
	}
	return fate == FateGone || (fate == FateLater || fate == FateMissing) && len(n.notNow) <= maxNotNow
}

// passOver has this process not call the note before the next check.
func (n *parkedLine) passOver(note string) {
	if n.notNow == nil {
		n.notNow = make(map[string]bool)
	}
	n.notNow[note] = true
}

// endCall ends a call with the Caller's answer. It reports whether the note is to be called again.
func (n *parkedLine) endCall(note string, fate Fate, now time.Time) (callAgain bool) {
	state := n.calls[note].state
	if state == underWay && fate == FateComing {
		n.setCall(note, call{state: coming, since: now})
		return false
	}
	n.dropCall(note)
	return state == again
}

// noteReturned notes that a note which was parked came back, so long after it was called; below 0: it was not. It holds
// the lock if that is its own, or waits in a worker; others more are parked.
func (n *parkedLine) noteReturned(note string, sinceCall time.Duration, own bool, others int) {
	n.noteArrival(note)
	if sinceCall < 0 {
		return
	}
	if n.avgReturn == 0 {
		n.avgReturn = max(sinceCall, 1)
	} else {
		n.avgReturn += (sinceCall - n.avgReturn) / 8
	}
	if !own || sinceCall <= idleLimit || others == 0 {
		return
	}
	// It found the lock idle while other work was parked, so more is to be called at once. If work came in vain since the
	// last time, more of it would not help: it takes a while to arrive, and then it arrives together.
	switch {
	case n.vain > 0:
	case n.knowsVain:
		n.inbound = min(n.inbound+max(1, n.inbound/4), maxInbound)
	default:
		n.inbound = min(2*n.inbound, maxInbound)
	}
	n.vain, n.inboundMost = 0, n.inbound
}

// noteParked notes that a note is parked. If it had been called, the call was in vain. So it was if a task in order
// came, waited in its worker, and parks for another one.
func (n *parkedLine) noteParked(note string, called bool) {
	if called || n.ref.Ordered {
		n.noteArrival(note)
		n.vain, n.knowsVain = n.vain+1, true
		n.inbound = max(1, n.inboundMost*vainFloor, n.inbound-1)
	}
}

// noteNamed takes the notes whose turn has come, of the reply of a release or a check, and returns those that this
// process is to call: but those that are queued, under way or coming, and those that cannot run now. One that is coming
// is called again after a sixth of life: it may have ended unseen before it came to the lock, which its Caller finds.
// While the lock is paused it calls none: a later check does, when the lock is resumed.
func (n *parkedLine) noteNamed(notes []string, paused bool, life time.Duration, now time.Time) (toCall []string) {
	named := make(map[string]bool, len(notes))
	for _, note := range notes {
		named[note] = true
		c, known := n.calls[note]
		switch {
		case paused || n.notNow[note]:
		case !known, c.state == coming && now.Sub(c.since) >= life/6:
			toCall = append(toCall, note)
		case c.state == arrived:
			n.setCall(note, call{state: again})
		}
	}
	for note, c := range n.calls {
		if c.state == coming && !named[note] {
			n.noteArrival(note) // it arrived, at this process or another
		}
	}
	return toCall
}

// interval is the shortest until the next check, with so many lines that have parked work. It doubles with each check
// of an ordered key that found nothing to do, a few times.
func (n *parkedLine) interval(lines int) time.Duration {
	return checkEvery * time.Duration(1+lines/maxChecks) << min(n.stillCount, maxStill)
}

// planCheck plans the next check for at, unless one is planned or under way; and, if that is sooner, for the end of the
// first holder's lease or of the gate, in that time: so that a holder that died is noticed at once. Below 0: it is not
// known.
func (n *parkedLine) planCheck(at time.Time, opens time.Duration, now time.Time) {
	if n.checkAt.IsZero() {
		n.checkAt = at
	}
	if end := now.Add(opens + time.Millisecond); opens >= 0 && n.checkAt.After(end) {
		n.checkAt = end
	}
}

func (n *parkedLine) beginCheck() { n.checking, n.checkAt, n.notNow = true, time.Time{}, nil }

// endCheck ends a check. still: it is an ordered key that is free, and whose next task is away.
func (n *parkedLine) endCheck(still bool) {
	n.checking = false
	if n.stillCount++; !still {
		n.stillCount = 0
	}
}

// noteNothing takes a reply, to a command sent at sent, that nothing is parked or called: checks end. It reports false
// if a reply that came after sent named parked work: that command may have run later.
func (n *parkedLine) noteNothing(sent time.Time) bool {
	if !n.parked || !n.seenAt.Before(sent) {
		return false
	}
	n.parked, n.checkAt = false, time.Time{}
	for note := range n.calls {
		n.noteArrival(note)
	}
	return true
}
