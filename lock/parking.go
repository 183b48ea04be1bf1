package lock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

const (
	// forgetAfter is how long the figures of a line are kept after its last use.
	forgetAfter = time.Minute
	// maxIdleLines is how many lines without parked work are remembered. Beyond that the
	// least recently used one is forgotten.
	maxIdleLines = 4000
	// slotFreeLimit is how long a slot may be free before called work takes it. When it
	// takes longer, inbound doubles, up to maxInbound.
	slotFreeLimit = 3 * time.Millisecond
	maxInbound    = 64
	// vainCallDecay is the share by which inbound shrinks when called work found the lock
	// busy and parked again. docs/park.md compares other values.
	vainCallDecay = 1.0 / 64
	// minCallLife and maxCallLife bound callLife: how long called work has to arrive before
	// its call lapses. maxCallLife keeps work that took an hour to arrive from making the
	// line wait as long for the next.
	minCallLife = time.Second
	maxCallLife = time.Minute
)

// parking calls parked work when its turn comes, and checks lines with parked work. Its
// figures live in memory, for each Locker by itself: how much work to call at once, how
// long a lock is held, how long called work takes to arrive. Only speed depends on them.
type parking struct {
	locker    *Locker
	caller    inside.Caller
	alarm     alarm
	lineCount atomic.Int32 // len(lines): most Lockers have none, and pay nothing

	mu        sync.Mutex             // guards what follows; never held across I/O
	lines     map[string]*parkedLine // by key; nil while empty
	peakLines int                    // the highest len(lines) since the map was made
	toCheck   lineHeap               // lines with parked work, except those with a check under way
	idle      lineHeap               // lines without parked work, the least recently used first
	parkedN   int                    // how many of lines have parked work
	rounds    int                    // rounds of checks under way; see roundsFree
	budget    float64                // checks that may begin now; see refillBudget
	budgetAt  time.Time              // when budget was last refilled
	queue     []*pendingCall
	callers   int // goroutines in makeCalls; each ends when queue is empty
}

// parkedLine is what a Locker knows of the parked work of one lock. parking.mu guards it.
type parkedLine struct {
	key          string // never changed
	lock         *Lock
	inbound      float64 // called and waiting work that the line is to have; a script gets its whole part
	avgHeld      average // how long the lock is held
	avgReturn    average // from a call until the called work arrives
	parked       bool    // by the last reply, something is parked or called
	atDeadline   bool    // checkAt is the first holder's deadline: an earlier check finds nothing
	checking     bool    // a check is under way
	checkAt      time.Time
	parkedSeenAt time.Time // when a reply last named parked work
	usedAt       time.Time
	heap         *lineHeap               // the heap that it is in; nil while checking
	place        int                     // index in that heap
	notNow       map[string]bool         // notes whose Caller answered FateLater since the last check; nil while empty
	calls        map[string]*pendingCall // by note; nil while empty
}

// average is a moving average; zero: nothing was measured.
type average time.Duration

func (a *average) add(d time.Duration) {
	if *a == 0 {
		*a = average(max(d, 1))
		return
	}
	*a += (average(d) - *a) / 8
}

func newParking(l *Locker, caller inside.Caller) *parking {
	p := &parking{locker: l, caller: caller}
	p.alarm.ring = p.startChecks
	return p
}

// line returns the parkedLine of m, and makes it if there is none. startChecks forgets it
// when it is not used. Callers hold mu.
func (p *parking) line(m *Lock) *parkedLine {
	n, now := p.lines[m.Key()], time.Now()
	if n == nil {
		n = &parkedLine{key: m.Key(), inbound: 1}
		if p.lines == nil {
			p.lines = make(map[string]*parkedLine)
		}
		p.lines[m.Key()] = n
		p.peakLines = max(p.peakLines, len(p.lines))
		p.lineCount.Store(int32(len(p.lines))) //nolint:gosec // far from 2^31
		// startChecks has to run and forget it, even if nothing is ever parked.
		p.alarm.set(now.Add(forgetAfter + time.Second))
	}
	if n.lock == nil || n.lock.limit != m.limit {
		// A copy: the caller's handle keeps its callbacks, and what they refer to, in memory.
		n.lock = &Lock{locker: m.locker, kind: m.kind, name: m.name, keys: m.keys, limit: m.limit}
	}
	n.usedAt = now
	p.reschedule(n)
	return n
}

// noteReturn notes the reply to an ask whose note was parked before. It reports whether
// a Caller had called that note.
func (p *parking) noteReturn(m *Lock, le *Lease, a answer) (called bool) {
	if !a.returned || a.parked { // noteParked handles one that is parked now
		return false
	}
	le.parked = max(a.inLine, 1) // Redis counts whole milliseconds; 0 means never
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.line(m)
	n.noteArrival(m.note)
	if a.othersParked > 0 && p.caller != nil {
		p.alarm.set(p.checkSoon(n)) // the process that parked them may be gone, and a slot free
	}
	if a.sinceCall < 0 {
		return false
	}
	n.avgReturn.add(a.sinceCall)
	if a.yours && a.slotFreeFor > slotFreeLimit && a.othersParked > 0 {
		n.inbound = min(2*n.inbound, maxInbound)
	}
	return true
}

// noteParked notes that an ask parked its note. called means that a Caller had called the
// note, so the call was in vain.
func (p *parking) noteParked(m *Lock, a answer, called bool) {
	if !a.parked {
		return
	}
	p.mu.Lock()
	n := p.line(m)
	if called || a.sinceCall >= 0 {
		n.noteArrival(m.note)
		n.inbound = max(1, n.inbound*(1-vainCallDecay))
	}
	var at time.Time
	if p.caller != nil { // nil: this Locker cannot call, so others check the line
		at = p.checkSoon(n)
	}
	p.mu.Unlock()
	p.alarm.set(at)
}

// measureHeld has noteHeld measure m from now on.
func (p *parking) measureHeld(m *Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(m)
}

// noteHeld adds to the average of how long m is held. It does nothing for a lock that
// measureHeld was not called for.
func (p *parking) noteHeld(m *Lock, d time.Duration) {
	if p.lineCount.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		n.avgHeld.add(d)
		n.usedAt = time.Now()
		p.reschedule(n)
	}
}

// averageHeld returns how long m was held on average; 0: not measured.
func (p *parking) averageHeld(m *Lock) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		return time.Duration(n.avgHeld)
	}
	return 0
}

// wantedCalls returns two arguments of the scripts release and call: how much called and
// waiting work m is to have, and how long called work has to arrive, in ms.
func (p *parking) wantedCalls(m *Lock) (inbound, life any) {
	switch {
	case p.caller == nil, m.slots() == 0: // 0 slots: the lock is paused
		return int64(0), minCallLifeArg
	case p.lineCount.Load() == 0:
		return int64(1), minCallLifeArg
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.lines[m.Key()]
	if n == nil {
		return int64(1), minCallLifeArg
	}
	return int64(n.inbound), n.callLife().Milliseconds()
}

var minCallLifeArg any = minCallLife.Milliseconds() // boxed once

// callLife returns how long called work has to arrive: twice the average, within bounds.
// Callers hold mu.
func (n *parkedLine) callLife() time.Duration {
	return min(max(minCallLife, 2*time.Duration(n.avgReturn)), maxCallLife)
}

// handleCalls reads a reply of release or call that names parked work whose turn has come,
// and queues a call for each note in it. code is the first field of the reply. ok is false
// for a reply of another form.
func (p *parking) handleCalls(m *Lock, reply any) (code int64, ok bool) {
	r := listOf(reply)
	code, _ = r.num(0), r.num(1)
	firstEnd := r.ms(2)
	for i := 3; i < len(r.list); i++ {
		r.text(i)
	}
	if r.wrong || p.caller == nil {
		return code, !r.wrong // without a Caller, other Lockers call
	}
	p.mu.Lock()
	n := p.line(m)
	outstanding := make(map[string]bool, len(r.list)-3)
	paused := m.slots() == 0 // a later check calls them when the lock is resumed
	for i := 3; i < len(r.list); i++ {
		outstanding[r.text(i)] = true
		if !paused {
			p.queueCall(n, r.text(i))
		}
	}
	for note, s := range n.calls {
		if !s.comingSince.IsZero() && !outstanding[note] {
			n.noteArrival(note) // it arrived, at this process or another
		}
	}
	at := p.checkSoon(n)
	if end := time.Now().Add(firstEnd + time.Millisecond); firstEnd >= 0 && n.checkAt.After(end) {
		// So a holder that died, or a cooldown that ended, is noticed at once.
		n.checkAt, n.atDeadline = end, true
		p.reschedule(n)
		at = n.checkAt
	}
	p.mu.Unlock()
	p.alarm.set(at)
	return code, true
}
