package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/wire"
)

// Lock is one lock: at most N holders, and a line of waiters. A mutex has N = 1. A Lock is
// only a handle: two handles with the same name and parts, on the same Redis and prefix, are
// the same lock. A handle is immutable, safe for concurrent use, and needs no Close.
type Lock struct {
	locker        *Locker
	kind          kind // lockKind or poolKind
	name          string
	parts         []string
	keys          []string // exactly one
	limit         int
	ttl           time.Duration
	maxHold       time.Duration
	renew         bool
	note          string
	onePerNote    bool // see OnePerNote
	uninterrupted bool // see Uninterrupted
	onWait        func()
	arrival       int64  // 0: none, see OnStop
	onStop        func() // nil: none
	rate          rate   // see Rate
	fenced        bool   // see Fenced
	inTimeOnly    bool   // see InTimeOnly
	parkFirst     bool   // see ParkFirst
	order         *order // what an ordered task's lock knows of the task; nil: not ordered, or see byOrder
	keepsLimit    bool   // made by Lead or byKey: a control does not change limit, see slots
	ttlArg        any    // ttl in ms, boxed once
	keepArg       any    // how long the key lasts after a take, in ms, boxed once
	err           error  // what is wrong with the definition; every operation returns it
}

// Option sets a property of a lock: [TTL], [MaxHold], [NoRenew], [Note], [Parts], [Rate] or
// [Fenced].
// Every operation of the lock returns an error for a bad option. A nil Option does nothing.
type Option func(*Lock)

// TTL sets the length of a lease: how long the lock stays taken after its holder died. While
// the holder lives the lease is renewed, so a short TTL does not bound the work. The minimum
// is 100 ms, the maximum ten years; d is rounded up to whole milliseconds. Without the option
// the length is [Options].TTL. Holders of one lock may have different TTLs.
func TTL(d time.Duration) Option { return func(m *Lock) { m.ttl = d } }

// MaxHold bounds how long a lease lasts: d after the lock was taken, the lease is lost. The
// context of Bind or Do ends with cause ErrLost, and the lease is not renewed any more. The
// slot is free at the lease's deadline, at most a TTL later. 0: no bound. A negative d is an
// error.
func MaxHold(d time.Duration) Option { return func(m *Lock) { m.maxHold = d } }

// NoRenew turns renewal off: the lease ends a TTL after it was taken, unless it is extended.
func NoRenew() Option { return func(m *Lock) { m.renew = false } }

// Note attaches a text to the holder. Others see it in [Holder].Note and [BusyError].Note. Any
// text; empty: none.
func Note(text string) Option { return func(m *Lock) { m.note = text } }

// Fenced gives each lease of the lock a fence, a number that grows from holder to holder; see
// [Lease.Fence]. Redis replies with it when it grants the lock, so it costs no command of its own. But
// a free mutex is taken by a script then, which costs Redis more than the SET of another mutex.
// Holders that need no fence may leave the option out, whatever others do.
func Fenced() Option { return func(m *Lock) { m.fenced = true } }

// onePerNote keeps the lock from being held twice at once under its [Note]. While a holder
// has that note, TryLock and lockOrPark return a *BusyError even if a slot is free. Lock
// waits in line, and lets those behind it pass. The option matters to a semaphore only,
// where each ask reads up to 1,000 holders. All users of the note must give the option.
func onePerNote() Option { return func(m *Lock) { m.onePerNote = true } }

// Parts adds values to the lock's key. The name is the scope, and each different list of parts
// is another lock in it. Parts may contain any bytes: different lists never share a key.
// [Options].HashKeys keeps the values out of Redis.
func Parts(parts ...string) Option { return func(m *Lock) { m.parts = parts } }

// inTimeOnly has Lock return at once, with an error that Is ErrBusy and
// context.DeadlineExceeded, if its ctx ends before the gate opens. Without it Lock waits
// until ctx ends, since an operator may open the gate before, with [Lock.BreakAll].
func inTimeOnly() Option { return func(m *Lock) { m.inTimeOnly = true } }

// onWait has Lock call f when it finds the lock busy and begins to wait in line: at most once
// for each call of Lock, on its goroutine. TryLock never calls f. The wait ends when Lock
// returns. Lock takes no grant before f has returned, so f should be quick.
func onWait(f func()) Option { return func(m *Lock) { m.onWait = f } }

// uninterrupted has TryLock, Lock and lockOrPark finish their first exchange with Redis, in
// about 5 s at most, even if ctx ends meanwhile. A lease that arrives after ctx has ended is
// given back. A wait in line still ends with ctx. The option saves several microseconds of
// CPU: an exchange that its caller can leave runs on another goroutine.
func uninterrupted() Option { return func(m *Lock) { m.uninterrupted = true } }

// Mutex returns the lock called name, for one holder at a time. It does no I/O. The name may
// be any text except the empty one. With a bad name or option every operation returns an
// error.
func (l *Locker) Mutex(name string, options ...Option) *Lock {
	return l.Semaphore(name, 1, options...)
}

// Semaphore returns the lock called name, for n holders at a time; n is at least 1. Like
// [Locker.Mutex] it does no I/O. Callers may give different n for one lock, as they do while a
// new version is deployed. Each goes by its own: it gets the lock while fewer than n hold it, in line
// too.
func (l *Locker) Semaphore(name string, n int, options ...Option) *Lock {
	m := &Lock{locker: l, kind: lockKind{}, name: name, limit: n, ttl: l.ttl, renew: true, err: l.life.Unfit()}
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
	case checkTTL("", m.ttl) != nil: // format the text only for an error: every task makes a lock
		m.err = checkTTL(fmt.Sprintf("the TTL of %q", name), given)
	}
	m.keys = []string{keytext.HashedKey(*l.secret, l.prefix, name, m.parts...)}
	m.ttlArg, m.keepArg = m.ttl.Milliseconds(), (m.ttl + keepSlack).Milliseconds()
	return m
}

// at returns the lock with that key, and what m was made with: a Guard makes a lock for each task.
func (m *Lock) at(name, key string, limit int, note string, options []Option) *Lock {
	other := *m
	other.name, other.keys, other.limit, other.note = name, []string{key}, limit, note
	for _, option := range options {
		option(&other)
	}
	return &other
}

// Key returns the lock's only Redis key. An idle lock has no key in Redis.
func (m *Lock) Key() string { return m.keys[0] }

// maxGrant is the longest lease that a release grants to a waiter. The waiter may have died
// unnoticed: then the line waits for that long and no longer.
const maxGrant = 3 * time.Second

// keepSlack is how much longer than its entries a key lasts.
const keepSlack = time.Second

// newLease makes the Lease of one attempt to take the lock. It is not held yet.
func (m *Lock) newLease() *Lease {
	le := &Lease{lock: m, takenAt: time.Now()}
	body, size := wire.Token{
		Channel: m.locker.channel, Grant: min(m.ttl, maxGrant), Apart: m.onePerNote && m.note != "", TTL: m.ttl,
		Nonce: m.locker.nextNonce(le.takenAt), Arrival: m.arrival,
	}.Body(m.locker.owner, m.note)
	le.sent, le.body = m.locker.conn.NewBody(body), string(body)
	le.token = le.body[:size]
	le.asks.Body, le.releases.Body, le.releases.Releases = &le.sent, &le.sent, true
	return le
}

// parked is the lock as the parking of its Locker knows it.
func (m *Lock) parked() parking.Lock {
	return parking.Lock{Keys: m.keys, Limit: m.limit, KeepsLimit: m.keepsLimit, Ordered: m.isOrdered()}
}

// enter is [life.Life.Enter] for operations of a lock. It also returns the error of a bad name
// or option, and that of a ctx that has ended.
func (m *Lock) enter(ctx context.Context) error {
	if m.err != nil {
		return m.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.locker.life.Enter()
}

// TryLock takes the lock, or returns a *BusyError at once. It never overtakes a waiter: with
// others in line the lock is busy even if a slot is free. If an operator has paused the
// lock, the BusyError says so; see [Controls].
//
// After an error the caller holds nothing. If the reply was lost, so that the outcome is
// unknown, TryLock releases the lock in the background. If Redis does not answer, TryLock
// returns after about 5 s, or within a quarter of a second after ctx ended; the error then Is
// ErrBackend, and ctx.Err() if ctx ended. If ctx has ended when the lease arrives, TryLock
// gives the lease back and returns ctx.Err().
func (m *Lock) TryLock(ctx context.Context) (*Lease, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.locker.life.Done()
	looked := time.Now()
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
	if !answer.Yours {
		m.locker.releaseLater(le)
		return nil, m.busy(answer, 0, nil)
	}
	m.won(le, answer, sent)
	le, err = m.handOut(ctx, le)
	return m.inTime(ctx, looked, le, err)
}

// Lock takes the lock. If the lock is busy, Lock waits in line until ctx ends; the error then
// Is both ErrBusy and ctx.Err(). Waiters are served first come, first served. ctx bounds the
// wait only: the lease outlives ctx. After ctx has ended Lock never succeeds: it gives back a
// lease that arrives later.
//
// After an error the caller holds nothing, and has no place in line: Lock gives back a slot
// that was granted at the last moment. If Redis cannot be reached at first, the error Is
// ErrBackend, and also ctx.Err() if ctx ended meanwhile. A call that is in line already waits
// through an outage of up to about 15 s. If too few replicas acknowledge
// ([Options].MinReplicas), Lock returns ErrNotReplicated.
func (m *Lock) Lock(ctx context.Context) (*Lease, error) {
	return m.lockBefore(ctx, ctx, nil)
}

// askMode is what an ask does when no slot is free.
type askMode uint8

const (
	modeTry        askMode = iota // nothing
	modeJoin                      // join the line, or stay in it, for entryLifetime
	modeJoinOrPark                // so; but park if it is an ordered key, whose head is away
	modePark                      // keep a place in line without a goroutine
)

// lifetime is how long the line entry of an ask lives, in ms, as the scripts take it;
// 0: the ask does not join the line.
func (mode askMode) lifetime() int64 {
	if mode == modeJoin || mode == modeJoinOrPark {
		return entryLifetime.Milliseconds()
	}
	return 0
}

// ask runs the script ask for le. If the outcome is unknown it abandons le, so that nothing
// stays held. One script call drops at most 64 dead waiters, so ask repeats the call until
// all are dropped or ctx ends. It does not repeat an ask that joins the line: its refreshes
// go on.
func (m *Lock) ask(ctx context.Context, le *Lease, mode askMode) (wire.Answer, error) {
	for {
		a, err := m.askOnce(ctx, le, mode)
		if err != nil || !a.MorePruning || mode.lifetime() > 0 || ctx.Err() != nil || m.locker.life.Closing.Err() != nil {
			return a, err
		}
	}
}

func (m *Lock) askOnce(ctx context.Context, le *Lease, mode askMode) (wire.Answer, error) {
	s, args := m.kind.ask(le, mode)
	before := le.asks.Copies()
	reply, err := m.locker.conn.RunBounded(m.boundsOf(ctx, time.Now()), s, m.keys, args)
	mayHaveRun := le.asks.NoteReply(before, err)
	if err != nil {
		if mayHaveRun && !exchange.NotRun(err) || le.asks.MayRunYet() {
			m.locker.abandon(le)
		}
		return wire.Answer{}, exchange.Failed("ask", m.Key(), err)
	}
	a, err := m.parseAnswer(reply)
	if errors.Is(err, ErrBackend) { // the script may have taken the lock
		m.locker.abandon(le)
	}
	if !a.Yours || a.Returned {
		m.locker.contended.note(m.keys[0])
	}
	return a, err
}

// boundsOf returns the bounds of an operation's first exchange, which begins now.
func (m *Lock) boundsOf(ctx context.Context, now time.Time) exchange.Bounds {
	if m.uninterrupted {
		return toItsEnd(ctx, now)
	}
	return exchange.Bounds{Leave: ctx, Values: ctx, Now: now}
}

// toItsEnd returns the bounds of an exchange that begins now and goes on after the end of ctx.
func toItsEnd(ctx context.Context, now time.Time) exchange.Bounds {
	return exchange.Bounds{Leave: context.Background(), Values: ctx, Now: now}
}

// parseAnswer reads the reply to an ask.
func (m *Lock) parseAnswer(reply any) (wire.Answer, error) {
	a, ok := m.kind.parse(reply)
	if ok && a.Refused != "" {
		return wire.Answer{}, refusal(m, a)
	}
	if !ok || a.Yours && a.Fence <= 0 || !a.Yours && a.ServerUS <= 0 {
		return wire.Answer{}, exchange.Failed("ask", m.Key(), wire.Unexpected(reply))
	}
	return a, nil
}

// busy returns the error for a busy answer. cause is what ended the wait, or nil.
func (m *Lock) busy(a wire.Answer, waited time.Duration, cause error) *BusyError {
	e := &BusyError{Name: m.name, Reason: ReasonHeld, Waited: waited, Place: a.Place, Parked: a.Parked, cause: cause}
	if a.Deadline > 0 {
		e.ExpiresIn = a.Deadline
	}
	if a.Parked {
		e.TakenFor, e.InLine = max(0, a.SinceTaken), max(0, a.InLine)
	}
	if a.Gate > 0 {
		e.Reason, e.ExpiresIn = a.Reason, a.Gate
	}
	if paused := m.pausedError(); paused != nil {
		e.Reason, e.Pause, e.ExpiresIn, e.TakenFor = paused.Reason, paused.Pause, paused.ExpiresIn, 0
	}
	if h, ok := m.kind.parseHolder(a.Holder); ok {
		e.Holder, e.Note = h.Owner, h.Note
	}
	setBehind(e, a)
	return e
}

// abandon releases a token whose last command may have run or not. It releases now, and
// again later in case that command has not reached Redis yet; see releaseAgainAfter. If all
// releases fail, the slot is free at its deadline. Close sends the last release at once.
func (l *Locker) abandon(le *Lease) {
	l.life.Spawn(func() {
		_, _, err := le.release(context.Background())
		if err != nil && l.life.Closing.Err() != nil {
			return // Redis is away: Close must not wait for a second release
		}
		l.releaseToCool(le, err)
		l.abandoned.add(le, err != nil)
	})
}

// releaseLater releases a token later if a copy of its ask may yet run. Callers are
// counted in (see Life.Enter).
func (l *Locker) releaseLater(le *Lease) {
	if le.asks.MayRunYet() {
		l.life.Branch(func() { l.abandoned.add(le, false) })
	}
}

// spawnReleaseLater is releaseLater for callers that are not counted in. It does nothing
// after Close.
func (l *Locker) spawnReleaseLater(le *Lease) {
	if le.asks.MayRunYet() {
		l.life.Spawn(func() { l.abandoned.add(le, false) })
	}
}
