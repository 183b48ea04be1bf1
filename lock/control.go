package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inside"
)

// ReasonPaused is the [BusyError].Reason of a lock that an operator has paused; see
// [Controls].
const ReasonPaused = "paused"

// Control is an operator's order for a target: a pause, another limit, or both. It applies
// to running programs. See [Controls].
type Control struct {
	// Target is a scope ("report"), the beginning of scopes ("report:"), or one key ("report|acme").
	Target string
	// Limit is how many may hold a lock of the target at once. 0: the number in the
	// program applies.
	Limit int
	// Paused is true while nobody can take a lock of the target.
	Paused bool
	// PausedUntil is when the pause ends by itself. Zero: only [Controls.Resume] ends it.
	PausedUntil time.Time
	// Why is the reason given with the latest change. By is the owner label of the Locker that
	// made it. Since is the time of that change, by Redis' clock.
	Why, By string
	Since   time.Time
}

// Controls sets and reads the orders of operators: a pause, or another limit, for all locks of
// a scope or for one lock. Every Locker with the same prefix on the same Redis obeys these
// orders. Get Controls with [Locker.Controls]. Safe for concurrent use.
//
// A target is what a person types; escaping is ours. "report" is the scope of that very name,
// with whatever characters it has ("a%20b" is the scope a%20b, not "a b"), and is for all its
// locks. "report:" is also every scope that begins with it, but no scope of more than 200
// bytes. "report|acme" is one lock: its scope and its parts, as the program has them. A whole
// Redis key, as [Lock.Key] returns it, means itself; use it for a scope or a part that has a |.
// The narrowest control wins. Text that begins or ends with a space, or has a control
// character, is an error.
//
// A change is in force for this Locker when the call returns, and for all others within
// [ControlDelay]. Each Locker logs the change. The change outlives restarts. If two operators
// change one target at the same time, the later change wins. The pause and the limit of a
// target are independent. After ErrBackend the change may be in force or not.
//
// While a target is paused, TryLock returns a [*BusyError] with [ReasonPaused], Lock waits in
// line, and a release grants the lock to nobody. Present holders keep the lock. The pools of package pool, and the
// claims of package unique, have no control.
type Controls struct{ reader }

type reader = inside.Of[*control.Reader]

func (c *Controls) inner() *control.Reader { return *inside.At(c) }

// ControlDelay is two seconds: the longest time until every process that reaches Redis obeys a change of
// the [Controls]. A pause does not stop present holders. To act while nobody holds a lock,
// pause it, wait for ControlDelay, and then wait until [Lock.Holders] returns none.
//
// A process that was stopped for longer reads the controls before it takes a lock. The first
// call of a Locker waits for them for two seconds at most. A Locker that cannot read them, as
// when their node of a Cluster is away, says so in the log, and obeys those that it has read
// last, or none, until it can read them.
const ControlDelay = control.Delay

// Controls returns the controls of the Locker's prefix. It does no I/O.
func (l *Locker) Controls() *Controls { return &Controls{inside.Make(l.engine().Controls())} }

// Pause keeps everybody from taking a lock of the target. The pause ends at the time until or,
// if until is zero, with Resume. A second Pause replaces the first. why is the reason to show,
// at most 1,000 bytes. An until in the past, or more than ten years ahead, is an error.
func (c *Controls) Pause(ctx context.Context, target string, until time.Time, why string) error {
	return c.inner().Pause(ctx, target, until, why)
}

// Resume ends a pause. If the target is not paused it changes nothing, and returns nil. If
// the scope of a key is paused too, the key stays paused.
func (c *Controls) Resume(ctx context.Context, target string) error {
	_, err := c.inner().Resume(ctx, target)
	return err
}

// SetLimit sets how many may hold a lock of the target at once, in place of the number in the
// program. n is at least 1. A lower limit takes effect as holders leave. With a limit above 1
// a mutex becomes a semaphore. [Locker.Lead] ignores the limit. why is the reason to show, at
// most 1,000 bytes.
func (c *Controls) SetLimit(ctx context.Context, target string, n int, why string) error {
	return c.inner().SetLimit(ctx, target, n, why)
}

// ClearLimit removes the limit that SetLimit has set. If there is none it changes nothing,
// and returns nil.
func (c *Controls) ClearLimit(ctx context.Context, target string) error {
	_, err := c.inner().ClearLimit(ctx, target)
	return err
}

// List reads from Redis all controls in force, sorted by target. It leaves out a field that
// cannot be read, and logs it once.
func (c *Controls) List(ctx context.Context) ([]Control, error) {
	state, err := c.inner().Fetch(ctx)
	if err != nil {
		return nil, err
	}
	var list []Control
	for _, c := range state.Controls() {
		list = append(list, Control(c))
	}
	return list, nil
}
