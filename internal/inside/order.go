package inside

import "time"

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
	// OutcomeUnbegun is OutcomeStays for a task that had its turn, and whose handler did not begin.
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
