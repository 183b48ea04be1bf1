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
// Policies are values: they can be compared with ==, copied, and used by many goroutines. Two calls of [AfterFailure]
// give two different policies.
//
// An attempt is "spent" when asynq counts it against the task's MaxRetry. A task whose own earlier attempt still holds
// the lock ([BusyError].SameTask) returns whatever the policy. Otherwise the policy applies each time that a task meets
// a busy key, whatever the task has met before.
type Policy struct {
	kind  policyKind
	delay time.Duration
	// a pointer: a Policy with a function in it could not be compared
	after *func(ctx context.Context, t *asynq.Task, busy *BusyError) error
}

// policyKind is the kind of a Policy.
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

// policyRow is all that the rest of the package knows of a policy, but for Replace, which has a file of its own. A new
// policy is a new row.
type policyRow struct {
	name   string
	busy   decide.Wish // what it asks for when the key is busy
	parks  bool        // it waits in line without a worker
	asks   bool        // a function decides; busy is what counts where it is not asked
	yields bool        // its Wait takes no worker that another key's task could have
}

var policyRows = [...]policyRow{
	policyPark:         {name: "park", busy: decide.WishBack, parks: true, yields: true},
	policyRetry:        {name: "retry", busy: decide.WishBack, yields: true},
	policyRetryIn:      {name: "retry in", busy: decide.WishBack, yields: true},
	policySkip:         {name: "skip", busy: decide.WishDone},
	policyArchive:      {name: "archive", busy: decide.WishArchive},
	policyFail:         {name: "fail", busy: decide.WishSpend},
	policyReplace:      {name: "replace", busy: decide.WishBack},
	policyAllow:        {name: "allow", busy: decide.WishRun},
	policyAfterFailure: {name: "after failure", busy: decide.WishBack, asks: true},
}

func (p Policy) row() policyRow { return policyRows[p.kind] }

// returns reports whether a busy key only has the task come back.
func (r policyRow) returns() bool { return r.busy == decide.WishBack && !r.asks }

// The policies that take no argument. Do not assign to them.
var (
	// Retry returns the task to asynq, to run again after 1 to 5 seconds, its attempt not spent. asynq looks for such
	// tasks every DelayedTaskCheckInterval (5 seconds by default), so without [Rule].Wait a hot key runs about one task in
	// that time. A Wait takes no worker that another key's task could have: when all have been busy for 20 milliseconds,
	// tasks that wait return. A task on its last attempt waits in its worker instead.
	Retry = Policy{kind: policyRetry}

	// Skip ends the task as done without running its handler, also one whose handler has failed, or returned a
	// [RetryAfter]. Config.Observe gets EventSkipped.
	Skip = Policy{kind: policySkip}

	// Archive moves the task to asynq's archive without running its handler, as a handler does with asynq.SkipRetry.
	Archive = Policy{kind: policyArchive}

	// Fail fails the attempt with the [*BusyError]. The attempt is spent, so asynq retries the task with its own delays
	// and archives it in the end.
	Fail = Policy{kind: policyFail}

	// Park, the zero value, keeps the task's place in line, and takes no worker from other tasks. The task waits in line
	// in its worker while the server has another worker free. When all workers have been busy for 20 milliseconds, the
	// newest task that waits parks: it returns to asynq, keeps its place in line, and runs when its turn comes. While
	// asynq has more tasks for the server than it can take, all others park too, but for a few that feed fast keys. The
	// attempt is not spent, and [Rule].Wait has no effect. While the task is parked, its last error in asynq names the
	// key, the holder and the task's place in line. Parked tasks are woken first come, first served, but tasks that wait
	// in workers may overtake them.
	//
	// A task waits in its worker for at most half of its Timeout and then parks, and has its whole Timeout again when it
	// returns. A task on its last attempt cannot park, since asynq would archive it: it waits in its worker until a second
	// before its deadline. Give such tasks a higher MaxRetry.
	//
	// asynq's Inspector runs a parked task when its turn comes. The task then stands behind what its queue has pending;
	// see [Config].WakeAtFront. Without Config.Inspector the Guard's client must be a redis.UniversalClient, or New
	// refuses the rule.
	Park = Policy{}

	// Replace lets the newest task win. A task that finds the lock taken asks the older one to stop: the context of its
	// handler ends with cause [ErrReplaced]. The newer task waits in line, in its worker, until that handler has returned.
	// After the rule's Wait, or a TTL if Wait is 0, it is retried as under [Retry]. The older task is revoked if its
	// handler returned an error, and done if it returned nil. Older tasks that still wait are revoked without running.
	// With a Limit of N the newest N tasks stay.
	//
	// A task's age counts from when the task first came to a worker. A task that N newer ones have overtaken is revoked
	// whenever it comes back, from a retry or a pause for example, also when the newer ones have ended. A newer task that
	// was archived, or revoked by its own handler, counts too: older ones were stopped when it came. One whose handler
	// has not begun does not, once it has ended. Redis forgets a task's age with its end, or after a month.
	//
	// If several rules apply to a task, declare those that may end it unrun before the rule with Replace. Otherwise the
	// task may stop an older one and then not run itself.
	//
	// Only tasks of rules with this policy are asked to stop: other holders of a shared Scope, and an earlier attempt of
	// the same task, go on. asynq logs a line at Warn for each revoked task.
	Replace = Policy{kind: policyReplace}

	// Allow runs the handler without the lock if the key is busy, also by a Rate or a Cooldown, or if no key can be made
	// from the task. Config.Observe gets EventBusy or EventKeyError. Use it to measure contention before you enforce
	// anything. If an operator has paused the key, or Redis does not answer, the task returns to asynq, as under every
	// policy.
	Allow = Policy{kind: policyAllow}
)

// RetryIn is [Retry] with the delay d, at least a millisecond. asynq drops fractions of a second, and looks for tasks
// to retry every few seconds (DelayedTaskCheckInterval): a task may return up to a second before d is over, or some
// seconds after. For a closed gate or a pause the task returns when that ends, not after d.
func RetryIn(d time.Duration) Policy {
	return Policy{kind: policyRetryIn, delay: d}
}

// AfterFailure calls fn when the key is busy. fn's result becomes the handler's result: nil ends the task as done, an
// error fails the attempt (spent), and one that wraps asynq.SkipRetry archives the task. An error that wraps
// asynq.RevokeTask drops the task; a [RetryAfter] returns it for that time. Return busy, or an error that wraps it, to
// retry as under [Retry]; format busy with %v to fail the attempt.
//
// fn runs if others hold the key, a cooldown lasts or the rate is used up; not for a pause, [CloseGate] or an earlier
// attempt of the task. Many goroutines call it at once, with the context of the task. On the task's last attempt fn is
// asked again when its wait is over: after its RetryAfter, or, if it returned busy, a second before the deadline. [New]
// refuses a nil fn.
func AfterFailure(fn func(ctx context.Context, t *asynq.Task, busy *BusyError) error) Policy {
	return Policy{kind: policyAfterFailure, after: &fn}
}

// String names the policy: "retry", "retry in 5s", "skip", "archive", "fail", "park", "replace", "allow" or "after
// failure".
func (p Policy) String() string {
	if p.kind == policyRetryIn {
		return p.row().name + " " + p.delay.String()
	}
	return p.row().name
}

// check returns why a rule cannot have the policy, or nil.
func (p Policy) check() error {
	switch {
	case p.kind == policyRetryIn && p.delay < time.Millisecond:
		return fmt.Errorf("RetryIn(%s) is no delay; give at least 1ms, or use Retry%s", p.delay, printable.MeantUnit(p.delay))
	case p.kind == policyAfterFailure && *p.after == nil:
		return errors.New("AfterFailure has no function; give it one, or use Retry")
	}
	return nil
}
