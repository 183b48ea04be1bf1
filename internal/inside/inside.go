// Package inside is what the packages of this module share of locks, and nobody else: Go lets no other module import it.
package inside

import (
	"context"
	"time"
)

// Defaults and bounds of package lock.
const (
	// DefaultPrefix begins the keys and channels of a Locker without a Prefix.
	DefaultPrefix = "automutex"
	// MinTTL is the shortest lease: below it, a pause of the garbage collector or a slow
	// network would lose leases in normal operation.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest lease, extension, cooldown and claim, ten years: beyond,
	// times would overflow, and a lock that nobody frees is no lease.
	MaxTTL = 10 * 365 * 24 * time.Hour
	// ReplicasWithin is how long replicas have to acknowledge what counts only with
	// lock.Options.MinReplicas. It is less where a quarter of the TTL, half of the
	// client's ReadTimeout, or what is left of the context of an acquire is less; but of
	// that they have a quarter of a second in any case.
	ReplicasWithin = time.Second
)

// Caller brings parked work back: it has the work with that note, parked on the lock
// with that key, run again, and returns what happened. A Locker calls it on goroutines
// of its own, up to sixteen at once, and again as long as the work does not come. All
// processes together call at most one Caller at a time for one note of one lock, if the
// work runs before the deadline of ctx or not at all. ctx ends at that deadline, and
// when the Locker is closed.
type Caller func(ctx context.Context, key, note string) Fate

// Fate is what a call of parked work led to.
type Fate int

const (
	// FateUnsure means that nothing is known of the call, or that it is not possible
	// yet. The call is repeated.
	FateUnsure Fate = iota
	// FateComing means that the work is on its way.
	FateComing
	// FateGone means that there is no such work any more, or that it is not parked here.
	// Its place is given up, and the next is called at once.
	FateGone
	// FateLater means that the work cannot run for now. It goes to the end of the line,
	// and the next is called at once.
	FateLater
)

// Standing says whom an arrival has before it when the newest win. Of a semaphore with
// N slots the N newest are first. A holder without an arrival keeps its slot, which
// counts as one of the N.
type Standing int

const (
	// First means that the arrival is among the newest.
	First Standing = iota
	// BehindHolders means that newer arrivals hold the slots.
	BehindHolders
	// BehindWaiters means that newer arrivals have the slots coming to them, and that
	// some of these wait.
	BehindWaiters
)

// Holder is one holder of a lock or a pool; see lock.Holder. Only a pool's has a Value.
type Holder struct {
	Token, Owner, Note string
	ExpiresIn          time.Duration
	Value              string
}

// Info is what Redis stores of one lock.
type Info struct {
	// Key is the lock's Redis key.
	Key string
	// Held is how many slots are taken.
	Held int
	// Gate says for how long nobody starts; the zero Gate is open.
	Gate Gate
	// Waiting is how many stand in line.
	Waiting int
	// Parked is how many keep a place in line without waiting, and Called how many of
	// these were called and have not come yet.
	Parked, Called int
	// Queued is how many tasks of an ordered key are in order and do not hold it; no other number
	// counts them. Head is the first of all that are in order.
	Queued int
	Head   Head
	// Place is how many come before the parked note, or the task in order, that was asked
	// for; -1 when none was, or it is neither.
	Place int
	// Granted is how long ago the last slot was taken: for a mutex, since when it is
	// held; by the clock of its holder if nobody else wanted it then.
	Granted time.Duration
	// Holders are those who hold the lock, first deadline first, at most 1,000.
	Holders []Holder
	// Free is how many values of a pool are free, and Values are the first of them.
	Free   int
	Values []string
}

// InUse reports whether anything of the lock is in Redis: a holder, a closed gate, a
// waiter or parked work.
func (i Info) InUse() bool {
	return i.Held+i.Waiting+i.Parked+i.Called+i.Queued > 0 || i.Gate.OpensIn > 0
}

// Gate is a closed gate: until it opens nobody gets the lock, though slots may be free.
type Gate struct {
	// Reason is lock.ReasonRate, lock.ReasonClosed or lock.ReasonCooldown.
	Reason string
	// OpensIn is the time until the gate opens; 0: it is open.
	OpensIn time.Duration
}

// Waiter is one who has a place in the line of a lock.
type Waiter struct {
	// Owner is the waiter's label (lock.Options.Owner); empty for parked work.
	Owner string
	// Note is the waiter's note.
	Note string
	// Since is when it joined the line, by Redis' clock.
	Since time.Time
	// Parked is true for work that keeps its place without waiting, Called when the work
	// was called besides and has not come yet.
	Parked, Called bool
	// Ordered is true for a task of an ordered key, Held besides if it is archived and holds its key. Since
	// is when it was enqueued.
	Ordered, Held bool
}

// Ended is what the end of an operator's order has ended.
type Ended int

// What the end of an order has ended.
const (
	EndedNothing    Ended = iota // the order was not in force
	EndedOrder                   // the order
	EndedUnreadable              // an entry that could not be read, and so was not in force
)
