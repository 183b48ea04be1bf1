package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

// Lock is one lock: at most N holders, and a line of waiters. A mutex has N = 1. A Lock is
// only a handle: two handles with the same name and parts, on the same Redis and prefix, are
// the same lock. A handle is immutable, safe for concurrent use, and needs no Close.
type Lock struct {
	locker  *Locker
	request engine.Request // what is asked for
	parts   []string
	err     error // what is wrong with the definition; every operation returns it
}

// Option sets a property of a lock: [TTL], [MaxHold], [NoRenew], [Note], [Parts], [Rate] or
// [Fenced].
// Every operation of the lock returns an error for a bad option. A nil Option does nothing.
type Option func(*Lock)

// TTL sets the length of a lease: how long the lock stays taken after its holder died. While
// the holder lives the lease is renewed, so a short TTL does not bound the work. The minimum
// is 100 ms, the maximum ten years; d is rounded up to whole milliseconds. Without the option
// the length is [Options].TTL. Holders of one lock may have different TTLs.
func TTL(d time.Duration) Option { return func(m *Lock) { m.request.TTL = d } }

// MaxHold bounds how long a lease lasts: d after the lock was taken, the lease is lost. The
// context of Bind or Do ends with cause ErrLost, and the lease is not renewed any more. The
// slot is free at the lease's deadline, at most a TTL later. 0: no bound. A negative d is an
// error.
func MaxHold(d time.Duration) Option { return func(m *Lock) { m.request.MaxHold = d } }

// NoRenew turns renewal off: the lease ends a TTL after it was taken, unless it is extended.
func NoRenew() Option { return func(m *Lock) { m.request.NoRenew = true } }

// Note attaches a text to the holder. Others see it in [Holder].Note and [BusyError].Note. Any
// text; empty: none.
func Note(text string) Option { return func(m *Lock) { m.request.Note = text } }

// Fenced gives each lease of the lock a fence, a number that grows from holder to holder; see
// [Lease.Fence]. Redis replies with it when it grants the lock, so it costs no command of its own. But
// a free mutex is taken by a script then, which costs Redis more than the SET of another mutex.
// Holders that need no fence may leave the option out, whatever others do.
func Fenced() Option { return func(m *Lock) { m.request.Fenced = true } }

// Parts adds values to the lock's key. The name is the scope, and each different list of parts
// is another lock in it. Parts may contain any bytes: different lists never share a key.
// [Options].HashKeys keeps the values out of Redis.
func Parts(parts ...string) Option { return func(m *Lock) { m.parts = parts } }

// Mutex returns the lock called name, for one holder at a time. It does no I/O. The name may
// be any text except the empty one. With a bad name or option every operation returns an
// error.
func (l *Locker) Mutex(name string, options ...Option) *Lock {
	return l.Semaphore(name, 1, options...)
}

// Semaphore returns the lock called name, for n holders at a time; n is at least 1. Like
// [Locker.Mutex] it does no I/O. Callers may give different n for one lock, as they do while a
// new version is deployed. A slot is granted by the n of whoever grants it: the caller that takes it, or the
// holder that gives it back to a waiter.
func (l *Locker) Semaphore(name string, n int, options ...Option) *Lock {
	m := &Lock{locker: l, err: l.life.Unfit(), request: engine.Request{Ref: engine.Ref{Limit: n}, Name: name, TTL: l.ttl}}
	for _, option := range options {
		if option != nil {
			option(m)
		}
	}
	r := &m.request
	given := r.TTL
	r.TTL = wholeMS(given)
	switch {
	case m.err != nil:
	case name == "":
		m.err = errors.New("lock: the name is empty: name what the lock protects")
	case n < 1:
		m.err = fmt.Errorf("lock: %q: %d holders: at least 1", name, n)
	case r.MaxHold < 0:
		m.err = fmt.Errorf("lock: %q: MaxHold is %s: not below 0, where 0 means no bound", name, r.MaxHold)
	case checkTTL("", r.TTL) != nil: // format the text only for an error: every task makes a lock
		m.err = checkTTL(fmt.Sprintf("the TTL of %q", name), given)
	}
	r.Key = keys.HashedKey(*l.secret, l.prefix, name, m.parts...)
	return m
}

// pool returns the lock of a pool, whose slots are its values.
func (l *Locker) pool(name string, options ...Option) *Lock {
	m := l.Semaphore(name, 1, options...)
	if m.request.Every > 0 && m.err == nil {
		m.err = fmt.Errorf("lock: pool %q: a pool has no Rate: its slots are its values; leave the option out", name)
	}
	m.request.Pool = true
	m.request.Key += ":pool"
	return m
}

// Key returns the lock's main Redis key; others begin with it. An idle lock has no key in Redis.
func (m *Lock) Key() string { return m.request.Key }

// wholeMS rounds d up to whole milliseconds, which is what Redis counts in.
func wholeMS(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 && d <= inside.MaxTTL {
		d += time.Millisecond - rest
	}
	return d
}

// maxRatePeriod is the longest period of a [Rate], a year.
const maxRatePeriod = 365 * 24 * time.Hour

// Rate bounds how often the lock is taken: starts times in each period per, evenly spread.
// After a time without starts, up to burst starts may come at once. In any time d the lock is
// taken at most burst + starts*d/per times, by Redis' clock. When the bound is reached the
// lock's gate is closed: TryLock returns a [*BusyError] with Reason [ReasonRate], and Lock
// waits in line until the gate opens.
//
// starts is at least 1, with at most one start a microsecond; a burst of 0 means 1: no two come at
// once, and at most starts + 1 in any period. per is at most a year. The time from one start to the next is rounded up to whole microseconds. All callers
// of a lock should give the same rate; otherwise the rate of the last ask applies. Without the
// option there is no bound.
func Rate(starts int, per time.Duration, burst int) Option {
	every, spare, err := newRate(starts, per, burst)
	return func(m *Lock) {
		if m.request.Every, m.request.Spare = every, spare; err != nil && m.err == nil {
			m.err = fmt.Errorf("lock: %q: %w", m.request.Name, err)
		}
	}
}

// checkRate returns what is wrong with the arguments of [Rate], or nil.
func checkRate(starts int, per time.Duration, burst int) error {
	_, _, err := newRate(starts, per, burst)
	return err
}

// newRate gives the time from one start to the next, and how much of it can be saved up.
func newRate(starts int, per time.Duration, burst int) (every, spare time.Duration, err error) {
	switch {
	case starts < 1:
		err = fmt.Errorf("a rate of %d starts: at least 1; leave the rate out for no bound", starts)
	case per <= 0:
		err = fmt.Errorf("a rate per %s: give a period above 0, such as a second", per)
	case per > maxRatePeriod:
		err = fmt.Errorf("a rate per %s: at most %s", per, maxRatePeriod)
	case int64(starts) > per.Microseconds():
		err = fmt.Errorf("a rate of %d starts per %s: at most one a microsecond%s", starts, per, printable.MeantUnit(per))
	case burst < 0:
		err = fmt.Errorf("a rate with a burst of %d: at least 1, which means that no two come at once", burst)
	}
	if err != nil {
		return 0, 0, err
	}
	burst = max(burst, 1)
	unit := int64(starts) * int64(time.Microsecond) // no overflow: starts is at most a year's microseconds
	every = time.Duration((int64(per)+unit-1)/unit) * time.Microsecond
	if int64(burst) > int64(inside.MaxTTL/every) {
		return 0, 0, fmt.Errorf("a rate of %d starts per %s with a burst of %d: that many take longer than %s; give a smaller burst", starts, per, burst, inside.MaxTTL)
	}
	return every, every * time.Duration(burst-1), nil
}
