package engine

import (
	"context"
	"time"
)

// MinTTL is the shortest lease, and MaxHold: a shorter one would be lost to garbage collection or a slow network.
const MinTTL = 100 * time.Millisecond

// Caller brings parked work back: it has the work with that note, parked on the lock with that key, run again, and
// returns what happened. An Engine calls it on goroutines of its own, up to sixteen at once, and again as long as the
// work does not come. The work runs before the deadline of ctx or not at all; ctx ends when the Engine is closed, too.
// The note of an ordered key is |c|... or |l|..., as lua/order_act.lua names a task.
type Caller func(ctx context.Context, key, note string) Fate

// Fate is what a call of parked work led to, as lua/check.lua spells it.
type Fate string

// The fates. After the last three the next work is called at once.
const (
	FateUnsure Fate = ""       // nothing is known of the call, or it is not possible yet: it is repeated
	FateComing Fate = "coming" // the work is on its way
	FateGone   Fate = "gone"   // there is no such work any more, or it is not parked here: its place is given up
	FateLater  Fate = "later"  // the work cannot run for now: it goes to the end of the line
	// FateMissing: there is no such work. It may be that of Enlist, not enqueued yet: it keeps its place until it has been
	// in line for 10 s, and is gone then.
	FateMissing Fate = "missing"
)

// Holder is one holder of a lock or a pool; see lock.Holder.
type Holder struct {
	Token, Owner, Note string
	ExpiresIn          time.Duration
}

// Info is what Redis stores of one lock.
type Info struct {
	Key     string // the lock's Redis key
	Held    int    // slots taken
	Gate    Gate
	Waiting int // in line
	// how many keep a place in line without waiting, and how many of them were called and have not come yet
	Parked, Called int
	// how many tasks of an ordered key are in order and do not hold it; no other number counts them
	Queued int
	Head   Head // the first of all that are in order
	// when the last slot was taken; by the clock of its holder if nobody else wanted it then
	Taken   time.Time
	Holders []Holder // first deadline first, at most 1,000
	Free    int      // how many values of a pool are free
	Values  []string // the first of them
	Lent    []string // those that Holders have; empty texts for a lock that is no pool
}

// InUse reports a holder, a closed gate, a waiter or parked work.
func (i Info) InUse() bool {
	return i.Held+i.Waiting+i.Parked+i.Called+i.Queued > 0 || i.Gate.OpensIn > 0
}

// Gate is a closed gate: until it opens nobody gets the lock, though slots may be free.
type Gate struct {
	Reason  string        // ReasonRate, ReasonClosed or ReasonCooldown
	OpensIn time.Duration // 0: it is open
}

// Waiter is one who has a place in the line of a lock.
type Waiter struct {
	Owner, Note    string    // the owner is empty for parked work
	Since          time.Time // when it joined the line, or was enqueued, by Redis' clock
	Parked, Called bool      // it keeps its place without waiting, and was called besides and has not come yet
	Ordered, Held  bool      // it is a task of an ordered key, and archived besides, and holds its key
}

// Place is the place of a task in the order of its key.
type Place struct {
	// that of the task's stamp. For a task without a stamp it begins with "~" and is made of the task's note
	Nonce    string
	Ticket   int64 // that of the stamp; 0 for a task without one
	Retried  int   // asynq's count of the task's attempts
	Most     int   // how often the caller lets the task be retried. -1: not known, so asynq ends it
	Continue bool  // the next task runs when this one ends archived. Otherwise its key is held
}

// Outcome says how an attempt of an ordered task has ended.
type Outcome int32

// The outcomes.
const (
	OutcomeStays   Outcome = iota // the task keeps its place: it is retried, or returns to asynq
	OutcomeUnbegun                // so, after it had its turn, and its handler did not begin, or asked to come back
	OutcomeDone                   // the task ends, and is marked as done
	OutcomeHeld                   // asynq archives the task, and its key stands
	OutcomeLeft                   // so, or it is late; and the next one runs
)

// OrderLook is after how long a task of an ordered key that does not come is looked for; order_look in Lua.
const OrderLook = 5 * time.Second

// Why a lock is busy, as lock.BusyError.Reason says it, which tells of the first five. The others are those of ordered
// keys.
const (
	ReasonHeld     = "held"
	ReasonRate     = "rate"
	ReasonClosed   = "closed"
	ReasonCooldown = "cooldown"
	ReasonPaused   = "paused"
	ReasonBehind   = "behind" // nobody holds the lock, and an earlier task comes first; BusyError.Note is that task
	// ReasonFailed: so, and that task failed, and asynq retries it: at BusyError.ExpiresIn, if that is longer than
	// OrderLook.
	ReasonFailed   = "failed"
	ReasonArchived = "archived" // so, and asynq has archived that task, which holds its key
)

// OrderItem is a task that a reply names: one to call, or the head, to look for.
type OrderItem struct {
	Call   bool   // it is a parked task whose turn is near
	State  string // as lua/order.lua has it
	Nonce  string
	Ticket int64 // this and Seen tell whether the task's member has changed since
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
	ActWithdraw OrderAct = "withdraw" // the task is one of another key now, or ends before it begins
	ActRefused  OrderAct = "refused"  // the producer has not, since asynq has another task with that ID
)

// Head is the first task in order of a key.
type Head struct {
	Key    string // the lock's Redis key
	Queued int    // how many tasks of the key are not done
	State  string // as lua/order.lua has it; empty: no task is in order
	Note   string
	Nonce  string
	Ticket int64     // it tells the head from another task with the same ID, also without a stamp
	Since  time.Time // since when the head is held; otherwise when it last came or was stamped
	Runs   bool      // the head holds the lock
	Failed bool      // an attempt of the head has ended, the next one has not begun, and asynq has the task
}

// Held reports whether asynq has archived the head, and the key stands.
func (h Head) Held() bool { return h.State == "h" }

// Blocks reports whether the head keeps others waiting: it is held, or has failed and others are behind it.
func (h Head) Blocks() bool { return h.Held() || h.Failed && h.Queued > 1 }

// MayBlock reports whether the head keeps others waiting if asynq does not deliver it soon, as from a paused queue.
func (h Head) MayBlock() bool { return h.Held() || h.State != "" && !h.Runs && h.Queued > 1 }
