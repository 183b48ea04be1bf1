// Package pool keeps sets of values in Redis (API keys, ports, licences, jobs), each for one holder at a time.
//
//	ports := pool.New(locker, "ports")
//	added, err := ports.Put(ctx, "8001", "8002")
//	lease, err := ports.Take(ctx) // in line until ctx ends; lease.Value() is one of them
//	defer lease.Unlock(ctx)       // back into the pool; Consume takes the value out for good
package pool

import (
	"context"
	"fmt"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/lock"
)

// Pool is a set of values in Redis. [Pool.Take] takes one value out. Callers of Take are served first come, first
// served, and values are handed out first in, first out. Different processes may put and take. Safe for concurrent use.
//
// A taken value is leased. Unlock returns the value to the pool. So does the end of the lease, if the holder dies.
// [Lease.Consume] removes the value from the pool. A value is never lost, and a pool with values lasts until they are
// consumed or it is deleted.
type Pool struct{ m *lock.Lock } // a lock whose slots are the values

// New returns the pool called name. It does no I/O. TTL, MaxHold, NoRenew, Note and Parts apply to it as to a lock;
// Rate is an error. With a bad name or option every operation returns an error. A pool is independent of a lock with
// the same name.
func New(l *lock.Locker, name string, options ...lock.Option) *Pool {
	m := l.Semaphore(name, 1, options...)
	h := inside.At(m)
	if h.Request.Every > 0 && h.Err == nil {
		h.Err = fmt.Errorf("lock: pool %q: a pool has no Rate: its slots are its values; leave the option out", name)
	}
	h.Request.Pool = true
	h.Request.Key += ":pool"
	return &Pool{m}
}

// Put adds values at the end, and returns how many it has certainly added, even with an error. It leaves out values
// that the pool has already, free or taken. After an error a Put may be repeated: only a value that was consumed
// meanwhile is added twice. (go-redis repeats a Put by itself if the connection breaks, so a job may be done twice.)
// Values are any text except the empty one; if one is empty, Put adds none.
func (p *Pool) Put(ctx context.Context, values ...string) (added int, err error) {
	h := inside.At(p.m)
	if h.Err != nil {
		return 0, h.Err
	}
	return h.Engine.Put(ctx, h.Request.Ref, values)
}

// Take takes the first free value; [Lease.Value] returns it. If none is free, Take waits in line until ctx ends. Errors
// and guarantees are those of [lock.Lock.Lock].
func (p *Pool) Take(ctx context.Context) (*Lease, error) {
	le, err := p.m.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return &Lease{le}, nil
}

// Lease is the right of one holder to a value, until a deadline; see [lock.Lease]. Cooldown is Unlock.
type Lease struct{ *lock.Lease }

// Value returns the value that was taken out of the pool.
func (le *Lease) Value() string { return keys.Unescape((*inside.At(le.Lease)).Value()) }

// Consume ends the lease, and removes its value from the pool. The errors are those of Unlock. After ErrNotHeld the
// value is back in the pool, or another holder has it. After ErrBackend Consume is tried again in the background.
func (le *Lease) Consume(ctx context.Context) error {
	_, err := (*inside.At(le.Lease)).Release(ctx, engine.Ending{Consume: true})
	return err
}

// Info is the content of a pool at one moment.
type Info struct {
	Free, Taken, Waiting int      // free values, taken ones, and callers of Take in line
	Values               []string // the free values, the next one first, at most 1,000
	Holders              []Holder // the holders of taken values, at most 1,000
}

// Holder is the holder of a value, as others see it.
type Holder struct {
	lock.Holder
	Value string
}

// Inspect returns the content of the pool. It may be outdated at once. The error Is ErrBackend if Redis could not be
// asked.
func (p *Pool) Inspect(ctx context.Context) (Info, error) {
	h := inside.At(p.m)
	if h.Err != nil {
		return Info{}, h.Err
	}
	content, err := h.Engine.Inspect(ctx, h.Request.Ref, engine.MaxHolders)
	info := Info{Free: content.Free, Taken: content.Held, Waiting: content.Waiting, Values: content.Values}
	for i, h := range content.Holders {
		info.Holders = append(info.Holders, Holder{lock.Holder(h), content.Lent[i]})
	}
	return info, err
}

// Delete deletes the pool with all its values, and returns how many there were. The contexts of the values' holders end
// with cause ErrLost, as with [lock.Lock.Break].
func (p *Pool) Delete(ctx context.Context) (int, error) {
	h := inside.At(p.m)
	if h.Err != nil {
		return 0, h.Err
	}
	return h.Engine.Break(ctx, h.Request.Ref, engine.BreakKey)
}
