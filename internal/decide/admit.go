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
	Waits              // in asynq, or in a worker that has noted that it waits for the lock
	Active             // a worker has it, and has not noted that it waits
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

func (a Action) String() string {
	return [...]string{"enqueue", "refuse", "join", "supersede", "look again"}[a]
}

var (
	until     = fact[Until]{0, "until", []string{"done", "start", "for"}}
	duplicate = fact[Duplicate]{1, "duplicate", []string{"reject", "join", "replace", "postpone"}}
	keep      = newFlag(2, "keep")
	claimed   = fact[Claim]{3, "claim", []string{"none", "fresh", "settled", "confirmed"}}
	task      = fact[Task]{4, "task", []string{"absent", "waits", "active", "ended"}}
	begun     = newFlag(5, "begun")
)

func (e Existing) values() values {
	return values{uint8(e.Until), uint8(e.Duplicate), uint8(yesNoOf(e.Keep)), uint8(e.Claim), uint8(e.Task), uint8(yesNoOf(e.Begun))}
}

var admitRows = []row[Action]{
	// 1. No task blocks the key.
	{when(claimed.is(NoClaim)), Enqueue},
	{when(claimed.is(Fresh), task.is(Absent)), LookAgain},
	{when(until.is(ForTime), claimed.is(Confirmed), task.is(Absent)), Refuse},
	{when(task.is(Absent)), Enqueue},
	{when(until.is(ForTime), task.is(Ended)), Refuse},
	{when(until.is(UntilStart), begun.is(yes)), Enqueue},
	{when(task.is(Ended), keep.is(yes)), Refuse},
	{when(task.is(Ended)), Enqueue},
	// 2. A task that lives blocks it.
	{when(duplicate.is(Join)), JoinIt},
	{when(duplicate.is(Replace, Postpone), task.is(Waits), begun.is(no)), Supersede},
	{when(duplicate.is(Replace, Postpone), begun.is(no)), LookAgain},
	{nil, Refuse},
}

// Admit decides about a task that a producer wants to enqueue for a key.
func Admit(e Existing) Action {
	a, _ := firstFit(admitRows, e.values())
	return a
}

// possible returns what is meant by a situation that cannot be.
func (e Existing) possible() Existing {
	if e.Claim == NoClaim {
		e.Task = Absent
	}
	e.Begun = e.Begun && e.Task != Absent && e.Claim == Confirmed
	return e
}
