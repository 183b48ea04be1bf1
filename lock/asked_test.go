package lock_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// insider asks the engine beneath a lock as the Guard and operators do, in terms of package lock.
var insider asking

type asking struct{}

// engineOf is the engine of a Locker.
func engineOf(l *lock.Locker) *engine.Engine { return *inside.At(l) }

func option(set func(r *engine.Request)) lock.Option {
	return func(m *lock.Lock) { set(&inside.At(m).Request) }
}

func (asking) InOrder(p engine.Place) lock.Option {
	return option(func(r *engine.Request) { r.Ordered, r.Place = true, &p })
}

// Caller is lock.New with what calls parked work.
func (asking) Caller(rdb redis.UniversalClient, o lock.Options, call engine.Caller) *lock.Locker {
	l := &lock.Locker{}
	*inside.At(l) = engine.New(engine.Options{
		Client: rdb, Prefix: o.Prefix, Owner: o.Owner, TTL: lock.DefaultTTL, Log: slog.New(slog.DiscardHandler), Call: call,
		Obeys: true,
	})
	return l
}

func (asking) LockErr(m *lock.Lock) error { return inside.At(m).Err }

// Arrive has the lock's note come and end, under Replace.
func (asking) Arrive(ctx context.Context, m *lock.Lock) (overtaken bool, err error) {
	h := inside.At(m)
	at, overtaken, err := h.Engine.Arrive(ctx, h.Request.Ref, h.Request.Note)
	return overtaken, errors.Join(err, h.Engine.Forget(ctx, h.Request.Ref, h.Request.Note, at, true))
}

func (asking) Stamp(
	ctx context.Context, m *lock.Lock, note, nonce string, deadline time.Duration, most int,
) (int64, int, []engine.OrderItem, error) {
	h := inside.At(m)
	return h.Engine.Stamp(ctx, h.Request.Ref, note, nonce, deadline, most)
}

func (asking) EndOrder(le *lock.Lease, o engine.Outcome) { (*inside.At(le)).End(o) }

func (asking) Inspect(ctx context.Context, m *lock.Lock) (engine.Info, error) {
	h := inside.At(m)
	return h.Engine.Inspect(ctx, h.Request.Ref, engine.MaxHolders)
}

func (asking) Line(ctx context.Context, m *lock.Lock, info engine.Info, most int) ([]engine.Waiter, error) {
	h := inside.At(m)
	return h.Engine.Line(ctx, h.Request.Ref, info, most)
}

func (asking) List(ctx context.Context, l *lock.Locker) iter.Seq2[engine.Info, error] {
	return engineOf(l).List(ctx)
}
func (asking) Sweep(ctx context.Context, l *lock.Locker) (int, error) { return engineOf(l).Sweep(ctx) }

func (asking) CloseGate(ctx context.Context, le *lock.Lease, d time.Duration) error {
	return (*inside.At(le)).CloseGate(ctx, d)
}

func (asking) Claim(l *lock.Locker, key string) claims.Claim {
	return engineOf(l).Claim(key)
}

// ByKey is the lock with that key, for operators.
func (asking) ByKey(l *lock.Locker, key string) *lock.Lock {
	m := l.Mutex(key)
	inside.At(m).Request.Ref, inside.At(m).Err = engineOf(l).Ref(key)
	return m
}

// Pool is the lock whose slots are the values of a pool.
func (asking) Pool(l *lock.Locker, name string, options ...lock.Option) *lock.Lock {
	m := l.Mutex(name, options...)
	r := &inside.At(m).Request
	r.Pool, r.Key = true, r.Key+":pool"
	return m
}

// At is the lock with that key, and what m was made with.
func (asking) At(m *lock.Lock, name, key string, limit int, note string, options ...lock.Option) *lock.Lock {
	other := *m
	r := &inside.At(&other).Request
	r.Name, r.Key, r.Limit, r.Note = name, key, limit, note
	for _, option := range options {
		option(&other)
	}
	return &other
}
