package lock

import (
	"context"
	"fmt"
	"slices"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/wire"
)

// Pool is a set of values (API keys, ports, licences, jobs) in Redis. [Pool.Take] takes one
// value out, and each value has one holder at a time. Callers of Take are served first come,
// first served, and values are handed out first in, first out. Different processes may put and
// take.
//
// A taken value is leased. [Lease.Unlock] returns the value to the pool. So does the end of
// the lease, if the holder dies. [Lease.Consume] removes the value from the pool. A value is
// never lost. Safe for concurrent use.
//
// A pool with values has no TTL in Redis: it lasts until its values are consumed or it is
// deleted.
type Pool struct{ m *Lock }

// Pool returns the pool called name. It does no I/O. TTL, MaxHold, NoRenew, Note and Parts
// apply to it as to a lock; Rate is an error. With a bad name or option every operation
// returns an error. A pool is independent of a lock with the same name.
func (l *Locker) Pool(name string, options ...Option) *Pool {
	m := l.Semaphore(name, 1, options...)
	m.kind = poolKind{}
	if m.rate.every > 0 && m.err == nil {
		m.err = fmt.Errorf("lock: pool %q: a pool has no Rate: its slots are its values; leave the option out", name)
	}
	m.keys = []string{m.keys[0] + ":pool"}
	return &Pool{m}
}

// Put adds values at the end, and returns how many it has certainly added, even with an error.
// It leaves out values that the pool has already, free or taken. After an error a Put may be
// repeated: only a value that was consumed meanwhile is added twice. (go-redis repeats a Put
// by itself if the connection breaks, so a job may be done twice.) Values are any text except
// the empty one; if one is empty, Put adds none.
func (p *Pool) Put(ctx context.Context, values ...string) (added int, err error) {
	args := make([]any, len(values))
	for i, value := range values {
		if value == "" {
			return 0, fmt.Errorf("lock: pool %q: value %d of %d is empty: nothing was put", p.m.name, i+1, len(values))
		}
		args[i] = keytext.Escape(value)
	}
	if err := p.m.checkFormat(ctx); err != nil {
		return 0, err
	}
	for args := range slices.Chunk(args, putMost) {
		reply, err := p.m.operate(ctx, wire.PoolPutScript, args)
		if err != nil {
			return added, err
		}
		n, more, err := wire.ParsePut(reply)
		if err != nil {
			return added, exchange.Failed("put", p.m.Key(), err)
		}
		added += n
		if more {
			p.m.locker.pruneOn(p.m)
		}
	}
	return added, p.m.err
}

// putMost is how many values one script call adds, so that it does not block Redis for long.
const putMost = 1000

// Take takes the first free value; [Lease.Value] returns it. If none is free, Take waits in
// line until ctx ends. Errors and guarantees are those of [Lock.Lock].
func (p *Pool) Take(ctx context.Context) (*Lease, error) { return p.m.Lock(ctx) }

// PoolInfo is the content of a pool at one moment.
type PoolInfo struct {
	// Free and Taken are the numbers of free and taken values. Waiting is the number of
	// callers of Take in line.
	Free, Taken, Waiting int
	// Values are the free values, the next one first, at most 1,000.
	Values []string
	// Holders are the holders of taken values, at most 1,000.
	Holders []Holder
}

// Inspect returns the content of the pool. It may be outdated at once. The error Is
// ErrBackend if Redis could not be asked.
func (p *Pool) Inspect(ctx context.Context) (PoolInfo, error) {
	if err := p.m.checkFormat(ctx); err != nil {
		return PoolInfo{}, err
	}
	reply, err := p.m.operate(ctx, wire.PoolInspectScript, []any{maxHolders})
	if err != nil {
		return PoolInfo{}, err
	}
	content, err := wire.ParsePool(reply)
	if err != nil {
		return PoolInfo{}, exchange.Failed("inspect", p.m.Key(), err)
	}
	info := PoolInfo{Free: content.Free, Taken: content.Taken, Waiting: content.Waiting, Values: content.Values}
	for _, h := range content.Holders {
		info.Holders = append(info.Holders, Holder(h))
	}
	return info, nil
}

// Delete deletes the pool with all its values, and returns how many there were. The contexts
// of the values' holders end with cause ErrLost, as with [Lock.Break].
func (p *Pool) Delete(ctx context.Context) (int, error) {
	if err := p.m.checkFormat(ctx); err != nil {
		return 0, err
	}
	return p.m.operateBreak(ctx, wire.PoolDeleteScript, nil)
}
