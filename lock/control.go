package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/inside"
)

// ReasonPaused is the [BusyError].Reason of a lock that an operator has paused; see [Controls].
const ReasonPaused = engine.ReasonPaused

// Control is what operators have ordered for a target: a pause, another limit, another rate. See [Controls].
type Control struct {
	Target      string      // a scope ("report"), the beginning of scopes ("report:"), or one key ("report|acme")
	Limit       int         // how many may hold a lock of the target at once. 0: the number in the program applies
	Rate        ControlRate // how often a lock of the target may be taken. Zero: the rate in the program applies
	Paused      bool        // nobody can take a lock of the target
	PausedUntil time.Time   // when the pause ends by itself. Zero: only [Controls.Resume] ends it
	Why, By     string      // the reason given with the latest change, and the owner label of the Locker that made it
	Since       time.Time   // the time of that change, by Redis' clock
}

// ControlRate is the rate of a [Control]: see [Rate].
type ControlRate struct {
	Starts int
	Per    time.Duration
	Burst  int // 0 means 1
}

// String is 100/1m, or 100/1m burst 10, as the command takes it; empty for the zero value.
func (r ControlRate) String() string {
	if r == (ControlRate{}) {
		return ""
	}
	return rate.Rate(r).String()
}

func newControl(c control.Control) Control {
	return Control{Target: c.Target, Limit: c.Limit, Rate: ControlRate(c.Rate), Paused: c.Paused,
		PausedUntil: c.PausedUntil, Why: c.Why, By: c.By, Since: c.Since}
}

// String describes the orders in a few words, for an operator.
func (c Control) String() string {
	return control.Control{Limit: c.Limit, Rate: rate.Rate(c.Rate), Paused: c.Paused, PausedUntil: c.PausedUntil,
		Why: c.Why, By: c.By, Since: c.Since}.String()
}

// Controls sets and reads the orders of operators: a pause, another limit or another rate, for all locks of a scope or
// for one lock. Every Locker with the same prefix on the same Redis obeys these orders. Get Controls with
// [Locker.Controls]. Safe for concurrent use.
//
// A target is what a person types; escaping is ours. "report" is the scope of that very name, with whatever characters
// it has ("a%20b" is the scope a%20b, not "a b"), and is for all its locks. "report:" is also every scope that begins
// with it, but no scope of more than 200 bytes. "report|acme" is one lock: its scope and its parts, as the program has
// them. A whole Redis key, as [Lock.Key] returns it, means itself, without parts its scope; use it for a scope or a
// part that has a |. The narrowest control wins. Text that begins or ends with a space, or has a control character, is
// an error.
//
// A change is in force for this Locker when the call returns, and for all others within [ControlDelay]. Each Locker
// logs the change. It outlives restarts. The later of two changes of one target wins; its pause, its limit and its rate
// are independent. After ErrBackend the change may be in force or not.
//
// While a target is paused, TryLock returns a [*BusyError] with [ReasonPaused], Lock waits in line, and a release
// grants the lock to nobody. Present holders keep the lock. The pools of package pool, and the claims of package
// unique, have no control.
type Controls struct{ reader }

type reader = inside.Of[*control.Reader]

func (c *Controls) inner() *control.Reader { return *inside.At(c) }

// ControlDelay is two seconds: the longest time until every process that reaches Redis obeys a change of the
// [Controls]. To act while nobody holds a lock, pause it, wait for ControlDelay, and then wait until [Lock.Holders]
// returns none.
//
// A process that was stopped for longer reads the controls before it takes a lock. The first call of a Locker waits for
// them for two seconds at most. A Locker that cannot read them, as when their node of a Cluster is away, says so in the
// log, and obeys those that it has read last, or none, until it can read them.
const ControlDelay = control.Delay

// Controls returns the controls of the Locker's prefix. It does no I/O.
func (l *Locker) Controls() *Controls { return &Controls{inside.Make(l.engine().Controls())} }

// Pause keeps everybody from taking a lock of the target, until the time until or, if that is zero, until Resume. A
// second Pause replaces the first. why is the reason to show, at most 1,000 bytes. An until in the past, or more than
// ten years ahead, is an error.
func (c *Controls) Pause(ctx context.Context, target string, until time.Time, why string) error {
	return c.inner().Give(ctx, control.Pauses, target, control.Control{Paused: true, PausedUntil: until, Why: why})
}

// Resume ends a pause, if there is one. If the scope of a key is paused too, the key stays paused.
func (c *Controls) Resume(ctx context.Context, target string) error {
	_, err := c.inner().End(ctx, control.Pauses, target)
	return err
}

// SetLimit sets how many may hold a lock of the target at once, in place of the number in the program. n is at least 1.
// A lower limit takes effect as holders leave. With a limit above 1 a mutex becomes a semaphore. why is the reason to
// show, at most 1,000 bytes.
func (c *Controls) SetLimit(ctx context.Context, target string, n int, why string) error {
	return c.inner().Give(ctx, control.Limits, target, control.Control{Limit: n, Why: why})
}

// ClearLimit removes the limit that SetLimit has set, if there is one.
func (c *Controls) ClearLimit(ctx context.Context, target string) error {
	_, err := c.inner().End(ctx, control.Limits, target)
	return err
}

// SetRate sets how often a lock of the target may be taken, in place of the rate in the program, or as the rate of a
// lock that has none: starts times in each period per, evenly spread, and after a pause burst times at once; see
// [Rate], which has the bounds of the three. What is out of bounds is an error. From [ControlDelay] on each start
// counts; starts of before count where the process has known the rate. why is the reason to show, at most 1,000 bytes.
func (c *Controls) SetRate(
	ctx context.Context, target string, starts int, per time.Duration, burst int, why string,
) error {
	return c.inner().Give(ctx, control.Rates, target, control.Control{Why: why,
		Rate: rate.Rate{Starts: starts, Per: per, Burst: burst}})
}

// ClearRate removes the rate that SetRate has set, if there is one.
func (c *Controls) ClearRate(ctx context.Context, target string) error {
	_, err := c.inner().End(ctx, control.Rates, target)
	return err
}

// List reads from Redis all controls in force, sorted by target. It leaves out what cannot be read, and logs that once.
func (c *Controls) List(ctx context.Context) ([]Control, error) {
	state, err := c.inner().Fetch(ctx)
	if err != nil {
		return nil, err
	}
	var list []Control
	for _, c := range state.Controls() {
		list = append(list, newControl(c))
	}
	return list, nil
}
