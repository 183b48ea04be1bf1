package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/keytext"
)

// Lock is one lock: a named set of at most N holders, and the line before it. A
// mutex has N = 1, a semaphore more. It is a handle only: two with the same
// name are the same lock. Immutable, safe for concurrent use, nothing to close.
type Lock struct {
	locker     *Locker
	kind       kind // lockKind or poolKind
	name       string
	parts      []string
	given      string   // the key of WithKey; empty: made from name and parts
	keys       []string // exactly one
	limit      int
	ttl        time.Duration
	maxHold    time.Duration
	renew      bool
	note       string
	apart      bool // see OnePerNote
	whole      bool // see Uninterrupted
	onWait     func()
	arrival    int64  // 0: none, see OnStop
	onStop     func() // nil: none
	rate       rate   // see Rate
	inTimeOnly bool   // see InTimeOnly
	first      bool   // see ParkFirst
	leads      bool   // it is of Lead: one holder, whatever limit a control sets
	ttlArg     any    // ttl in ms, boxed once
	keepArg    any    // how long the key lasts after a take, in ms, boxed once
	err        error  // what is wrong with the definition; every operation returns it
}

// Option refines a lock; see TTL, MaxHold, NoRenew, Note, Parts and Rate.
type Option func(*Lock)

// TTL sets the length of a lease: how long the lock stays taken after its
// holder died. While the holder lives the lease is renewed, so a short TTL does
// not bound the work. At least 100 ms, rounded up to whole milliseconds. A holder's TTL is
// its own affair: it never shortens another's.
func TTL(d time.Duration) Option { return func(m *Lock) { m.ttl = d } }

// MaxHold bounds a stay: that long after the lock was taken the lease is no
// longer renewed, the context of Bind or Do ends with ErrLost, and the lock is
// free when the deadline has passed. 0: no bound.
func MaxHold(d time.Duration) Option { return func(m *Lock) { m.maxHold = d } }

// NoRenew makes a lease that ends TTL after it was taken, unless extended.
func NoRenew() Option { return func(m *Lock) { m.renew = false } }

// Note is opaque text that others are shown beside the owner label of a holder.
func Note(text string) Option { return func(m *Lock) { m.note = text } }

// onePerNote keeps the lock from being held twice at once under its [Note]: while a
// holder has that note, TryLock and lockOrPark answer busy although a slot is free, and
// Lock waits in line without holding up those behind it. It matters to a semaphore
// only, where it costs a look at up to 1,000 holders. All who use the note give the
// option.
func onePerNote() Option { return func(m *Lock) { m.apart = true } }

// Parts narrows the lock to some values within its name: the name is the scope,
// and each different list of parts is a lock of its own. Parts may hold any
// bytes: different lists never share a key. [Options].HashKeys keeps them out of Redis.
func Parts(parts ...string) Option { return func(m *Lock) { m.parts = parts } }

// withKey names the lock by its Redis key, as [Lock.Key] or package keytext gave
// it, and Parts has no effect. Whoever has made the key already saves making it
// again. The key must begin with the Locker's Prefix. The name remains in errors.
func withKey(key string) Option { return func(m *Lock) { m.given = key } }

// inTimeOnly has Lock return at once, with an error that Is ErrBusy and
// context.DeadlineExceeded, when its ctx ends before the gate opens. Without it Lock
// waits all the same: the gate may be opened sooner, by [Lock.BreakAll].
func inTimeOnly() Option { return func(m *Lock) { m.inTimeOnly = true } }

// onWait has f called when a call of Lock finds the lock taken and stands in
// line: once for each such call, on its goroutine, never by TryLock. The wait is
// over when Lock returns. A grant is not taken before f has returned, so f should
// be quick.
func onWait(f func()) Option { return func(m *Lock) { m.onWait = f } }

// uninterrupted makes the first exchange with Redis of TryLock, Lock and lockOrPark run
// to its end, about 5 s at most, also when ctx ends meanwhile; a lease that comes
// after ctx has ended is given back. A wait in line ends with ctx as ever. It saves
// several microseconds of CPU: an exchange that can be left runs on another goroutine.
func uninterrupted() Option { return func(m *Lock) { m.whole = true } }

// Mutex is the lock called name, for one holder at a time. Any text serves as
// a name but the empty one. Every operation of the lock reports a bad
// name or option.
func (l *Locker) Mutex(name string, options ...Option) *Lock {
	return l.Semaphore(name, 1, options...)
}

// Semaphore is the lock called name, for n holders at a time. Callers may
// differ in n, as they do while a new version is deployed: a lower n takes
// effect as holders leave, a higher one at the next call.
func (l *Locker) Semaphore(name string, n int, options ...Option) *Lock {
	m := &Lock{locker: l, kind: lockKind{}, name: name, limit: n, ttl: l.ttl, renew: true, err: l.err}
	for _, option := range options {
		if option != nil {
			option(m)
		}
	}
	given := m.ttl
	m.ttl = wholeMS(m.ttl)
	switch {
	case m.err != nil:
	case name == "":
		m.err = errors.New("lock: the name is empty: name what the lock protects")
	case m.limit < 1:
		m.err = fmt.Errorf("lock: %q: %d holders: at least 1", name, m.limit)
	case m.maxHold < 0:
		m.err = fmt.Errorf("lock: %q: MaxHold is %s: not below 0, where 0 means no bound", name, m.maxHold)
	case m.rate.err != nil:
		m.err = fmt.Errorf("lock: %q: %w", name, m.rate.err)
	case checkTTL("", m.ttl) != nil: // the words only when they are wanted: every task makes a lock
		m.err = checkTTL(fmt.Sprintf("the TTL of %q", name), given)
	}
	if m.given == "" {
		m.given = keytext.HashedKey(*l.secret, l.prefix, name, m.parts...)
	} else if !strings.HasPrefix(m.given, l.prefix+":{") && m.err == nil {
		m.err = fmt.Errorf("lock: %q: the key %q does not begin with %q, the prefix of this Locker: give a key that Key made", name, m.given, l.prefix+":{")
	}
	m.keys = []string{m.given}
	m.ttlArg, m.keepArg = m.ttl.Milliseconds(), (m.ttl + keepSlack).Milliseconds()
	return m
}

// Key is the one Redis key in which everything of this lock is kept.
func (m *Lock) Key() string { return m.keys[0] }

// maxGrant is the longest lease a release gives to a waiter: the waiter may
// have died unnoticed, and then costs the line no more than this.
const maxGrant = 3 * time.Second

// keepSlack is how much longer than its entries a key lasts.
const keepSlack = time.Second

// newLease prepares the local side of one attempt: nothing is held yet.
func (m *Lock) newLease() *Lease {
	le := &Lease{lock: m}
	le.sent, le.body, le.token = m.locker.newBody(min(m.ttl, maxGrant), m.ttl, m.apart && m.note != "", m.arrival, m.note)
	le.asks.Body, le.releases.Body = &le.sent, &le.sent
	return le
}

// enter is [Locker.enter] for callers of a lock, who have nothing to do with a lock that
// was made wrongly or when ctx has ended.
func (m *Lock) enter(ctx context.Context) error {
	if m.err != nil {
		return m.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.locker.enter()
}

// TryLock takes the lock or returns a *BusyError at once. It never overtakes a
// waiter: with others in line the lock is busy even if a slot is free. A lock that an
// operator has paused is not asked for; see [Controls].
//
// On any other error nothing is held: where the outcome is unknown (the reply
// was lost) a release follows in the background. TryLock returns after about 5 s
// when Redis does not answer, and within a quarter of a second after ctx ended: the
// error then Is ErrBackend and ctx.Err(). A lease that arrives when ctx has ended is
// given back, and the error is ctx.Err().
func (m *Lock) TryLock(ctx context.Context) (*Lease, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.locker.work.Done()
	if err := m.knowControls(ctx); err != nil {
		return nil, err
	}
	if busy := m.pausedError(); busy != nil {
		return nil, busy
	}
	le := m.newLease()
	answer, sent, err := m.take(ctx, le, modeTry)
	if err != nil {
		return nil, err
	}
	if !answer.yours {
		m.locker.releaseLater(le)
		return nil, m.busy(answer, 0, nil)
	}
	m.won(le, answer, sent)
	le, err = m.handOut(ctx, le)
	return m.inTime(ctx, le, err)
}

// Lock takes the lock, waiting in line until ctx ends; the error then Is both
// ErrBusy and ctx.Err(). Waiters are served first come, first served. ctx
// bounds the wait only: the lease does not derive from it. When ctx has ended Lock
// never succeeds: a lease that arrives later is given back.
//
// A failed call leaves nothing behind: a slot granted at the last moment is
// given back at once. When Redis cannot be reached at the first ask the error Is
// ErrBackend, and ctx.Err() too when ctx ended before Redis answered; once in line,
// an outage of some seconds is waited out. That replicas are missing ([Options].MinReplicas) is not: it ends the call.
func (m *Lock) Lock(ctx context.Context) (*Lease, error) {
	return m.lockBefore(ctx, ctx, nil)
}

// answer is what ask replied.
type answer struct {
	yours    bool
	fence    int64
	value    string        // yours: out of a pool
	serverUS int64         // busy: server time
	deadline time.Duration // busy: until the first deadline; below 0: no holder
	more     bool          // busy: dropping dead waiters was cut short, ask again at once
	place    int           // busy: waiters before us
	holder   string        // busy: a holder's member, or none
	gate     time.Duration // busy: until the gate opens, where that is what it waits for; else 0
	reason   string        // what closed the gate

	// Of a lock whose note was parked before, or is now.
	back   bool
	inLine time.Duration // since its first place in line
	trip   time.Duration // since it was called; below 0: it was not
	idle   time.Duration // yours: how long the slot was free
	others int           // how many more are parked
	parked bool          // busy: it is parked now
	taken  time.Duration // busy: how long ago the lock was last taken
}

// askMode is what an ask does when no slot is free.
type askMode uint8

const (
	modeTry  askMode = iota // nothing
	modeJoin                // join the line, or stay in it, for entryLifetime
	modePark                // keep a place in line without a goroutine
)

// lifetime is how long the line entry of an ask lives, in ms, as the scripts take it;
// 0: the ask does not join the line.
func (mode askMode) lifetime() int64 {
	if mode == modeJoin {
		return entryLifetime.Milliseconds()
	}
	return 0
}

// ask runs the ask script for le. Where the outcome is unknown it has seen to it
// that nothing stays held. Behind many dead waiters it asks until those are
// dropped, 64 at a time, or ctx ends: a slot is free then. An ask that joins the line is
// not repeated: its refreshes do the same.
func (m *Lock) ask(ctx context.Context, le *Lease, mode askMode) (answer, error) {
	for {
		a, err := m.askOnce(ctx, le, mode)
		if err != nil || !a.more || mode == modeJoin || ctx.Err() != nil || m.locker.closing.Err() != nil {
			return a, err
		}
	}
}

func (m *Lock) askOnce(ctx context.Context, le *Lease, mode askMode) (answer, error) {
	if m.whole {
		ctx = context.WithoutCancel(ctx)
	}
	s, args := m.kind.ask(le, mode)
	before := le.asks.Copies()
	reply, err := m.locker.conn.Run(ctx, s, m.keys, args)
	mayHaveRun := le.asks.NoteReply(before, err)
	if err != nil {
		if mayHaveRun || le.asks.MayRunYet() {
			m.locker.abandon(le)
		}
		return answer{}, backendError("ask", m.Key(), err)
	}
	a, err := m.parseAnswer(reply)
	if err != nil { // it may have taken the lock all the same
		m.locker.abandon(le)
	}
	if !a.yours || a.back {
		m.locker.wanted.note(m.keys[0])
	}
	return a, err
}

// parseAnswer reads the reply to an ask.
func (m *Lock) parseAnswer(reply any) (answer, error) {
	a, ok := m.kind.parse(reply)
	if !ok || a.yours && a.fence <= 0 || !a.yours && a.serverUS <= 0 {
		return answer{}, backendError("ask", m.Key(), unexpected(reply))
	}
	return a, nil
}

// busy makes the error for an answer.
func (m *Lock) busy(a answer, waited time.Duration, cause error) *BusyError {
	e := &BusyError{Name: m.name, Reason: ReasonHeld, Waited: waited, Place: a.place, Parked: a.parked, cause: cause}
	if a.deadline > 0 {
		e.ExpiresIn = a.deadline
	}
	if a.parked {
		e.TakenFor, e.InLine = max(0, a.taken), max(0, a.inLine)
	}
	if a.gate > 0 {
		e.Reason, e.ExpiresIn = a.reason, a.gate
	}
	if paused := m.pausedError(); paused != nil {
		e.Reason, e.Pause, e.ExpiresIn, e.TakenFor = paused.Reason, paused.Pause, paused.ExpiresIn, 0
	}
	if h, ok := m.kind.parseHolder(a.holder); ok {
		e.Holder, e.Note = h.Owner, h.Note
	}
	return e
}

// abandon releases a token whose last command may or may not have run: now, and
// again later, in case that command was still on its way; see laterReleases. Should
// all fail the slot frees itself at the deadline. On Close the next release is the
// last one, and comes at once.
func (l *Locker) abandon(le *Lease) {
	l.spawn(func() {
		_, _, err := le.release(context.Background())
		if err != nil && l.closing.Err() != nil {
			return // Redis is away, and Close shall not wait for it twice
		}
		l.releaseToCool(le, err)
		l.abandoned.add(le, err != nil)
	})
}

// releaseLater releases a token later if a copy of its ask may yet run. Callers are
// counted in.
func (l *Locker) releaseLater(le *Lease) {
	if le.asks.MayRunYet() {
		l.branch(func() { l.abandoned.add(le, false) })
	}
}

// spawnReleaseLater is releaseLater for callers that are not counted in.
func (l *Locker) spawnReleaseLater(le *Lease) {
	if le.asks.MayRunYet() {
		l.spawn(func() { l.abandoned.add(le, false) })
	}
}
