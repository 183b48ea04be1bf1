package parking

import (
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// Line is what a Locker knows of the parked work of one lock. The methods in this file are functions of what
// comes and of the time, see testdata/lines.txt; they know nothing of other lines, of goroutines or of Redis. After those that
// change Parked, Checking, CheckAt or UsedAt, Parking calls reschedule.
// Parking.mu guards it.
type Line struct {
	key    string // never changed
	lock   Lock
	UsedAt time.Time

	// How much work to call, and how long it takes to come.
	Inbound     float64 // called and waiting work that the line is to have; a script gets its whole part
	InboundMost float64 // Inbound when other called work last found the lock idle
	vain        int     // called work that found the lock busy since other called work found it idle
	avgHeld     average // how long the lock is held
	AvgReturn   average // from a call until the called work arrives

	// When to check.
	Parked       bool      // by the last reply, something is parked or called
	parkedSeenAt time.Time // when a reply last named parked work
	Checking     bool      // a check is under way
	CheckAt      time.Time // of the next check; zero: of none
	atDeadline   bool      // CheckAt is the first holder's deadline: an earlier check finds nothing
	still        int       // checks of an ordered key, one after the other, that found nothing to do

	// Whom this process calls.
	Calls  map[string]call // by note; nil while empty
	notNow map[string]bool // notes whose Caller answered FateLater since the last check; nil while empty

	// Where it stands: Parking's.
	heap    *lineHeap // the heap that it is in; nil while checking
	place   int       // index in that heap
	queue   []string  // notes to call, in the order of the line; nil while empty
	calling bool      // a goroutine of makeCalls makes a call of this line
}

// call is one call of a note, from when it is queued until the note arrives.
type call struct {
	state callState
	since time.Time // with coming: when the Caller answered so
}

// callState is how far a call is. A call that is under way goes on when its note arrives, so that no
// second one runs beside it; what the Caller answers is ignored then.
type callState uint8

const (
	underWay callState = iota // queued; or the Caller is called, or Redis is told what it said
	arrived                   // so, and the note has arrived meanwhile
	again                     // so, and Redis has named it again since
	coming                    // the Caller answered FateComing
)

// average is a moving average; zero: nothing was measured.
type average time.Duration

func (a *average) add(d time.Duration) {
	if *a == 0 {
		*a = average(max(d, 1))
		return
	}
	*a += (average(d) - *a) / 8
}

// callLife is how long called work has to arrive: twice the average, within bounds.
func (n *Line) callLife(least time.Duration) time.Duration {
	return min(max(least, 2*time.Duration(n.AvgReturn)), maxCallLife)
}

// set notes the state of a call; drop forgets it.
func (n *Line) set(note string, c call) {
	if n.Calls == nil {
		n.Calls = make(map[string]call)
	}
	n.Calls[note] = c
}

func (n *Line) drop(note string) {
	delete(n.Calls, note)
	if len(n.Calls) == 0 {
		n.Calls = nil // there may be many lines, and an empty map takes memory
	}
}

// mayCall reports whether a note that Redis names is to be queued for a call: unless one is queued or
// under way, or the note is known to be coming, or cannot run now.
func (n *Line) mayCall(note string, life time.Duration, now time.Time) bool {
	c, known := n.Calls[note]
	switch {
	case n.notNow[note]:
		return false
	case !known:
		return true
	case c.state == arrived:
		n.set(note, call{state: again})
	}
	return c.state == coming && now.Sub(c.since) >= life
}

// noteArrival ends the call of a note that has arrived, or is not called any more; one that is under way goes on.
func (n *Line) noteArrival(note string) {
	delete(n.notNow, note)
	switch c, known := n.Calls[note]; {
	case !known:
	case c.state == coming:
		n.drop(note)
	default:
		n.set(note, call{state: arrived})
	}
}

// beginCall reports whether the queued call of a note is to be made: the note may have arrived while it stood
// in the queue.
func (n *Line) beginCall(note string) bool {
	if n.Calls[note].state == arrived {
		n.drop(note)
		return false
	}
	n.set(note, call{})
	return true
}

// noteFate reports whether a note leaves its place among the called, after that answer of its Caller.
func (n *Line) noteFate(note string, fate inside.Fate) bool {
	if n.Calls[note].state != underWay {
		return false
	}
	if fate != inside.FateLater {
		return fate == inside.FateGone
	}
	// Beyond MaxNotNow the note stays called until its call lapses, and is passed over too.
	room := len(n.notNow) < MaxNotNow
	if n.notNow == nil {
		n.notNow = make(map[string]bool)
	}
	n.notNow[note] = true
	return room
}

// endCall ends a call with the Caller's answer. It reports whether the note is to be called again.
func (n *Line) endCall(note string, fate inside.Fate, now time.Time) (callAgain bool) {
	state := n.Calls[note].state
	if state == underWay && fate == inside.FateComing {
		n.set(note, call{state: coming, since: now})
		return false
	}
	n.drop(note)
	return state == again
}

// noteReturned takes the reply to an ask whose note was parked before, and is not now. It returns for how long it was,
// and whether a Caller had called the note.
func (n *Line) noteReturned(note string, a wire.Answer) (parked time.Duration, called bool) {
	n.noteArrival(note)
	parked = max(a.InLine, 1) // Redis counts whole milliseconds; 0 means never
	if a.SinceCall < 0 {
		return parked, false
	}
	n.AvgReturn.add(a.SinceCall)
	if a.Yours && a.SlotFreeFor > SlotFreeLimit && a.OthersParked > 0 {
		n.noteIdle()
	}
	return parked, true
}

// noteIdle notes that called work found the lock idle while other work was parked: more is to be
// called at once. If work was called in vain since the last time, more of it would not help: it
// takes a while to arrive, and then it arrives together.
func (n *Line) noteIdle() {
	if n.vain == 0 {
		n.Inbound = min(2*n.Inbound, MaxInbound)
	}
	n.vain, n.InboundMost = 0, n.Inbound
}

// noteParked takes the reply that a note is parked. If it had been called, the call was in vain. So it was if
// a task in order came, waited in its worker, and parks for another one.
func (n *Line) noteParked(note string, a wire.Answer, called bool) {
	if called || a.SinceCall >= 0 || n.lock.Ordered {
		n.noteArrival(note)
		n.vain++
		n.Inbound = max(1, n.InboundMost*VainCallFloor, n.Inbound-1)
	}
}

// noteNamed takes the notes whose turn has come, of the reply of a release or a check, and returns those that
// this process is to call. While the lock is paused it calls none: a later check does, when the lock
// is resumed.
func (n *Line) noteNamed(notes []string, paused bool, life time.Duration, now time.Time) (toCall []string) {
	outstanding := make(map[string]bool, len(notes))
	for _, note := range notes {
		outstanding[note] = true
		if !paused && n.mayCall(note, life, now) {
			toCall = append(toCall, note)
		}
	}
	for note, c := range n.Calls {
		if c.state == coming && !outstanding[note] {
			n.noteArrival(note) // it arrived, at this process or another
		}
	}
	return toCall
}

// interval is the shortest until the next check, with so many lines that have parked work. It doubles with each check
// of an ordered key that found nothing to do, a few times.
func (n *Line) interval(lines int) time.Duration {
	return CheckEvery * time.Duration(1+lines/MaxChecks) << min(n.still, maxStill)
}

// planCheck notes that something is parked, and that the next check is due after that time, unless one is planned
// or under way.
func (n *Line) planCheck(after time.Duration, now time.Time) {
	n.Parked, n.parkedSeenAt = true, now
	if n.CheckAt.IsZero() {
		n.CheckAt = now.Add(after)
	}
}

// checkAtEnd has the line checked when the first holder's lease or the cooldown ends, in that time, if that is before the next check:
// so that a holder that died is noticed at once. Below 0: it is not known.
func (n *Line) checkAtEnd(in time.Duration, now time.Time) {
	if end := now.Add(in + time.Millisecond); in >= 0 && n.CheckAt.After(end) {
		n.CheckAt, n.atDeadline = end, true
	}
}

// beginCheck begins a check.
func (n *Line) beginCheck() {
	n.Checking, n.CheckAt, n.atDeadline, n.notNow = true, time.Time{}, false, nil
}

// endCheck ends a check. idle: it is an ordered key that is free, and whose next task is away.
func (n *Line) endCheck(idle bool) {
	n.Checking = false
	if n.still++; !idle {
		n.still = 0
	}
}

// noteNothing takes a reply, to a command sent at sent, that nothing is parked or called: checks end. It
// reports false if a reply that came after sent named parked work: that command may have run later.
func (n *Line) noteNothing(sent time.Time) bool {
	if !n.Parked || !n.parkedSeenAt.Before(sent) {
		return false
	}
	n.Parked, n.CheckAt, n.atDeadline = false, time.Time{}, false
	for note := range n.Calls {
		n.noteArrival(note)
	}
	return true
}
