package automutex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

// Rate bounds how often handlers start for one key: Starts times in each Per, evenly spread. In any time d at most
// Burst + Starts*d/Per handlers start; with [Rule].Cost their costs sum to at most Burst - 1 + Starts*d/Per and the
// largest cost. The zero value is no rate.
//
// For a task that comes too early the key is busy with [ReasonRate], and [BusyError].ExpiresIn is the time until the
// next start. A start counts when the task gets this lock, also if the task then does not start.
type Rate struct {
	Starts int           // how many handlers start in each Per: at least 1, at most one a microsecond
	Per    time.Duration // the period: more than 0, at most a year
	Burst  int           // how many may start at once after a pause; 0 means 1
}

// Unlimited is the [Rule].Limit of a rule whose tasks only a [Rate] or a Cooldown bounds.
const Unlimited = math.MaxInt32

// String is "100 per 1m0s, burst 10"; "none" for the zero value.
func (r Rate) String() string {
	if r == (Rate{}) {
		return "none"
	}
	return fmt.Sprintf("%d per %s, burst %d", r.Starts, r.Per, r.burst())
}

func (r Rate) burst() int { return max(r.Burst, 1) }

// pace is what the rate asks of the engine.
func (r Rate) pace() (p engine.Pace, err error) {
	switch {
	case r == (Rate{}):
		return p, nil
	case r.Burst < 0:
		return p, fmt.Errorf("a Burst of %d is negative; use 0 for 1, which means that no two start at once", r.Burst)
	case r.Starts == 0 || r.Per == 0:
		return p, fmt.Errorf("it needs both Starts and Per, such as 100 per minute%s", printable.MeantUnit(r.Per))
	}
	p.Every, p.Spare, err = rate.Rate(r).Bucket()
	return p, err
}

// CloseGate closes the gate of the handler's key for d from now: no other task starts, whatever the Limit, if no rule
// of the key has the policy [Allow]. Running handlers go on. Use it when an upstream says "not now", such as HTTP 429
// with Retry-After:
//
//	if err := automutex.CloseGate(ctx, wait); err != nil {
//		return err
//	}
//	return automutex.RetryAfter(wait, errUpstreamBusy)
//
// Under each other policy a task that meets a closed gate returns to asynq, its attempt not spent. A second call never
// shortens the first. A closed gate outlives the handler; [lock.Lock.BreakAll] and the command automutex open it.
//
// ctx is the handler's context. If the task holds several locks, CloseGate closes the one taken last, as [Lease] does.
// d is at least a tenth of a millisecond and at most ten years, and is rounded up to whole milliseconds. The error Is
// [lock.ErrNotHeld] if the lease was lost. It Is [lock.ErrBackend] if Redis could not be asked (the gate may be closed
// or not), or if too few replicas have the closed gate (see [Config].MinReplicas). Without a lease CloseGate returns
// another error.
func CloseGate(ctx context.Context, d time.Duration) error {
	h := innermostLease(ctx)
	if h == nil {
		return errors.New("automutex: CloseGate: no lock in this context: call it in a handler behind Guard.Middleware, " +
			"with the handler's context")
	}
	if meant := printable.MeantUnit(d); meant != "" {
		return fmt.Errorf("automutex: CloseGate for %s: too short; give at least a millisecond%s", d, meant)
	}
	if err := h.lease.CloseGate(ctx, d); err != nil {
		return fmt.Errorf("automutex: CloseGate: %w", err)
	}
	return nil
}

// RetryAfter returns an error with which a handler returns its task to asynq: the task runs again after d, its attempt
// not spent, and asynq does not call [asynq.Config].ErrorHandler. err is the reason, and may be nil. A d below 0 counts
// as 0, and one above ten years as ten years. asynq looks for such tasks every DelayedTaskCheckInterval (5 seconds by
// default), so the task may run some seconds after d is over, but never before.
//
// RetryAfter works for every task of a server with [Guard.ServerConfig], whether a rule matches the task or not. The
// handler may wrap the error. If err wraps asynq.SkipRetry, asynq archives the task. When the task comes back to a busy
// key, the policy of its rule applies: under [Skip] it is done.
//
// A task on its last attempt, which asynq would archive, waits in its worker without its locks, for at least a second,
// and its handler runs again if that is wrapped in [Guard.Middleware]. If less than a second to the task's deadline
// would then be left, asynq archives the task with err.
func RetryAfter(d time.Duration, err error) error {
	return &retryAfter{delay: min(max(0, d), inside.MaxTTL), err: err}
}

// retryAfter is what RetryAfter makes. Any Guard's ServerConfig recognizes it.
type retryAfter struct {
	delay time.Duration
	err   error
}

// Error is valid UTF-8, since asynq stores no other text.
func (r *retryAfter) Error() string {
	text := fmt.Sprintf("to be run again after %s", r.delay)
	if r.err != nil {
		text += ": " + r.err.Error()
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (r *retryAfter) Unwrap() error { return r.err }

// wantsRetryAfter returns the RetryAfter in a handler's error, or nil. One that also wraps asynq.SkipRetry or
// asynq.RevokeTask is none.
func wantsRetryAfter(err error) *retryAfter {
	if err == nil {
		return nil // without an allocation
	}
	var r *retryAfter
	if !errors.As(err, &r) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return nil
	}
	return r
}

// LimitField is the payload field that has the limit of a task's key, such as that of the tenant's plan. A task whose
// field has a value that is not a whole number, or is below 1, is archived with a [*KeyError]. Set it as
// [Rule].LimitField.
type LimitField struct {
	// Path is the path of the field, as in [Rule].On.
	Path string
	// Default is the limit of a task whose field is missing, null or empty. With 0 such a task is archived with a
	// [*KeyError]. A name in another letter case is not missing, and archives the task.
	Default int
	// Most is the highest limit: a value above it counts as Most. 0 means no bound.
	Most int
}

func (l *LimitField) check(payload any) error {
	segments, err := keys.ParsePath(l.Path)
	if err == nil && payload != nil {
		err = keys.CheckType(payload, segments)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q %w", l.Path, err)
	case l.Path == keys.Whole:
		return errors.New(`"." is the whole payload, and no number; name a field`)
	case l.Default < 0 || l.Most < 0:
		return fmt.Errorf("field %q: Default is %d and Most is %d: none may be below 0", l.Path, l.Default, l.Most)
	case l.Most > 0 && l.Default > l.Most:
		return fmt.Errorf("field %q: Default is %d, which is more than Most, %d", l.Path, l.Default, l.Most)
	}
	return nil
}

// read returns the limit for t. path is l.Path.
func (l *LimitField) read(path *keys.Fields, t *asynq.Task) (int, error) {
	parts, failed := path.Parts(t.Payload())
	switch {
	case failed != nil && failed.Absent && l.Default > 0:
		return l.Default, nil
	case failed != nil:
		return 0, fieldError(t, failed, "the rule's LimitField")
	}
	n, err := strconv.Atoi(parts[0])
	if errors.Is(err, strconv.ErrRange) && parts[0][0] != '-' {
		n, err = math.MaxInt, nil
	}
	if err != nil || n < 1 {
		return 0, &KeyError{Task: t.Type(), Field: l.Path, reason: "is no limit: want a whole number, at least 1",
			advice: "enqueue the task with such a number, or change the rule's LimitField"}
	}
	if l.Most > 0 {
		n = min(n, l.Most)
	}
	return n, nil
}

func (c *compiledRule) limitOf(ctx context.Context, t *asynq.Task) (int, error) {
	switch {
	case c.LimitField != nil:
		return c.LimitField.read(c.limitPath, t)
	case c.LimitOf == nil:
		return c.Limit, nil
	}
	n, err := c.LimitOf(ctx, t)
	if err == nil && n < 1 {
		err = unfitBound(t, "LimitOf", fmt.Sprintf("%d, and the least is 1", n))
	}
	return min(n, Unlimited), c.failed("the rule's LimitOf", err)
}

// paceOf returns the rate for the key of t, and its cost.
func (c *compiledRule) paceOf(ctx context.Context, t *asynq.Task) (engine.Pace, error) {
	pace := c.request.Pace
	if c.RateOf != nil {
		rate, err := c.RateOf(ctx, t)
		if err == nil {
			var unfit error
			if pace, unfit = rate.pace(); unfit != nil {
				err = unfitBound(t, "RateOf", fmt.Sprintf("%+v: %v", rate, unfit))
			}
		}
		if err != nil {
			return pace, c.failed("the rule's RateOf", err)
		}
	}
	if c.Cost == nil {
		return pace, nil
	}
	n, err := c.Cost(ctx, t)
	if most := inside.MaxTTL / max(pace.Every, time.Microsecond); err == nil && (n < 0 || time.Duration(n) > most) {
		err = unfitBound(t, "Cost", fmt.Sprintf("a number that is not 0 to %d, which is ten years of the rate", most))
	}
	pace.Cost = cmp.Or(n, -1)
	return pace, c.failed("the rule's Cost", err)
}

func unfitBound(t *asynq.Task, function, gave string) error {
	return noKey(t, "the rule's "+function+" gave "+gave, "see the rule's "+function)
}
