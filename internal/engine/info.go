package engine

import (
	"context"
	"time"
)

// This file is what the engine tells of a lock, and what its callers tell the engine.

// MinTTL is the shortest lease: below it, a pause of the garbage collector or a slow network would lose leases in normal operation.
const MinTTL = 100 * time.Millisecond

// Caller brings parked work back: it has the work with that note, parked on the lock
// with that key, run again, and returns what happened. A Locker calls it on goroutines
// of its own, up to sixteen at once, and again as long as the work does not come. All
// processes together call at most one Caller at a time for one note of one lock, if the
// work runs before the deadline of ctx or not at all. ctx ends at that deadline, and
// when the Locker is closed. The note of an ordered key is |c|... or |l|..., as lua/order_act.lua names a task.
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

// Place is the place of a task in the order of its key.
type Place struct {
	// Nonce is that of the task's stamp. For a task without a stamp it begins with "~" and is
	// made of the task's note.
	Nonce string
	// Ticket is that of the stamp; 0 for a task without one.
	Ticket int64
	// Retried is asynq's count of the task's attempts.
	Retried int
	// Most is how often the caller lets the task be retried. -1: not known, so asynq ends it.
	Most int
	// Continue has the next task run when this one ends archived. Otherwise its key is held.
	Continue bool
	// Again runs the task although it is marked as done.
	Again bool
}

// Outcome says how an attempt of an ordered task has ended.
type Outcome int32

// The outcomes.
const (
	// OutcomeStays keeps the task's place: it is retried, or returns to asynq.
	OutcomeStays Outcome = iota
	// OutcomeUnbegun is OutcomeStays for a task that had its turn, and whose handler did not begin, or asked to come back.
	OutcomeUnbegun
	// OutcomeDone ends the task, and marks it as done.
	OutcomeDone
	// OutcomeHeld means that asynq archives the task, and that its key stands.
	OutcomeHeld
	// OutcomeLeft means that asynq archives the task, and that the next one runs.
	OutcomeLeft
)

// OrderLook is after how long a task of an ordered key that does not come is looked for; see order_release.lua.
const OrderLook = 5 * time.Second

// Why a lock is busy, as lock.BusyError.Reason says it. Only package automutex has ordered keys.
const (
	ReasonHeld = "held" // lock.ReasonHeld
	// ReasonBehind: nobody holds the lock, and an earlier task comes first; BusyError.Note is that task.
	ReasonBehind = "behind"
	// ReasonFailed is ReasonBehind for a task that failed, and that asynq retries: at BusyError.ExpiresIn, if that is
	// longer than OrderLook.
	ReasonFailed = "failed"
	// ReasonArchived is ReasonBehind for a task that asynq has archived, and that holds its key.
	ReasonArchived = "archived"
)

// OrderItem is a task that a reply names: one to call, or the head, to look for.
type OrderItem struct {
	// Call is true for a parked task whose turn is near.
	Call  bool
	State string // as internal/engine/lua/order.lua has it
	Nonce string
	// Ticket and Seen tell whether the task's member has changed since.
	Ticket int64
	Seen   string
	Note   string
}

// OrderAct is a change of one member of an ordered key.
type OrderAct string

// The changes. Those of a look do nothing if the member has changed since it was named.
const (
	ActNone     OrderAct = "none"     // only look after the key
	ActGone     OrderAct = "gone"     // look: asynq has no such task
	ActArchived OrderAct = "archived" // look: the key is held
	ActLeft     OrderAct = "left"     // look: archived or completed, and the next one runs
	ActPresent  OrderAct = "present"  // look: the task comes by itself
	ActConfirm  OrderAct = "confirm"  // the producer has enqueued the task
	ActWithdraw OrderAct = "withdraw" // the task is one of another key now
	ActRefused  OrderAct = "refused"  // the producer has not, since asynq has another task with that ID
)

// Head is the first task in order of a key.
type Head struct {
	// Key is the lock's Redis key.
	Key string
	// Queued is how many tasks of the key are not done.
	Queued int
	State  string // as internal/engine/lua/order.lua has it; empty: no task is in order
	Note   string
	Nonce  string
	// Ticket tells the head from another task with the same ID, also without a stamp.
	Ticket int64
	// Since is since when the head is held; otherwise when it last came or was stamped.
	Since time.Time
	// Runs is true if the head holds the lock.
	Runs bool
	// Failed is true if an attempt of the head has ended, the next one has not begun, and asynq has the task.
	Failed bool
}

// Held reports whether asynq has archived the head, and the key stands.
func (h Head) Held() bool { return h.State == "h" }

// Blocks reports whether the head keeps others waiting: it is held, or has failed and others are behind it. Whether
// asynq delivers it in this moment is not known here.
func (h Head) Blocks() bool { return h.Held() || h.Failed && h.Queued > 1 }

// MayBlock reports whether the head keeps others waiting if asynq does not deliver it soon, as it does not from a queue that is paused.
func (h Head) MayBlock() bool { return h.Held() || h.State != "" && !h.Runs && h.Queued > 1 }
