// Package decide is the law: what happens to a task, as pure and total functions from a few facts to a decision, and
// when it comes back. Nothing in here sleeps, asks Redis, logs or observes; callers carry a decision out.
//
//	Start  a task is in a worker, and its handler has not started
//	End    its handler has returned, or a function that is asked in its place
//	Admit  a producer of package unique wants to enqueue a task whose key may be taken
//
// testdata/decisions.txt shows what each of these answers for all that can be. A change of behaviour is a change of
// that file. Delay alone is random, and looks at the clock.
package decide

// Over is what ends a delivery whatever else is true.
type Over uint8

// If several are true, the first one counts.
const (
	Goes         Over = iota // nothing has ended it
	ContextEnded             // deadline, CancelProcessing or the end of the server: asynq has filed the task already
	Replaced                 // a newer task has come (policy Replace)
	GuardClosed              // Guard.Close has begun
)

// Decision is what happens to a task, and when it comes back.
type Decision struct {
	What What
	When When
}

// What is what happens to a task.
type What uint8

// What asynq makes of each one stands in docs/architecture.md.
const (
	Leave    What = iota // nothing: asynq has filed the task already
	Run                  // its handler starts
	Done                 // done
	Archive              // archived
	Spend                // the attempt has failed: asynq retries the task, or archives it after the last attempt
	Drop                 // dropped: neither done nor failed
	Back                 // back to asynq, the attempt not spent
	ToLine               // back to asynq, the attempt not spent, and its place in line is kept
	Stay                 // it waits in its worker, and keeps the locks that it has; then look again
	GiveBack             // it gives back the locks that it has, and waits in its worker; then look again
	Block                // it blocks its worker until asynq requeues it, at the end of the shutdown
)

// When is the time after which a task comes back, or its wait in the worker is over.
type When uint8

// The times of a decision.
const (
	Unsaid   When = iota
	Soon          // 1 to 5 s, or the delay of RetryIn
	AtGate        // when the gate opens, at a different time for each task
	AtResume      // when the pause ends, or after 30 to 90 s
	AtOutage      // 1 to 30 s, longer as the outage lasts
	AsAsked       // as the RetryAfter says
	AtTurn        // when it is called, or about when its turn would come
)

// Final reports whether asynq will not run the task again after the decision. last: on its last
// attempt, asynq archives a task for any error.
func (d Decision) Final(last bool) bool {
	switch d.What {
	case Done, Archive, Drop:
		return true
	case Spend, Leave:
		return last
	}
	return false
}

// Became says what a task became, for the history of its key.
func Became(what What, ran, replaced bool) string {
	switch what {
	case Done:
		if ran {
			return "done"
		}
		return "skipped"
	case Spend:
		return "failed"
	case Archive:
		return "archived"
	case Drop:
		if replaced {
			return "replaced"
		}
		return "dropped"
	case Leave:
		return "cut short"
	}
	return "comes back"
}
