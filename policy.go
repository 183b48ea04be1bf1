package automutex

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/printable"
)

// Policy says what happens to a task that did not get its lock within the rule's Wait. The zero value is [Park].
// Policies can be compared with ==, copied, and used by many goroutines. Two calls of [AfterFailure] give two different
// policies.
//
// A task whose own earlier attempt still holds the lock ([BusyError].SameTask) returns whatever the policy. Otherwise
// the policy applies each time that a task meets a busy key. An attempt is "spent" when asynq counts it against the
// task's MaxRetry.
type Policy struct {
	kind  policyKind
	delay time.Duration
	// a pointer: a Policy with a function in it could not be compared
	after *func(ctx context.Context, t *asynq.Task, busy *BusyError) error
}

type policyKind uint8

const (
	policyPark policyKind = iota // the zero value of Policy
	policyRetry
	policyRetryIn
	policySkip
	policyArchive
	policyFail
	policyReplace
	policyAllow
	policyAfterFailure
)

// policyRow is all that the rest of the package knows of a policy, but for Replace, which has a file of its own.
type policyRow struct {
	name  string
	busy  decide.Wish // what it asks for when the key is busy
	parks bool        // it waits in line without a worker
	tries bool        // it tries before it waits, and has holders end
	asks  bool        // a function decides; busy is what counts where it is not asked
}

var policyRows = [...]policyRow{
	policyPark:         {name: "park", busy: decide.WishBack, parks: true},
	policyRetry:        {name: "retry", busy: decide.WishBack},
	policyRetryIn:      {name: "retry in", busy: decide.WishBack},
	policySkip:         {name: "skip", busy: decide.WishDone},
	policyArchive:      {name: "archive", busy: decide.WishArchive},
	policyFail:         {name: "fail", busy: decide.WishSpend},
	policyReplace:      {name: "replace", busy: decide.WishBack, tries: true},
	policyAllow:        {name: "allow", busy: decide.WishRun},
	policyAfterFailure: {name: "after failure", busy: decide.WishBack, asks: true},
}

func (p Policy) row() policyRow { return policyRows[p.kind] }

func (r policyRow) returns() bool { return r.busy == decide.WishBack && !r.asks }

// yields: its Wait takes no worker that another key's task could have.
func (r policyRow) yields() bool { return r.returns() && !r.tries }

// The policies that take no argument. Do not assign to them.
var (
	// Retry returns the task to asynq, to run again after 1 to 5 seconds, its attempt not spent. asynq looks for such
	// tasks every DelayedTaskCheckInterval (5 seconds by default), so without [Rule].Wait a hot key runs about one task
	// in that time. When all workers have been busy for 20 milliseconds, tasks in a Wait return. A task on its last
	// attempt waits in its worker instead.
	Retry = Policy{kind: policyRetry}

	// Skip ends the task as done, unrun, also one whose handler has failed, or returned a [RetryAfter].
	Skip = Policy{kind: policySkip}

	// Archive moves the task to asynq's archive, unrun.
	Archive = Policy{kind: policyArchive}

	// Fail fails the attempt with the [*BusyError]: it is spent, and asynq retries the task with its own delays.
	Fail = Policy{kind: policyFail}

	// Park, the zero value, keeps the task's place in line, and takes no worker from other tasks. The task waits in its
	// worker while the server has another worker free. When all have been busy for 20 milliseconds, the newest task that
	// waits parks: it returns to asynq, its attempt not spent, and runs when its turn comes. While asynq has more tasks
	// for the server than it can take, all others park too, but for a few that feed fast keys. [Rule].Wait has no effect.
	// While the task is parked, its last error in asynq names the key, the holder and its place. Parked tasks are woken
	// first come, first served, but tasks that wait in workers may overtake them.
	//
	// A task waits in its worker for at most half of its Timeout, and has its whole Timeout again when it returns. On its
	// last attempt it waits there until a second before its deadline, since asynq would archive it.
	//
	// asynq's Inspector runs a parked task, behind what its queue has pending; see [Config].Inspector and WakeAtFront.
	Park = Policy{}

	// Replace lets the newest task win. A task that finds the lock taken asks the older one to stop: the context of its
	// handler ends with cause [ErrReplaced]. The newer task waits in its worker until that handler has returned. After
	// the rule's Wait, or a TTL if Wait is 0, it is retried as under [Retry]. The older task is revoked if its handler
	// returned an error, and done if it returned nil. Older tasks that still wait are revoked unrun. With a Limit of N
	// the newest N tasks stay.
	//
	// A task's age counts from when it first came to a worker. A task that N newer ones have overtaken is revoked
	// whenever it comes back, also when these have ended, even archived or revoked; but one that ended before its handler
	// began does not count. Redis forgets a task's age with its end, or after a month.
	//
	// Declare other rules that may end a task unrun before the one with Replace: otherwise the task may stop an older one
	// and then not run itself.
	//
	// Only tasks of rules with this policy are asked to stop: other holders of a shared Scope, and an earlier attempt of
	// the same task, go on.
	Replace = Policy{kind: policyReplace}

	// Allow runs the handler without the lock if the key is busy, also by a Rate or a Cooldown, or if no key can be made.
	// Config.Observe gets EventBusy or EventKeyError. If an operator has paused the key, or Redis does not answer, the
	// task returns to asynq.
	Allow = Policy{kind: policyAllow}
)

// RetryIn is [Retry] with the delay d, at least a millisecond. A task may return up to a second before d is over, or
// some seconds after, when asynq looks for it. For a closed gate or a pause it returns when that ends.
func RetryIn(d time.Duration) Policy {
	return Policy{kind: policyRetryIn, delay: d}
}

// AfterFailure calls fn when the key is busy. fn's result becomes the handler's: nil ends the task as done, an error
// fails the attempt (spent), asynq.SkipRetry archives the task, asynq.RevokeTask drops it, and a [RetryAfter] returns
// it for that time. Return busy, or an error that wraps it, to retry as under [Retry]; format busy with %v to fail the
// attempt.
//
// fn runs if others hold the key, a cooldown lasts or the rate is used up; not for a pause, [CloseGate] or an earlier
// attempt of the task. Many goroutines call it at once, with the context of the task. On the task's last attempt fn is
// asked again when its wait is over: after its RetryAfter, or, if it returned busy, a second before the deadline. [New]
// refuses a nil fn.
func AfterFailure(fn func(ctx context.Context, t *asynq.Task, busy *BusyError) error) Policy {
	return Policy{kind: policyAfterFailure, after: &fn}
}

// String names the policy, such as "retry in 5s".
func (p Policy) String() string {
	if p.kind == policyRetryIn {
		return p.row().name + " " + p.delay.String()
	}
	return p.row().name
}

func (p Policy) check() error {
	switch {
	case p.kind == policyRetryIn && p.delay < time.Millisecond:
		return fmt.Errorf("RetryIn(%s) is no delay; give at least 1ms, or use Retry%s", p.delay, printable.MeantUnit(p.delay))
	case p.kind == policyAfterFailure && *p.after == nil:
		return errors.New("AfterFailure has no function; give it one, or use Retry")
	}
	return nil
}
