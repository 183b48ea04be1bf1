package lock_test

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// insiders ask the engine beneath a lock as the Guard does, in terms of package lock.
var insiders asking

type asking struct{}

func option(set func(r *engine.Request)) lock.Option {
	return func(m *lock.Lock) {
		_, r, _ := insider.Request(m)
		set(r)
	}
}

func (asking) OnWait(f func()) lock.Option { return option(func(r *engine.Request) { r.OnWait = f }) }
func (asking) OnePerNote() lock.Option     { return option(func(r *engine.Request) { r.Notes = true }) }

func (asking) Arrive(ctx context.Context, m *lock.Lock) (arrival int64, first bool, err error) {
	e, r, err := insider.Request(m)
	if err != nil {
		return 0, false, err
	}
	return e.Arrive(ctx, r.Ref, r.Note, time.Hour)
}

func (asking) Forget(ctx context.Context, m *lock.Lock) error {
	e, r, err := insider.Request(m)
	if err != nil {
		return err
	}
	return e.Forget(ctx, r.Ref, r.Note)
}

func (asking) ActOrder(ctx context.Context, m *lock.Lock, act inside.OrderAct, item inside.OrderItem, after time.Duration) error {
	e, r, err := insider.Request(m)
	if err != nil {
		return err
	}
	ref := r.Ref
	ref.Ordered = true
	return e.Act(ctx, ref, act, item, after)
}

func (asking) IsOrderDone(err error) bool  { return errors.Is(err, engine.ErrOrderDone) }
func (asking) IsOrderSpent(err error) bool { return errors.Is(err, engine.ErrOrderSpent) }

// At is the lock with that key, and what m was made with.
func (asking) At(m *lock.Lock, name, key string, limit int, note string, options ...lock.Option) *lock.Lock {
	other := *m
	_, r, _ := insider.Request(&other)
	r.Name, r.Key, r.Limit, r.Note = name, key, limit, note
	for _, option := range options {
		option(&other)
	}
	return &other
}
