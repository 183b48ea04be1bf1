package decide

// Until is unique.Rule.Until.
type Until uint8

// How long a claim lasts.
const (
	UntilDone Until = iota
	UntilStart
	ForTime
)

// Duplicate is unique.Rule.Duplicate.
type Duplicate uint8

// What a producer does with a duplicate.
const (
	Reject Duplicate = iota
	Join
	Replace
	Postpone
)

// Claim is what stands for the key: a claim beside the lock, or the task's own ID, which is Confirmed.
type Claim uint8

// The states of a claim.
const (
	NoClaim   Claim = iota
	Fresh           // its producer may still be enqueuing the task
	Settled         // it is not known to be enqueued, and no enqueue of it can be under way
	Confirmed       // it was enqueued
)

// Task is the task of that claim.
type Task uint8

// Where the task of a claim is.
const (
	Absent Task = iota // asynq does not have it
	Waits              // in asynq, or in a worker that has written that it waits for the lock
	Active             // a worker has it, and has not written that it waits
	Ended              // archived or completed
)

// Existing is all that Admit looks at.
type Existing struct {
	Until     Until
	Duplicate Duplicate
	Keep      bool // KeepArchived
	Claim     Claim
	Task      Task
	Begun     bool // the claim says that the task's handler has begun
}

// Action is what a producer does.
type Action uint8

// The actions of a producer.
const (
	Enqueue   Action = iota // takes the claim, over from what stands, and enqueues
	Refuse                  // returns a DuplicateError
	JoinIt                  // returns the existing task
	Supersede               // the new task takes the place of the existing one
	LookAgain               // waits a moment for another producer, or for the worker, and looks again
)

// Admit decides about a task that a producer wants to enqueue for a key.
func Admit(e Existing) Action {
	newer := e.Duplicate == Replace || e.Duplicate == Postpone
	switch {
	case e.Claim == NoClaim:
		return Enqueue
	case e.Task == Absent && e.Claim == Fresh:
		return LookAgain
	case e.Task == Absent && e.Claim == Confirmed && e.Until == ForTime:
		return Refuse
	case e.Task == Absent:
		return Enqueue
	case e.Task == Ended && e.Until == ForTime:
		return Refuse
	case e.Begun && e.Until == UntilStart:
		return Enqueue
	case e.Task == Ended && e.Keep:
		return Refuse
	case e.Task == Ended:
		return Enqueue
	case e.Duplicate == Join:
		return JoinIt
	case newer && !e.Begun && e.Task == Waits:
		return Supersede
	case newer && !e.Begun:
		return LookAgain
	}
	return Refuse
}
