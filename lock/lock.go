package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
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
	m.keys = []string{keys.HashedKey(*l.secret, l.prefix, name, m.parts...)}
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

// grantLength is how long a lease lasts that a release grants to a waiter of m.
func (m *Lock) grantLength() time.Duration { return min(m.ttl, maxGrant) }

// keepSlack is how much longer than its entries a key lasts.
const keepSlack = time.Second

// newLease makes the Lease of one attempt to take the lock. It is not held yet.
func (m *Lock) newLease() *Lease {
	le := &Lease{lock: m, takenAt: time.Now()}
	body, size := wire.Token{
		Channel: m.locker.channel, Grant: m.grantLength(), Apart: m.onePerNote && m.note != "", TTL: m.ttl,
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

// wholeMS rounds d up to whole milliseconds, which is what Redis counts in.
func wholeMS(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 && d <= inside.MaxTTL {
		d += time.Millisecond - rest
	}
	return d
}
