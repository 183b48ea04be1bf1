// Package parking calls parked work when its turn has come, and checks the lines that have parked work.
package parking

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

const (
	// ForgetAfter is how long the figures of a line are kept after its last use.
	ForgetAfter = time.Minute
	// maxIdleLines is how many lines without parked work are remembered. Beyond that the
	// least recently used one is forgotten.
	maxIdleLines = 4000
	// SlotFreeLimit is how long a slot may be free before called work takes it. When it
	// takes longer, inbound doubles, up to MaxInbound.
	SlotFreeLimit = 3 * time.Millisecond
	// MaxInbound is how many notes of a line are called at once, at most.
	MaxInbound = 64
	// maxInboundInOrder is how many notes of all ordered keys are called at once, at most; but one of each. More of them would
	// wait for each other in asynq's queue.
	maxInboundInOrder = 4 * MaxInbound
	// VainCallFloor is the share of inbound that is left at least when called work finds the
	// lock busy and parks again, which takes one off, until other called work finds it idle.
	VainCallFloor = 1.0 / 2
	// MinCallLife and maxCallLife bound callLife: how long called work has to arrive before it
	// is overdue. maxCallLife keeps work that took an hour to arrive from making the line wait
	// as long for the next.
	MinCallLife = time.Second
	maxCallLife = time.Minute
)

// Lock is a lock, as far as its parked work needs it.
type Lock struct {
	Keys       []string // exactly one
	Limit      int
	KeepsLimit bool // a control does not change limit
	Ordered    bool // its tasks come in order
}

// Key returns the lock's Redis key.
func (m Lock) Key() string { return m.Keys[0] }

// Parking calls parked work when its turn comes, and checks lines with parked work. Its
// figures live in memory, for each Locker by itself: how much work to call at once, how
// long a lock is held, how long called work takes to arrive. Only speed depends on them.
type Parking struct {
	life      *life.Life
	conn      *exchange.Conn
	log       *slog.Logger
	caller    inside.Caller
	slots     func(Lock) int
	Alarm     life.Alarm
	LineCount atomic.Int32 // len(lines): most Lockers have none, and pay nothing

	mu        sync.Mutex       // guards what follows; never held across I/O
	lines     map[string]*Line // by key; nil while empty
	peakLines int              // the highest len(lines) since the map was made
	toCheck   lineHeap         // lines with parked work, except those with a check under way
	idle      lineHeap         // lines without parked work, the least recently used first
	parkedN   int              // how many of lines have parked work
	rounds    int              // rounds of checks under way; see roundsFree
	budget    float64          // checks that may begin now; see refillBudget
	budgetAt  time.Time        // when budget was last refilled
	queue     []*Line          // lines with queued calls, except those a call of which is made now
	callers   int              // goroutines in makeCalls; each ends when queue is empty
	leastLife time.Duration    // the least callLife; MinCallLife, unless ArriveWithin has set more
}

// Options are what a parking is made of.
type Options struct {
	Life   *life.Life
	Conn   *exchange.Conn
	Log    *slog.Logger
	Caller inside.Caller  // nil: this process calls nobody
	Slots  func(Lock) int // how many may hold a lock now; 0: it is paused
}

// New makes a Parking. It has no goroutine of its own: Alarm.Ring starts its checks.
func New(o Options) *Parking {
	p := &Parking{life: o.Life, conn: o.Conn, log: o.Log, caller: o.Caller, slots: o.Slots, leastLife: MinCallLife}
	p.Alarm.Ring = p.StartChecks
	return p
}

// line returns the Line of m, and makes it if there is none. StartChecks forgets it
// when it is not used. Callers hold mu.
func (p *Parking) line(m Lock) *Line {
	n, now := p.lines[m.Key()], time.Now()
	if n == nil {
		n = &Line{key: m.Key(), Inbound: 1}
		if p.lines == nil {
			p.lines = make(map[string]*Line)
		}
		p.lines[m.Key()] = n
		p.peakLines = max(p.peakLines, len(p.lines))
		p.LineCount.Store(int32(len(p.lines))) //nolint:gosec // far from 2^31
		// StartChecks has to run and forget it, even if nothing is ever parked.
		p.Alarm.Set(now.Add(ForgetAfter + time.Second))
	}
	if n.lock.Keys == nil || n.lock.Limit != m.Limit || n.lock.KeepsLimit != m.KeepsLimit || n.lock.Ordered != m.Ordered {
		n.lock = m
	}
	n.UsedAt = now
	p.reschedule(n)
	return n
}

// NoteReturn notes the reply to an ask whose note was parked before. It returns for how long, 0 if it
// was not, and whether a Caller had called that note.
func (p *Parking) NoteReturn(m Lock, note string, a wire.Answer) (parked time.Duration, called bool) {
	if !a.Returned || a.Parked { // NoteParked handles one that is parked now
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.line(m)
	if a.OthersParked > 0 && p.caller != nil {
		p.Alarm.Set(p.checkSoon(n)) // the process that parked them may be gone, and a slot free
	}
	return n.noteReturned(note, a)
}

// NoteParked notes that an ask parked its note. called means that a Caller had called it.
func (p *Parking) NoteParked(m Lock, note string, a wire.Answer, called bool) {
	if !a.Parked {
		return
	}
	p.mu.Lock()
	n := p.line(m)
	n.noteParked(note, a, called)
	var at time.Time
	if p.caller != nil { // nil: this Locker cannot call, so others check the line
		at = p.checkSoon(n)
	}
	p.mu.Unlock()
	p.Alarm.Set(at)
}

// MeasureHeld has NoteHeld measure m from now on.
func (p *Parking) MeasureHeld(m Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(m)
}

// NoteHeld adds to the average of how long m is held. It does nothing for a lock that
// MeasureHeld was not called for.
func (p *Parking) NoteHeld(m Lock, d time.Duration) {
	if p.LineCount.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		n.avgHeld.add(d)
		n.UsedAt = time.Now()
		p.reschedule(n)
	}
}

// View calls f with the lines that are known, by key. For tests: f may change what was learned, but
// neither when a line is checked nor the map.
func (p *Parking) View(f func(lines map[string]*Line)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.lines)
}

// AverageHeld returns how long m was held on average; 0: not measured.
func (p *Parking) AverageHeld(m Lock) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.lines[m.Key()]; n != nil {
		return time.Duration(n.avgHeld)
	}
	return 0
}

// WantedCalls returns two arguments of the scripts release and call: how much called and
// waiting work m is to have, and how long called work has to arrive, in ms.
func (p *Parking) WantedCalls(m Lock) (inbound, life any) {
	switch {
	case p.caller == nil, p.slots(m) == 0: // 0 slots: the lock is paused
		return int64(0), MinCallLifeArg
	case p.LineCount.Load() == 0:
		return int64(1), MinCallLifeArg // nothing is known to be parked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.lines[m.Key()]
	if n == nil {
		return int64(1), p.leastLife.Milliseconds()
	}
	wanted := n.Inbound
	if m.Ordered { // a task that fails has those that were called behind it come in vain
		wanted = max(1, min(wanted, float64(maxInboundInOrder/max(1, p.parkedN))))
	}
	return int64(wanted), p.CallLife(n).Milliseconds()
}

// MinCallLifeArg is MinCallLife in ms, as scripts take it; boxed once.
var MinCallLifeArg any = MinCallLife.Milliseconds()

// CallLife returns how long called work of n has to arrive. Callers hold mu.
func (p *Parking) CallLife(n *Line) time.Duration { return n.callLife(p.leastLife) }

// ArriveWithin has called work count as overdue after d at the earliest: the time that its
// server may take to fetch it. Less than MinCallLife, and than an earlier d, changes nothing.
func (p *Parking) ArriveWithin(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leastLife = max(p.leastLife, min(d, maxCallLife))
}

// HandleCalls reads a reply of release or call that names parked work whose turn has come,
// and queues a call for each note in it. code is the first field of the reply. ok is false
// for a reply of another form.
func (p *Parking) HandleCalls(m Lock, reply any) (code int64, ok bool) {
	named, ok := wire.ParseCalls(reply)
	if !ok || p.caller == nil {
		return named.Code, ok // without a Caller, other Lockers call
	}
	p.mu.Lock()
	n, now := p.line(m), time.Now()
	for _, note := range n.noteNamed(named.Notes, p.slots(m) == 0, p.CallLife(n), now) {
		p.queueCall(n, note)
	}
	at := p.checkSoon(n)
	if n.checkAtEnd(named.FirstEnd, now); !at.IsZero() {
		p.reschedule(n)
		at = n.CheckAt
	}
	p.mu.Unlock()
	p.Alarm.Set(at)
	return named.Code, true
}
