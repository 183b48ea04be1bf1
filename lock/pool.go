package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/keytext"
)

// Pool is a set of named values (API keys, ports, licences, jobs) in Redis that
// are taken out one by one, each by one holder at a time. Takers stand in line,
// first come, first served; values go first in, first out. Who puts and who
// takes may be different processes.
//
// A taken value is leased: it comes back by Unlock, or by itself when its taker
// dies, or leaves the pool for good by Consume. A value is never lost and never
// held by two. Safe for concurrent use.
//
// A pool with values has no TTL in Redis: it lasts until its values are
// consumed or it is deleted.
type Pool struct{ m *Lock }

// Pool is the pool called name. TTL, MaxHold, NoRenew, Note and Parts apply to
// it as to a lock; Rate is refused. A pool and a lock of one name have nothing to do with each
// other.
func (l *Locker) Pool(name string, options ...Option) *Pool {
	m := l.Semaphore(name, 1, options...)
	m.kind = poolKind{}
	if m.rate.every > 0 && m.err == nil {
		m.err = fmt.Errorf("lock: pool %q: a pool has no Rate: its slots are its values; leave the option out", name)
	}
	m.keys = []string{m.keys[0] + ":pool"}
	return &Pool{m}
}

// Put adds values, at the end. A value that the pool has already, free or
// taken, is left as it is: it is a set, and to put values again after an error
// does no harm unless they were consumed meanwhile. (The client does so by itself
// when a connection breaks: a value that is a job may then be done twice.) It
// tells how many were added, after an error too. Values are any text but the
// empty one; with an empty one among them nothing is added.
func (p *Pool) Put(ctx context.Context, values ...string) (added int, err error) {
	args := make([]any, len(values))
	for i, value := range values {
		if value == "" {
			return 0, fmt.Errorf("lock: pool %q: value %d of %d is empty: nothing was put", p.m.name, i+1, len(values))
		}
		args[i] = keytext.Escape(value)
	}
	for args := range slices.Chunk(args, putMost) {
		reply, err := p.m.operate(ctx, poolPutScript, args)
		if err != nil {
			return added, err
		}
		f := listOf(reply)
		n, _, more := f.num(0), f.num(1), f.num(2)
		if err := f.err(reply); err != nil {
			return added, backendError("put", p.m.Key(), err)
		}
		added += int(n)
		if more == 1 {
			p.m.locker.pruneOn(p.m)
		}
	}
	return added, p.m.err
}

// putMost bounds how long one Put keeps Redis from others.
const putMost = 1000

// Take takes a value, waiting in line until ctx ends; [Lease.Value] is the
// value. Errors and guarantees are those of [Lock.Lock].
func (p *Pool) Take(ctx context.Context) (*Lease, error) { return p.m.Lock(ctx) }

// PoolInfo is what a pool has at one moment.
type PoolInfo struct {
	Free, Taken, Waiting int
	// Values are the free values, next one first, at most 1,000.
	Values []string
	// Holders are those who have taken one, at most 1,000.
	Holders []Holder
}

// Inspect tells what the pool has.
func (p *Pool) Inspect(ctx context.Context) (PoolInfo, error) {
	reply, err := p.m.operate(ctx, poolInspectScript, []any{maxHolders})
	if err != nil {
		return PoolInfo{}, err
	}
	f := listOf(reply)
	us := f.num(0)
	info := PoolInfo{Free: int(f.num(1)), Taken: int(f.num(2)), Waiting: int(f.num(3))}
	values, holders := fields{list: field[[]any](f, 4)}, field[[]any](f, 5)
	for i := range values.list {
		info.Values = append(info.Values, unescape(strings.TrimPrefix(values.text(i), "t:")))
	}
	if f.wrong || values.wrong {
		return PoolInfo{}, backendError("inspect", p.m.Key(), unexpected(reply))
	}
	for i := 0; i+1 < len(holders); i += 2 {
		member, _ := holders[i].(string)
		score, _ := holders[i+1].(string)
		value, expires, err := parseTaken(member, score, us)
		holder, ok := p.m.kind.parseHolder(member)
		if err != nil || !ok {
			return PoolInfo{}, backendError("inspect", p.m.Key(), fmt.Errorf("unexpected member %q with score %q", member, score))
		}
		if holder.ExpiresIn = expires; expires <= 0 {
			info.Values = append(info.Values, value) // lapsed: free at the next call
			continue
		}
		holder.Value = value
		info.Holders = append(info.Holders, Holder(holder))
	}
	return info, nil
}

// parseTaken reads h:<value>|... and its deadline.
func parseTaken(member, score string, us int64) (value string, expires time.Duration, err error) {
	ms, err := strconv.ParseFloat(score, 64)
	for i := range len(member) {
		if member[i] == '|' {
			value = unescape(member[len("h:"):i])
			break
		}
	}
	return value, time.Duration(ms)*time.Millisecond - time.Duration(us)*time.Microsecond, err
}

// Delete removes the pool with all its values, and tells how many. The contexts
// of takers end with ErrLost, as with [Lock.Break].
func (p *Pool) Delete(ctx context.Context) (int, error) {
	return p.m.operateBreak(ctx, poolDeleteScript, nil)
}
