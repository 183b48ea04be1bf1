package lock

import (
	"context"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/wire"
)

// A mutex that nobody waits for is a string in Redis, taken by SET with NX and PX; see
// docs/redis.md and lua/form.lua. If the key exists already, the caller runs the script ask,
// which turns the string into a sorted set if need be. It is released by a command that deletes a
// string if it has that value, where the server has one. Nobody waits for a string, so there is nobody to grant
// the lock to. If that command replies anything else than that it has deleted the key, the script release
// decides.

// mayTakeString reports whether m is taken by SET first: a mutex that was not contended lately. All
// other locks are sorted sets from the start: pools, those in order, those with several slots, a rate,
// a fence (which the reply to an ask has, and that to a SET has not) or MinReplicas, and a contended
// mutex, for which the SET would probably fail.
func (m *Lock) mayTakeString() bool {
	l := m.locker
	return m.kind == lockKind{} && m.slots() == 1 && m.rate.every == 0 && !m.fenced && l.replicas == 0 && l.strings && !l.conn.SetIsRefused() && !l.contended.isContended(m.keys[0])
}

// takeString takes m as a string. false without an error means that the caller has to ask:
// the key exists, and may even be this lease's, since go-redis sends a SET again if its reply
// was lost. Or Redis refused the SET, but may run the script.
func (m *Lock) takeString(ctx context.Context, le *Lease) (ok bool, err error) {
	before := le.asks.Copies()
	conn := m.locker.conn
	ok, err = conn.SetFirst(m.boundsOf(ctx, le.takenAt), m.keys[0], &le.asks, m.ttlArg)
	mayHaveRun := le.asks.NoteReply(before, err)
	if err == nil || conn.SetRefused(err) {
		return ok, nil
	}
	if mayHaveRun && !exchange.NotRun(err) || le.asks.MayRunYet() {
		m.locker.abandon(le)
	}
	return false, exchange.Failed("set", m.Key(), conn.DescribeSet(err))
}

// releaseFirst releases le for the first time, at now.
func (le *Lease) releaseFirst(ctx context.Context, was leaseState, now time.Time) (free int, held bool, err error) {
	m := le.lock
	if !le.mayBeString(was) {
		return le.releaseAt(ctx, now)
	}
	deleted, err := m.locker.conn.DeleteFirst(toItsEnd(ctx, now), m.keys[0], &le.releases)
	switch {
	case err != nil || deleted == exchange.DeleteDone:
		return le.noteRelease(le.releases.Copies(), int64(m.slots()), err, now) // what the script replies
	case deleted == exchange.DeleteRefused:
		return le.releaseAt(ctx, time.Now())
	}
	_, args := m.kind.release(le)
	return le.releaseBy(ctx, now, wire.ReleaseStringScript, args)
}

// mayBeString reports whether le may still be a string in Redis that its release only has to delete. A lease with a fence
// was never one, and a caller that wanted a contended key has probably made it a sorted set.
func (le *Lease) mayBeString(was leaseState) bool {
	m := le.lock
	return le.fence == 0 && was == leaseHeld && le.cooldownEnd.Load() == nil && !m.locker.contended.isContended(m.keys[0])
}

// contendedFor is how long a key counts as contended after another caller was seen to want
// it beside its holder, give or take a contendedTick.
const (
	contendedFor  = time.Second
	contendedTick = 100 * time.Millisecond
)

// contendedKeys remembers which keys were contended lately. For such a key package lock
// sends the ask without a SET before it: the SET would fail, and a turn of a contended lock
// costs two commands instead of three. The table never grows. Two keys may share a slot, and
// of two goroutines that write a slot at once either wins. The only cost is a command in
// vain, or a lock that is stored as a sorted set without need.
type contendedKeys struct {
	seed  maphash.Seed
	began time.Time
	slots [1024]atomic.Uint32 // ticks since began, counted from 1; 0: never
}

func newContendedKeys() *contendedKeys {
	return &contendedKeys{seed: maphash.MakeSeed(), began: time.Now()}
}

func (k *contendedKeys) slot(key string) *atomic.Uint32 {
	return &k.slots[maphash.String(k.seed, key)%uint64(len(k.slots))]
}

func (k *contendedKeys) tick() uint32 {
	return uint32(time.Since(k.began)/contendedTick) + 1 //nolint:gosec // 13 years until it wraps, which costs one command
}

// note notes that key is contended now.
func (k *contendedKeys) note(key string) { k.slot(key).Store(k.tick()) }

// isContended reports whether key was noted within contendedFor.
func (k *contendedKeys) isContended(key string) bool {
	at := k.slot(key).Load()
	return at != 0 && k.tick()-at < uint32(contendedFor/contendedTick)
}
