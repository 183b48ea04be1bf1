package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/printable"
)

// Policy says what happens to a task that did not get its lock, after it has
// waited for at most the rule's Wait. The zero value is [Retry]. Policies are
// values: they can be compared with ==, copied, and used by many goroutines.
// Two calls of [AfterFailure] give two different policies.
//
// An attempt is "spent" when asynq counts it against the task's MaxRetry. A
// task whose own earlier attempt still holds the lock ([BusyError].SameTask)
// is retried whatever the policy, except under [Allow] and [AfterFailure].
type Policy struct {
	kind  policyKind
	delay time.Duration
	after *afterFailure
}

// policyKind is the kind of a Policy. These places decide by it; look at each of them when
// you add a policy:
//
//	policy.go      String, check
//	middleware.go  applyPolicy: what the policy does; runsWithoutKey: Allow
//	wait.go        acquire, waitOnce, longestWait: how the task waits
//	pause.go       checkPaused: Park keeps its place, Replace registers its arrival
//	hold.go        parkFirst: Park
//	match.go       newRuleSet: Park counts busy workers
//	park.go        parkClients: Park needs an Inspector
//	notices.go     noticeReplaceThenEnd: policies that end a task unrun
//	config/values.go  policies: the name in files
type policyKind uint8

const (
	policyRetry policyKind = iota // the zero value of Policy
	policyRetryIn
	policySkip
	policyArchive
	policyFail
	policyPark
	policyReplace
	policyAllow
	policyAfterFailure
)

// afterFailure holds the function behind a pointer, since a Policy with a
// function in it could not be compared.
type afterFailure struct {
	fn func(ctx context.Context, t *asynq.Task, busy *BusyError) error
}

// The policies that take no argument. They are not to be assigned to.
var (
	// Retry returns the task to asynq, to run again after 1 to 5 seconds;
	// asynq looks for such tasks every DelayedTaskCheckInterval (5 seconds
	// unless the server says otherwise), so a hot key without [Rule].Wait runs
	// about once in that time. The attempt is not spent; a task with no
	// attempts left waits in its worker instead. It is the zero value.
	Retry = Policy{kind: policyRetry}

	// Skip ends the task as done without running its handler. An event tells of it,
	// and a log line at level Debug.
	Skip = Policy{kind: policySkip}

	// Archive moves the task to asynq's archive without running its handler,
	// as a handler does with asynq.SkipRetry.
	Archive = Policy{kind: policyArchive}

	// Fail fails the attempt with the [*BusyError]. The attempt is spent, so
	// asynq retries the task with its own delays and archives it in the end.
	Fail = Policy{kind: policyFail}

	// Park returns the task to asynq and has it run again when its turn
	// comes. No worker that another task could use is held meanwhile: the task
	// waits in line in its worker while another worker of the server is free,
	// and returns to asynq when the last one is taken, with its place kept.
	// The attempt is not spent. [Rule].Wait has no meaning for it. What its last
	// error says meanwhile, as asynq shows it: the key, its holder, the place in line.
	//
	// A task waits in its worker for half of its Timeout at most, so that its
	// handler has the other half; a parked task comes back with all of it. A task
	// with no attempts left cannot return, since asynq would archive it: it waits
	// in its worker until a second before its deadline, and its handler has what
	// is left then. Give such tasks a Timeout longer than the wait, or a MaxRetry.
	//
	// A parked task is run by asynq's Inspector as soon as its turn comes, and
	// stands behind what its queue has pending then; see [Config].WakeAtFront.
	// Tasks that wait in workers are served first come, first served. Parked tasks
	// are woken in that order, and may be overtaken.
	Park = Policy{kind: policyPark}

	// Replace is for tasks of which the newest makes the others pointless. A
	// task that finds the lock taken asks the older one to stop, whose handler's
	// context ends with cause [ErrReplaced], and waits in line, in its worker,
	// until that handler has returned: for at most the rule's Wait, a TTL where
	// that is 0, and then as [Retry]. The older task is over: revoked when its
	// handler returned an error, done when it returned nil. Older tasks that wait
	// are revoked without running; with a Limit of N the newest N stay.
	//
	// Newer is what came to a worker later for the first time. A task that comes
	// back from a retry, and finds a newer one at work, stops nobody and waits for
	// its turn. It is forgotten when it is done, revoked or archived, or has not
	// been seen for an hour, and counts as new then.
	//
	// Where a task needs several locks, declare rules that may end it unrun (Skip,
	// Archive, Fail) before one with Replace: after it, the task may stop an older
	// one and then not run itself. New warns of that.
	//
	// Only tasks of rules with this policy are asked to stop. Other holders of a
	// shared Scope, a Cooldown and an earlier attempt of the same task are not.
	// asynq logs a line at Warn for each task that is revoked.
	Replace = Policy{kind: policyReplace}

	// Allow runs the handler without the lock and reports that it did, to see
	// how much contention there is before anything is enforced.
	Allow = Policy{kind: policyAllow}
)

// RetryIn is [Retry] with a delay of its own, of at least a millisecond: [New]
// refuses others. asynq drops fractions of a second and looks for tasks to retry
// every few seconds (DelayedTaskCheckInterval), so a task may come back up to a
// second before d is over, or some seconds after.
func RetryIn(d time.Duration) Policy {
	return Policy{kind: policyRetryIn, delay: d}
}

// AfterFailure lets fn decide. What fn returns is what the handler of the task
// would have returned: nil ends the task as done, an error fails the attempt
// (spent), an error that wraps asynq.SkipRetry archives the task, whatever else
// it wraps. Otherwise returning the given busy error, or an error that wraps it,
// means [Retry]: to fail the attempt with its text, do not wrap it (%v).
//
// fn runs in the worker, with the context of the task, also when the lock is
// held by an earlier attempt of the same task (busy.SameTask says so). It must
// be safe for use by many goroutines. [New] refuses a nil fn.
func AfterFailure(fn func(ctx context.Context, t *asynq.Task, busy *BusyError) error) Policy {
	return Policy{kind: policyAfterFailure, after: &afterFailure{fn: fn}}
}

// String names the policy: "retry", "retry in 5s", "skip", "archive", "fail",
// "park", "replace", "allow" or "after failure".
func (p Policy) String() string {
	switch p.kind {
	case policyRetry:
		return "retry"
	case policyRetryIn:
		return "retry in " + p.delay.String()
	case policySkip:
		return "skip"
	case policyArchive:
		return "archive"
	case policyFail:
		return "fail"
	case policyPark:
		return "park"
	case policyReplace:
		return "replace"
	case policyAllow:
		return "allow"
	case policyAfterFailure:
		return "after failure"
	}
	return fmt.Sprintf("policy %d", p.kind)
}

// failureFunc is the function given to AfterFailure, nil for other policies.
func (p Policy) failureFunc() func(context.Context, *asynq.Task, *BusyError) error {
	if p.after == nil {
		return nil
	}
	return p.after.fn
}

// check says what makes the policy unfit for a rule.
func (p Policy) check() error {
	switch {
	case p.kind == policyRetryIn && p.delay < time.Millisecond:
		return fmt.Errorf("RetryIn(%s) is no delay; give at least 1ms, or use Retry%s", p.delay, printable.MeantUnit(p.delay))
	case p.kind == policyAfterFailure && p.after.fn == nil:
		return errors.New("AfterFailure has no function; give it one, or use Retry")
	}
	return nil
}

// retryDelay is Retry's: 1 to 5 s.
func retryDelay() time.Duration {
	return time.Second + rand.N(4*time.Second) //nolint:gosec // jitter, no secret
}

// handBack is what Middleware returns for a task that returns to asynq, its attempt not
// spent. Make one with returnTask, which observes EventRetried; park and parkFirst make
// their own, since they observe EventParked. ServerConfig's functions recognize it by its guard. Any other error is the
// handler's own, also a BusyError of a lock that the handler took itself.
type handBack struct {
	guard *Guard
	err   error
	delay time.Duration
}

// Error is valid UTF-8, since asynq stores no other text. Package unique recognizes a
// task that was handed back by how the text begins.
func (h *handBack) Error() string {
	return strings.ToValidUTF8(claim.HandBackText(h.err.Error()), "\uFFFD")
}

func (h *handBack) Unwrap() error { return h.err }

// archive is what Middleware returns for a task that asynq is to archive. Its text is
// the reason alone, as valid UTF-8 whatever a KeyFunc's error quotes: asynq cannot store
// another text, and the task would stay active until asynq's own lease on it ends.
type archive struct{ err error }

func (e archive) Error() string { return strings.ToValidUTF8(e.err.Error(), "\uFFFD") }

func (e archive) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }

// revoked is what Middleware returns for a task that was replaced: asynq drops the
// task, neither as done nor as failed. ServerConfig's functions recognize it by its
// guard.
type revoked struct {
	guard     *Guard
	rule, key string
	err       error // the handler's; nil when the handler has not run
}

func (r *revoked) Error() string {
	text := fmt.Sprintf("automutex: rule %q: key %q: replaced by a newer task", r.rule, r.key)
	if r.err != nil && !errors.Is(r.err, ErrReplaced) {
		text += ": " + r.err.Error()
	}
	return text
}

func (r *revoked) Unwrap() []error {
	if r.err == nil {
		return []error{ErrReplaced, asynq.RevokeTask}
	}
	return []error{ErrReplaced, asynq.RevokeTask, r.err}
}

// handedBack returns the Guard's own handBack in err, or nil.
func (g *Guard) handedBack(err error) *handBack {
	var h *handBack
	for errors.As(err, &h) {
		if h.guard == g {
			return h
		}
		err = h.err
	}
	return nil
}

// isRevoked reports whether err has a revoked of the Guard's own in it.
func (g *Guard) isRevoked(err error) bool {
	var r *revoked
	for errors.As(err, &r) {
		if r.guard == g {
			return true
		}
		err = r.err
	}
	return false
}

// returnsBusy reports whether err is busy itself, or wraps it.
func returnsBusy(err error, busy *BusyError) bool {
	var got *BusyError
	return errors.As(err, &got) && got == busy
}
