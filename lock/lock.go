package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/inside"
)

// Lock is one lock: at most N holders, and a line of waiters. A mutex has N = 1. A Lock is only a handle: two with the
// same name and parts, on the same Redis and prefix, are the same lock. It is immutable, safe for concurrent use, and
// needs no Close.
type Lock struct {
	handle
	parts []string
}

type handle = inside.Of[engine.Handle]

func (m *Lock) engine() *engine.Engine { return inside.At(m).Engine }
func (m *Lock) name() string           { return inside.At(m).Request.Name }

// Option sets a property of a lock. Every operation of the lock returns an error for a bad option. A nil Option does
// nothing.
type Option func(*Lock)

// TTL sets the length of a lease: how long the lock stays taken after its holder died. While the holder lives the lease
// is renewed, so a short TTL does not bound the work. From 100 ms to ten years, rounded up to whole milliseconds;
// without the option [Options].TTL.
func TTL(d time.Duration) Option { return func(m *Lock) { inside.At(m).Request.TTL = d } }

// MaxHold bounds how long a lease lasts: d after the lock was taken the lease is lost, and not renewed any more. The
// slot is free at its deadline, at most a TTL later. 0: no bound. Otherwise at least 100 ms.
func MaxHold(d time.Duration) Option { return func(m *Lock) { inside.At(m).Request.MaxHold = d } }

// NoRenew turns renewal off: the lease ends a TTL after it was taken, unless it is extended.
func NoRenew() Option { return func(m *Lock) { inside.At(m).Request.NoRenew = true } }

// Note attaches a text to the holder, which others see in [Holder].Note and [BusyError].Note. Any text; empty: none.
func Note(text string) Option { return func(m *Lock) { inside.At(m).Request.Note = text } }

// Fenced gives each lease of the lock a fence; see [Lease.Fence]. It comes with the grant, and so costs no command of
// its own, but a free mutex is taken by a script then instead of a SET. Holders that need no fence may leave the option
// out, whatever others do.
func Fenced() Option { return func(m *Lock) { inside.At(m).Request.Fenced = true } }

// Parts adds values to the lock's key. The name is the scope, and each different list of parts is another lock in it.
// Parts may contain any bytes: different lists never share a key. [Options].HashKeys keeps the values out of Redis.
func Parts(parts ...string) Option { return func(m *Lock) { m.parts = parts } }

// Mutex returns the lock called name, for one holder at a time. It does no I/O. The name may be any text except the
// empty one. With a bad name or option every operation returns an error.
func (l *Locker) Mutex(name string, options ...Option) *Lock { return l.Semaphore(name, 1, options...) }

// Semaphore returns the lock called name, for n holders at a time; n is at least 1. Like [Locker.Mutex] it does no I/O.
// Callers may give different n for one lock, as they do while a new version is deployed: a slot is granted by the n of
// whoever grants it, the caller that takes it or the holder that gives it back to a waiter.
func (l *Locker) Semaphore(name string, n int, options ...Option) *Lock {
	e := l.engine()
	m := &Lock{handle: inside.Make(engine.Handle{Engine: e, Request: engine.Request{
		Ref: engine.Ref{Limit: n, Rated: true}, Name: name, TTL: e.Options().TTL}})}
	for _, option := range options {
		if option != nil {
			option(m)
		}
	}
	h := inside.At(m)
	h.Err = cmp.Or(e.Life().Unfit(), h.Err, h.Request.Check())
	h.Request.Key = e.Key(name, m.parts...)
	return m
}

// Key returns the lock's main Redis key; others begin with it. An idle lock has no key in Redis.
func (m *Lock) Key() string { return inside.At(m).Request.Key }

// Rate bounds how often the lock is taken: starts times in each period per, evenly spread. After a time without starts,
// up to burst starts may come at once. In any time d the lock is taken at most burst + starts*d/per times, by Redis'
// clock. When the bound is reached the lock's gate is closed: TryLock returns a [*BusyError] with Reason [ReasonRate],
// and Lock waits in line until the gate opens.
//
// starts is at least 1, with at most one start a microsecond; a burst of 0 means 1. per is at most a year. The time
// from one start to the next is rounded up to whole microseconds. All callers of a lock should give the same rate;
// otherwise that of the last ask applies.
func Rate(starts int, per time.Duration, burst int) Option {
	every, spare, err := rate.Rate{Starts: starts, Per: per, Burst: burst}.Bucket()
	return func(m *Lock) {
		h := inside.At(m)
		if h.Request.Every, h.Request.Spare = every, spare; err != nil && h.Err == nil {
			h.Err = fmt.Errorf("lock: %q: %w", h.Request.Name, err)
		}
	}
}

// TryLock takes the lock, or returns a *BusyError at once. It never overtakes a waiter: with others in line the lock is
// busy even if a slot is free.
//
// After an error the caller holds nothing. If the reply was lost, so that the outcome is unknown, TryLock releases the
// lock in the background. If Redis does not answer, TryLock returns after about 5 s, or within a quarter of a second
// after ctx ended; the error then Is ErrBackend, and ctx.Err() if ctx ended. After ctx has ended it never succeeds: it
// gives back a lease that arrives later.
func (m *Lock) TryLock(ctx context.Context) (*Lease, error) {
	le, err := m.take(ctx, inside.At(m).Request)
	if err == nil {
		return le, nil
	}
	if busy := (*BusyError)(nil); errors.As(err, &busy) && busy.cause != nil {
		err = busy.cause
	}
	return nil, err
}

// Lock takes the lock. If the lock is busy, Lock waits in line until ctx ends; the error then Is both ErrBusy and
// ctx.Err(). ctx bounds the wait only: the lease outlives ctx. After ctx has ended Lock never succeeds.
//
// After an error the caller holds nothing, and has no place in line. If Redis cannot be reached at first, the error Is
// ErrBackend, and also ctx.Err() if ctx ended meanwhile. A call that is in line already waits through an outage of up
// to about 15 s. If too few replicas acknowledge ([Options].MinReplicas), Lock returns ErrNotReplicated.
func (m *Lock) Lock(ctx context.Context) (*Lease, error) {
	r := inside.At(m).Request
	r.Line = cmp.Or(r.Line, inLine)
	return m.take(ctx, r)
}

var inLine = &engine.Line{}

// Acquire takes the lock, and reports with ok whether it did: a busy lock is no error. within is the longest wait in
// line. 0 tries once, as [Lock.TryLock]; a negative within is an error. Acquire takes a free lock however short within
// is, and however long Redis takes to reply. If ctx ends, the error is that of ctx. Other errors are those of
// [Lock.Lock].
func (m *Lock) Acquire(ctx context.Context, within time.Duration) (lease *Lease, ok bool, err error) {
	if within < 0 {
		return nil, false, fmt.Errorf("lock: %q: a wait of %s: 0 tries once; to wait as long as the context allows, use Lock",
			m.name(), within)
	}
	r := inside.At(m).Request
	if within > 0 {
		bound, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		r.Line = &engine.Line{Within: bound}
	}
	lease, err = m.take(ctx, r)
	if errors.Is(err, ErrBusy) {
		return nil, false, ctx.Err()
	}
	return lease, err == nil, err
}

func (m *Lock) take(ctx context.Context, r engine.Request) (*Lease, error) {
	h := inside.At(m)
	if h.Err != nil {
		return nil, h.Err
	}
	le, err := h.Engine.Take(ctx, &r)
	if err != nil {
		return nil, m.busyOr(err)
	}
	return &Lease{inside.Make(le)}, nil
}
