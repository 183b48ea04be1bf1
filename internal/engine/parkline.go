package engine

import (
	"time"

	"github.com/automutex/automutex/internal/engine/workers"
)

const (
	maxInbound = 64 // called at once of one line; more for free slots, see calls.lua
	// called work that takes longer to come and finds the lock idle doubles inbound
	idleLimit = 3 * time.Millisecond
	// the share of inbound that is left at least, when work comes in vain, until other work finds the lock idle
	vainFloor = 1.0 / 2
	// How long called work has to arrive, within bounds: an hour once does not make the line wait as long again.
	minCallLife, maxCallLife = time.Second, time.Minute
	// notes that FateLater sends to the end of the line between two checks
	maxNotNow = 64

	// checkEvery is the shortest interval between two checks of a line, and half of the longest, up to maxChecks
	// lines: so many checks begin within it.
	checkEvery = 250 * time.Millisecond
	maxChecks  = 250
	maxStill   = 3 // doublings of the interval at most, for an ordered key whose next task does not come
)

// parkedLine is what a process knows of the parked work of one lock. The methods here are functions of what comes and
// of the time, see testdata/parked.txt. After those that change parked, checking, checkAt or usedAt, parking calls
// plan. parking.mu guards it.
type parkedLine struct {
	key    string // never changes
	ref    Ref
	usedAt time.Time

	inbound     float64       // called and waiting work that it is to have; scripts get its whole part
	inboundMost float64       // inbound when called work last found the lock idle
	vain        int           // called work that came in vain since other called work found the lock idle
	knowsVain   bool          // inbound is near what the workers take, and grows by one
	avgReturn   time.Duration // from call to arrival, a moving average; 0: none yet

	parked     bool      // by the last reply, something is parked or called
	seenAt     time.Time // when a reply last named parked work
	checking   bool      // a check is under way
	checkAt    time.Time // of the next check; zero: of none
	stillCount int       // of an ordered key, in a row, that found nothing to do
	paced      bool      // the lock may have an operator's rate

	calls   map[string]call // by note; nil while empty
	counted int             // that the server's workers know of
	notNow  map[string]bool // notes whose Caller answered FateLater or FateMissing since the last check; nil while empty

	// These are parking's.
	entry
	queue   []string // notes to call, in the order of the line
	calling bool     // a goroutine of makeCalls makes a call of this line
}

// call is one call of a note, from when it is queued until the note arrives.
type call struct {
	state callState
	since time.Time // with coming: when the Caller answered so
}

// A call under way goes on when its note arrives, so that no second one runs beside it; its answer is ignored then.
type callState uint8

const (
	underWay callState = iota // queued; or the Caller is called, or Redis is told what it said
	arrived                   // so, and the note has arrived meanwhile
	again                     // so, and Redis has named it again since
	coming                    // the Caller answered FateComing
)

func (n *parkedLine) callLife(least time.Duration) time.Duration {
	return min(max(least, 2*n.avgReturn), maxCallLife)
}

func (n *parkedLine) ready(is bool) { n.ref.Lender.Parked(n.key, n.ref.Limit, is) }

func (n *parkedLine) setCall(note string, c call) {
	if n.calls == nil {
		n.calls = make(map[string]call)
	}
	n.calls[note] = c
}

func (n *parkedLine) dropCall(note string) {
	delete(n.calls, note)
	if len(n.calls) == 0 {
		n.calls = nil // an empty map takes memory
	}
}

// sawArrival ends the call of a note that arrived, or is not called any more; one under way goes on.
func (n *parkedLine) sawArrival(note string) {
	delete(n.notNow, note)
	switch c, known := n.calls[note]; {
	case !known:
	case c.state == coming:
		n.dropCall(note)
	default:
		n.setCall(note, call{state: arrived})
	}
}

// beginCall reports whether a queued call is to be made: the note may have arrived.
func (n *parkedLine) beginCall(note string) bool {
	if n.calls[note].state == arrived {
		n.dropCall(note)
		return false
	}
	n.setCall(note, call{})
	return true
}

// sawFate reports whether the answer takes a note from its place. If one is gone others may be: more are called.
func (n *parkedLine) sawFate(note string, fate Fate) bool {
	switch {
	case n.calls[note].state != underWay || fate == FateUnsure || fate == FateComing:
		return false
	case fate == FateGone:
		n.inbound = min(4*n.inbound, maxInbound)
		return true
	case n.notNow == nil:
		n.notNow = make(map[string]bool)
	}
	n.notNow[note] = true
	return fate == FateMissing || len(n.notNow) <= maxNotNow // beyond, the note stays called
}

func (n *parkedLine) endCall(note string, fate Fate, now time.Time) (callAgain bool) {
	state := n.calls[note].state
	if state == underWay && fate == FateComing {
		n.setCall(note, call{state: coming, since: now})
		return false
	}
	n.dropCall(note)
	return state == again
}

// sawReturned: a parked note came back, so long after its call; below 0: none. own: it holds the lock, or waits in a
// worker; others more are parked.
func (n *parkedLine) sawReturned(note string, sinceCall time.Duration, own bool, others int) {
	n.sawArrival(note)
	if sinceCall < 0 {
		return
	}
	n.avgReturn = workers.Average(n.avgReturn, sinceCall)
	if !own || sinceCall <= idleLimit || others == 0 {
		return
	}
	// It found the lock idle while work was parked, so more is called at once, unless some came in vain since the last
	// time: that takes a while to arrive, and arrives together.
	most := float64(maxInbound)
	if l := n.ref.Lender; l != nil { // who borrows always finds the lock idle
		most = min(most, l.Most())
	}
	switch {
	case n.vain > 0:
	case n.knowsVain:
		n.inbound = min(n.inbound+max(1, n.inbound/4), most)
	default:
		n.inbound = min(2*n.inbound, most)
	}
	n.vain, n.inboundMost = 0, n.inbound
}

// sawParked: a note is parked. A call of it was in vain; so it was if a task in order came, and parks for another.
func (n *parkedLine) sawParked(note string, called bool) {
	if called || n.ref.Ordered {
		n.sawArrival(note)
		n.vain, n.knowsVain = n.vain+1, true
		n.inbound = max(1, n.inboundMost*vainFloor, n.inbound-1)
	}
}

// sawNamed takes in the notes whose turn has come, and returns those to call: not what is queued, under way, coming or
// cannot run now. One that is coming is called again after a sixth of life: it may have ended unseen. While the lock
// is paused it calls none: a later check does.
func (n *parkedLine) sawNamed(notes []string, paused bool, life time.Duration, now time.Time) (toCall []string) {
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
			n.sawArrival(note) // it arrived, at this process or another
		}
	}
	return toCall
}

// interval is the shortest until the next check; lines: those with parked work.
func (n *parkedLine) interval(lines int) time.Duration {
	return checkEvery * time.Duration(1+lines/maxChecks) << min(n.stillCount, maxStill)
}

// planCheck plans the next check for at, unless one is planned or under way; or sooner, when the first lease ends or
// the gate opens: so a dead holder is noticed at once. Below 0: not known.
func (n *parkedLine) planCheck(at time.Time, opens time.Duration, now time.Time) {
	if n.checkAt.IsZero() {
		n.checkAt = at
	}
	if end := now.Add(opens + time.Millisecond); opens >= 0 && n.checkAt.After(end) {
		n.checkAt = end
	}
}

func (n *parkedLine) beginCheck() { n.checking, n.checkAt, n.notNow = true, time.Time{}, nil }

// still: it is an ordered key that is free, and whose next task is away.
func (n *parkedLine) endCheck(still bool) {
	n.checking = false
	if n.stillCount++; !still {
		n.stillCount = 0
	}
}

// sawNothing takes in a reply that nothing is parked: checks end. It reports false if a reply that came after sent
// named work.
func (n *parkedLine) sawNothing(sent time.Time) bool {
	if !n.parked || !n.seenAt.Before(sent) {
		return false
	}
	n.parked, n.checkAt = false, time.Time{}
	for note := range n.calls {
		n.sawArrival(note)
	}
	return true
}
