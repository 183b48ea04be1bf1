package lock

import (
	"context"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/control"
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

	// Who ordered the pause and who the limit, where there are both; see orders.
	pauseBy, limitBy control.OrderedBy
}

// controlsFor gives those controls of a list that are for the lock with that Redis key,
// and what comes of them: the limit that they set, 0 for none, and the pause, nil for
// none. The list is sorted by target. All targets of one lock are beginnings of its key, so
// the last one is the narrowest, and wins.
func controlsFor(list []Control, key string) (its []Control, limit int, pause *Control) {
	for _, c := range list {
		if !control.AppliesTo(c.Target, key) {
			continue
		}
		its = append(its, c)
		if c.Limit > 0 {
			limit = c.Limit
		}
		if c.Paused {
			pause = &c
		}
	}
	return its, limit, pause
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
type Controls struct{ locker *Locker }

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
func (l *Locker) Controls() *Controls { return &Controls{l} }

// Pause keeps everybody from taking a lock of the target. The pause ends at the time until or,
// if until is zero, with Resume. A second Pause replaces the first. why is the reason to show,
// at most 1,000 bytes. An until in the past, or more than ten years ahead, is an error.
func (c *Controls) Pause(ctx context.Context, target string, until time.Time, why string) error {
	return c.locker.controls.Pause(ctx, target, until, why)
}

// Resume ends a pause. If the target is not paused it changes nothing, and returns nil. If
// the scope of a key is paused too, the key stays paused.
func (c *Controls) Resume(ctx context.Context, target string) error {
	_, err := c.locker.controls.Resume(ctx, target)
	return err
}

// SetLimit sets how many may hold a lock of the target at once, in place of the number in the
// program. n is at least 1. A lower limit takes effect as holders leave. With a limit above 1
// a mutex becomes a semaphore. [Locker.Lead] ignores the limit. why is the reason to show, at
// most 1,000 bytes.
func (c *Controls) SetLimit(ctx context.Context, target string, n int, why string) error {
	return c.locker.controls.SetLimit(ctx, target, n, why)
}

// ClearLimit removes the limit that SetLimit has set. If there is none it changes nothing,
// and returns nil.
func (c *Controls) ClearLimit(ctx context.Context, target string) error {
	_, err := c.locker.controls.ClearLimit(ctx, target)
	return err
}

// List reads from Redis all controls in force, sorted by target. It leaves out an entry that
// this version cannot read, and logs it once.
func (c *Controls) List(ctx context.Context) ([]Control, error) {
	state, err := c.locker.controls.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	return inForce(state), nil
}

// unreadable gives the entries that this version cannot read: by target, why. They
// are not in force.
func (c *Controls) unreadable(ctx context.Context) (map[string]string, error) {
	state, err := c.locker.controls.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	return state.Unreadable(), nil
}

// inForce gives the controls that this Locker obeys at the moment, sorted by target.
// It does no I/O: the Locker has read them when it was first asked for a lock, and
// every 1.5 seconds since.
func (c *Controls) inForce() []Control {
	if state := c.locker.controls.Latest(); state != nil {
		return inForce(state)
	}
	return nil
}

// inForce lists the controls of a state that are in force now, sorted by target.
func inForce(s *control.State) (list []Control) {
	for _, o := range s.Orders() {
		c := controlOf(o)
		if last := len(list) - 1; last >= 0 && list[last].Target == o.Target {
			pause := list[last]
			c.Paused, c.PausedUntil = true, pause.PausedUntil
			c.pauseBy, c.limitBy = control.OrderedBy{Why: pause.Why, By: pause.By, Since: pause.Since}, o.OrderedBy
			if !c.Since.After(pause.Since) {
				c.Why, c.By, c.Since = pause.Why, pause.By, pause.Since
			}
			list[last] = c
			continue
		}
		list = append(list, c)
	}
	return list
}

func controlOf(o control.Order) Control {
	return Control{Target: o.Target, Limit: o.Limit, Paused: o.Paused, PausedUntil: o.Until, Why: o.Why, By: o.By, Since: o.Since}
}

// pausedError returns the error for a lock that is paused, or nil.
func (m *Lock) pausedError() *BusyError { return m.locker.pausedError(m.Key(), m.request.Name) }

func (l *Locker) pausedError(key, name string) *BusyError {
	pause, left := l.controls.PauseOf(key)
	if pause == nil {
		return nil
	}
	control := controlOf(*pause)
	return &BusyError{Name: name, Reason: ReasonPaused, ExpiresIn: left, Pause: &control}
}

// orders returns the pause and the limit of a control, each as a Control with its own Why, By
// and Since. If the control does not come from a Locker, both have the control's Why, By and Since.
func (c Control) orders() []Control {
	if !c.Paused || c.Limit == 0 {
		return []Control{c}
	}
	if c.pauseBy == (control.OrderedBy{}) && c.limitBy == (control.OrderedBy{}) {
		c.pauseBy = control.OrderedBy{Why: c.Why, By: c.By, Since: c.Since}
		c.limitBy = c.pauseBy
	}
	order := func(o Control, by control.OrderedBy) Control {
		o.Target, o.Why, o.By, o.Since = c.Target, by.Why, by.By, by.Since
		return o
	}
	return []Control{
		order(Control{Paused: true, PausedUntil: c.PausedUntil}, c.pauseBy),
		order(Control{Limit: c.Limit}, c.limitBy),
	}
}

// ordersOf returns the orders of all controls of a list.
func ordersOf(list []Control) []Control {
	all := make([]Control, 0, len(list))
	for _, c := range list {
		all = append(all, c.orders()...)
	}
	return all
}

// text describes the control in a few words, for an operator.
func (c Control) text() string {
	orders := c.orders()
	texts := make([]string, len(orders))
	for i, order := range orders {
		texts[i] = control.Order{
			Target: order.Target, Paused: order.Paused, Until: order.PausedUntil, Limit: order.Limit,
			OrderedBy: control.OrderedBy{Why: order.Why, By: order.By, Since: order.Since},
		}.Text()
	}
	return strings.Join(texts, "; ")
}
