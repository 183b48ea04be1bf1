package lock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

const (
	// forget is how long what was learned of a line outlives its last use.
	forget = time.Minute
	// idleMost is how many lines on which nothing is parked are remembered. Beyond
	// that the one is forgotten that was used least recently.
	idleMost = 4000
	// idleSlot is how long a slot may stay free for a called one to come before
	// more are called at once; mostInbound is how many at most.
	idleSlot    = 3 * time.Millisecond
	mostInbound = 64
	// vainTrip is the share by which fewer are called after one had to park
	// again. docs/park.md compares others.
	vainTrip = 1.0 / 64
	// minLife and maxLife are how long a called one has to come: twice as long as
	// it took of late, within these bounds. One that came by itself after an hour
	// shall not make the line wait as long for the next.
	minLife = time.Second
	maxLife = time.Minute
)

// parking calls what is parked, and looks after it. What it knows of a lock
// lives in memory, for each Locker by itself: how many to call at once, how long
// the lock is held, how long a called one takes to come. Nothing hangs on its
// being right but speed.
type parking struct {
	locker *Locker
	caller inside.Caller
	alarm  alarm
	known  atomic.Int32 // len(lines): most Lockers have none, and pay nothing

	mu      sync.Mutex             // guards what follows; never held across I/O
	lines   map[string]*parkedLine // by key; nil while empty
	most    int                    // the most lines there were since the map was made
	looks   lineHeap               // lines with parked set, but for those a look at is under way
	idle    lineHeap               // the other lines, the least recently used first
	parkedN int                    // how many of lines have parked set
	rounds  int                    // of looks that are under way; see roundsFree
	tokens  float64                // looks that may begin now; see refill
	filled  time.Time              // when tokens was last brought up to date
	queue   []*pendingCall
	callers int // goroutines that work the queue off; each ends when it is empty
}

// parkedLine is what is known of one lock. It belongs to parking.mu.
type parkedLine struct {
	key     string // never changed
	lock    *Lock
	inbound float64 // how many called and waiting ones there are to be
	hold    average
	trip    average // from call to coming
	parked  bool    // something was parked or called when Redis was last asked
	exact   bool    // lookAt is the first holder's end: before it there is nothing to see
	looking bool
	lookAt  time.Time
	seen    time.Time // when Redis last said that something is parked
	used    time.Time
	in      *lineHeap               // the heap it is in, nil while looking
	place   int                     // in that heap
	laters  map[string]bool         // notes that cannot come for now, as was said since the last look; nil while empty
	calls   map[string]*pendingCall // by note: those queued, under way or on their way back; nil while empty
}

// average is a moving one; zero: nothing was measured.
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
	p.alarm.ring = p.look
	return p
}

// line is what is known of m, made when it is asked for first, and forgotten by
// a look. Callers hold mu.
func (p *parking) line(m *Lock) *parkedLine {
	n, now := p.lines[m.Key()], time.Now()
	if n == nil {
		n = &parkedLine{key: m.Key(), inbound: 1}
		if p.lines == nil {
			p.lines = make(map[string]*parkedLine)
		}
		p.lines[m.Key()] = n
		p.most = max(p.most, len(p.lines))
		p.known.Store(int32(len(p.lines))) //nolint:gosec // far from 2^31
		// However it is used, look has to come and forget it.
		p.alarm.set(now.Add(forget + time.Second))
	}
	if n.lock == nil || n.lock.limit != m.limit {
		// A handle of its own: the caller's may hold on to what it came with.
		n.lock = &Lock{locker: m.locker, kind: m.kind, name: m.name, keys: m.keys, limit: m.limit}
	}
	n.used = now
	p.plan(n)
	return n
}

// noteReturn notes the reply to an ask whose note was parked before. It reports whether
// the asker came because a Caller called it.
func (p *parking) noteReturn(m *Lock, le *Lease, a answer) (called bool) {
	if !a.back || a.parked { // noteParked handles one that is parked now
		return false
	}
	le.parked = max(a.inLine, 1) // Redis counts whole milliseconds; 0 means never
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.line(m)
	n.noteArrival(m.note)
	if a.others > 0 && p.caller != nil {
		p.alarm.set(p.lookSoon(n)) // who parked them may be gone, and another slot free
	}
	if a.trip < 0 {
		return false
	}
	n.trip.add(a.trip)
	if a.yours && a.idle > idleSlot && a.others > 0 {
		n.inbound = min(2*n.inbound, mostInbound)
	}
	return true
}

// noteParked notes that an asker was parked; called: a Caller had called it, in vain.
func (p *parking) noteParked(m *Lock, a answer, called bool) {
	if !a.parked {
		return
	}
	p.mu.Lock()
	n := p.line(m)
	if called || a.trip >= 0 {
		n.noteArrival(m.note)
		n.inbound = max(1, n.inbound*(1-vainTrip))
	}
	var at time.Time
	if p.caller != nil { // else it can call nobody: others look after it
		at = p.lookSoon(n)
	}
	p.mu.Unlock()
	p.alarm.set(at)
}

// measureHolds measures the hold time of m from now on.
func (p *parking) measureHolds(m *Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(m)
}

// noteHold notes how long m was held.
func (p *parking) noteHold(m *Lock, d time.Duration) {
	if p.known.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		n.hold.add(d)
		n.used = time.Now()
		p.plan(n)
	}
}

func (p *parking) holdTime(m *Lock) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		return time.Duration(n.hold)
	}
	return 0
}

// wantedCalls is how many called and waiting ones m is to have, and how long a called
// one has to come, in ms, as release and call take them.
func (p *parking) wantedCalls(m *Lock) (inbound, life any) {
	switch {
	case p.caller == nil, m.slots() == 0: // nobody is called to a lock that is paused
		return int64(0), minLifeArg
	case p.known.Load() == 0:
		return int64(1), minLifeArg
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.lines[m.Key()]
	if n == nil {
		return int64(1), minLifeArg
	}
	return int64(n.inbound), n.life().Milliseconds()
}

var minLifeArg any = minLife.Milliseconds() // boxed once

// life is how long a called one has to come. Callers hold mu.
func (n *parkedLine) life() time.Duration { return min(max(minLife, 2*time.Duration(n.trip)), maxLife) }

// handleCalls reads a reply of release or call that names parked work, and queues the
// calls that are due.
func (p *parking) handleCalls(m *Lock, reply any) (code int64, ok bool) {
	r := listOf(reply)
	code, _ = r.num(0), r.num(1)
	firstEnd := r.ms(2)
	for i := 3; i < len(r.list); i++ {
		r.text(i)
	}
	if r.wrong || p.caller == nil {
		return code, !r.wrong // without a caller: whoever can call looks after it
	}
	p.mu.Lock()
	n := p.line(m)
	outstanding := make(map[string]bool, len(r.list)-3)
	paused := m.slots() == 0 // those called before are called again when it is resumed
	for i := 3; i < len(r.list); i++ {
		outstanding[r.text(i)] = true
		if !paused {
			p.queueCall(n, r.text(i))
		}
	}
	for note, s := range n.calls {
		if !s.done.IsZero() && !outstanding[note] {
			n.noteArrival(note) // it came, here or elsewhere
		}
	}
	at := p.lookSoon(n)
	if end := time.Now().Add(firstEnd + time.Millisecond); firstEnd >= 0 && n.lookAt.After(end) {
		// A holder that dies, or a cooldown that ends, is noticed at once.
		n.lookAt, n.exact = end, true
		p.plan(n)
		at = n.lookAt
	}
	p.mu.Unlock()
	p.alarm.set(at)
	return code, true
}
