package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keytext"
)

// ReasonPaused is the [BusyError].Reason of a lock that an operator has paused; see
// [Controls].
const ReasonPaused = "paused"

// Control is an operator's order for a target: a pause, another limit, or both. It applies
// to running programs. See [Controls].
type Control struct {
	// Target is a scope ("report") or one key ("report|acme").
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
	pauseBy, limitBy orderedBy
}

// appliesTo reports whether the lock with that Redis key belongs to the target.
func (c Control) appliesTo(key string) bool {
	_, text, ok := strings.Cut(key, ":{")
	if !ok {
		return false
	}
	target, scope, ok := controlTargets(text)
	return ok && (c.Target == target || c.Target == scope)
}

// controlsFor gives those controls of a list that are for the lock with that Redis key,
// and what comes of them: the limit that they set, 0 for none, and the pause, nil for
// none. A limit for the key wins over one for its scope.
func controlsFor(list []Control, key string) (its []Control, limit int, pause *Control) {
	for _, c := range list {
		if !c.appliesTo(key) {
			continue
		}
		its = append(its, c)
		if c.Limit > 0 && (limit == 0 || strings.Contains(c.Target, "|")) {
			limit = c.Limit
		}
		if c.Paused && (pause == nil || strings.Contains(c.Target, "|")) {
			pause = &c
		}
	}
	return its, limit, pause
}

// controlTargets gives the two targets that a lock belongs to: its key, and its
// scope. text is its Redis key without prefix and first brace. not ok: it is no key of
// a mutex or semaphore (a pool's, a claim's), which no control is for.
func controlTargets(text string) (key, scope string, ok bool) {
	key, ok = strings.CutSuffix(text, "}")
	if key == keytext.ControlScope {
		key = keytext.Controls
	}
	scope, _, _ = strings.Cut(key, "|")
	return key, scope, ok
}

// Controls sets and reads the orders of operators: a pause, or another limit, for all locks of
// a scope or for one lock. Every Locker with the same prefix on the same Redis obeys these
// orders. Get Controls with [Locker.Controls]. Safe for concurrent use.
//
// A target is a scope, which is the name of locks without their [Parts], or one key. "report"
// is every lock of that scope. "report|acme" is one lock: the text between the braces of its
// Redis key. The control of a key wins over that of its scope. A whole Redis key, as
// [Lock.Key] returns it, is a target too. Use it if a part may have other characters than
// letters and digits, or more than 200 bytes. Text that cannot be a lock's key is an error.
//
// A change is in force for this Locker when the call returns, and for all others within
// [ControlDelay]. Each Locker logs the change. The change outlives restarts. If two operators
// change one target at the same time, the later change wins. The pause and the limit of a
// target are independent. After ErrBackend the change may be in force or not.
//
// While a target is paused, TryLock returns a [*BusyError] with [ReasonPaused], Lock waits in
// line, and a release grants the lock to nobody. Present holders keep the lock. Pools, and the
// claims of package unique, have no controls.
type Controls struct{ locker *Locker }

// ControlDelay is the longest time until every process that reaches Redis obeys a change of
// the [Controls]. A pause does not stop present holders. To act while nobody holds a lock,
// pause it, wait for ControlDelay, and then wait until [Lock.Holders] returns none.
const ControlDelay = 2 * time.Second

// Controls returns the controls of the Locker's prefix. It does no I/O.
func (l *Locker) Controls() *Controls { return &Controls{l} }

// Pause keeps everybody from taking a lock of the target. The pause ends at the time until or,
// if until is zero, with Resume. A second Pause replaces the first. why is the reason to show,
// at most 1,000 bytes. An until in the past, or more than ten years ahead, is an error.
func (c *Controls) Pause(ctx context.Context, target string, until time.Time, why string) error {
	left := time.Until(until)
	switch {
	case until.IsZero():
	case left <= 0:
		return fmt.Errorf("lock: pause of %q until %s: that is in the past; give a time to come, or the zero time for a pause until Resume",
			target, until.Format(time.RFC3339))
	case left > inside.MaxTTL:
		return fmt.Errorf("lock: pause of %q until %s: at most %s from now; give the zero time for a pause until Resume",
			target, until.Format(time.RFC3339), inside.MaxTTL)
	}
	_, err := c.change(ctx, target, why, false, func(e *controlEntry, by orderedBy, skew time.Duration) {
		e.Pause = &pauseEntry{orderedBy: by}
		if !until.IsZero() {
			end := until.Add(skew).UTC()
			e.Pause.Until = &end
		}
	})
	return err
}

// Resume ends a pause. If the target is not paused it changes nothing, and returns nil. If
// the scope of a key is paused too, the key stays paused.
func (c *Controls) Resume(ctx context.Context, target string) error {
	_, err := c.resume(ctx, target)
	return err
}

// resume is Resume, and returns what it has ended.
func (c *Controls) resume(ctx context.Context, target string) (inside.Ended, error) {
	found, err := c.change(ctx, target, "", true, func(e *controlEntry, _ orderedBy, _ time.Duration) { e.Pause = nil })
	return found.ended(found.was.Paused), err
}

// SetLimit sets how many may hold a lock of the target at once, in place of the number in the
// program. n is at least 1. A lower limit takes effect as holders leave. With a limit above 1
// a mutex becomes a semaphore. [Locker.Lead] ignores the limit. why is the reason to show, at
// most 1,000 bytes.
func (c *Controls) SetLimit(ctx context.Context, target string, n int, why string) error {
	if n < 1 || n > maxLimit {
		return fmt.Errorf("lock: limit of %d for %q: from 1 to %d; to let nobody acquire it, use Pause", n, target, maxLimit)
	}
	_, err := c.change(ctx, target, why, false, func(e *controlEntry, by orderedBy, _ time.Duration) {
		e.Limit = &limitEntry{orderedBy: by, Holders: n}
	})
	return err
}

// ClearLimit removes the limit that SetLimit has set. If there is none it changes nothing,
// and returns nil.
func (c *Controls) ClearLimit(ctx context.Context, target string) error {
	_, err := c.clearLimit(ctx, target)
	return err
}

// clearLimit is ClearLimit, and returns what it has ended.
func (c *Controls) clearLimit(ctx context.Context, target string) (inside.Ended, error) {
	found, err := c.change(ctx, target, "", true, func(e *controlEntry, _ orderedBy, _ time.Duration) { e.Limit = nil })
	return found.ended(found.was.Limit > 0), err
}

// List reads from Redis all controls in force, sorted by target. It leaves out an entry that
// this version cannot read, and logs it once.
func (c *Controls) List(ctx context.Context) ([]Control, error) {
	state, err := c.fetch(ctx)
	if err != nil {
		return nil, err
	}
	c.locker.controls.logUnreadable(state)
	return state.inForce(), nil
}

// unreadable gives the entries that this version cannot read: by target, why. They
// are not in force.
func (c *Controls) unreadable(ctx context.Context) (map[string]string, error) {
	state, err := c.fetch(ctx)
	if err != nil {
		return nil, err
	}
	return state.unreadable(), nil
}

// inForce gives the controls that this Locker obeys at the moment, sorted by target.
// It does no I/O: the Locker has read them when it was first asked for a lock, and
// every 1.5 seconds since.
func (c *Controls) inForce() []Control {
	if state := c.locker.controls.state.Load(); state != nil {
		return state.inForce()
	}
	return nil
}

// Bounds of what is accepted, and of what is read.
const (
	maxLimit    = 1<<31 - 1
	maxWhy      = 1000 // bytes
	maxTarget   = 1000 // bytes
	maxControls = 1000 // targets
	mostRead    = 10 * maxControls
)

// fetch reads the controls for a caller.
func (c *Controls) fetch(ctx context.Context) (*controlState, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.locker.enter(); err != nil {
		return nil, err
	}
	defer c.locker.work.Done()
	state, err := c.locker.readControls(ctx, c.locker.controls.state.Load())
	if err != nil {
		return nil, backendError("control", c.locker.controls.keys[0], err)
	}
	return state, nil
}

// changed is what a change has found at its target.
type changed struct {
	was        Control // what was in force; zero: nothing
	unreadable bool    // the entry could not be read, and so was not in force
}

// ended says what a change that ends an order has ended; order is whether that order was
// in force.
func (c changed) ended(order bool) inside.Ended {
	switch {
	case c.unreadable:
		return inside.EndedUnreadable
	case order:
		return inside.EndedOrder
	}
	return inside.EndedNothing
}

// changeTries is how often a change is tried whose entry somebody else changes
// meanwhile. Each try in vain means that another operator's change came through.
const changeTries = 50

// change reads the entry of a target, changes it and writes it back if nobody has
// changed it in between: else it begins anew. So no change of another operator gets
// lost, and none is needed that spans two targets: each is a field of its own.
//
// A change that ends an order (ends) also takes a target that no lock has, if an entry
// with that very name is stored: whatever has put it there, it can be removed.
func (c *Controls) change(ctx context.Context, target, why string, ends bool, apply func(e *controlEntry, by orderedBy, skew time.Duration)) (found changed, err error) {
	l := c.locker
	if l.err != nil {
		return found, l.err
	}
	text, wrong := l.parseTarget(target)
	if wrong != nil && !ends {
		return found, wrong
	}
	if len(why) > maxWhy {
		return found, fmt.Errorf("lock: control for %q: the reason has %d bytes: at most %d", text, len(why), maxWhy)
	}
	for range changeTries {
		state, err := c.fetch(ctx)
		if err != nil {
			return found, err
		}
		if ends && (wrong != nil || state.targets[text] == nil) && state.targets[target] != nil {
			text, wrong = target, nil
		}
		if wrong != nil {
			return found, wrong
		}
		done, err := c.changeOnce(ctx, state, text, orderedBy{
			Why: strings.ToValidUTF8(why, "\uFFFD"), By: strings.ToValidUTF8(unescape(l.owner), "\uFFFD"), Since: state.serverTime,
		}, apply)
		if err != nil {
			return found, err
		}
		if done {
			c.dropEnded(ctx, state, text)
			if t := state.targets[text]; t != nil {
				found.was, _ = t.entry.control(text, state.serverTime)
				found.unreadable = t.wrong != nil
			}
			return found, l.obeyNow(ctx)
		}
	}
	return found, fmt.Errorf("lock: control for %q: others change it all the time; try again", text)
}

func (c *Controls) changeOnce(ctx context.Context, state *controlState, target string, by orderedBy,
	apply func(e *controlEntry, by orderedBy, skew time.Duration),
) (done bool, err error) {
	was := state.targets[target]
	if was == nil {
		was = &controlled{}
	}
	entry := was.entry
	if was.wrong != nil {
		entry = controlEntry{}
	}
	apply(&entry, by, state.skew())
	if entry.Pause != nil && entry.Pause.endedAt(state.serverTime) {
		entry.Pause = nil
	}
	removes := entry.Pause == nil && entry.Limit == nil
	switch {
	case errors.Is(was.wrong, errNewerVersion) && !removes:
		return false, fmt.Errorf("lock: control for %q: %w; change it with that version, or remove it with Resume first", target, was.wrong)
	case removes && was.raw == "":
		return true, nil
	case was.raw == "" && len(state.targets) >= maxControls:
		return false, fmt.Errorf("lock: control for %q: %d targets have controls already, which is the most; resume some, or use their scope", target, len(state.targets))
	}
	after := ""
	if !removes {
		after = entry.text()
	}
	return c.write(ctx, target, was.raw, after)
}

// write puts after in the place of before; done is false where before is there no
// longer.
func (c *Controls) write(ctx context.Context, target, before, after string) (done bool, err error) {
	l := c.locker
	if err := l.enter(); err != nil {
		return false, err
	}
	defer l.work.Done()
	reply, err := l.conn.Run(ctx, controlWriteScript, l.controls.keys, []any{target, before, after})
	if err != nil {
		return false, backendError("control", l.controls.keys[0], err)
	}
	code, err := codeOf(reply, 1)
	if err != nil {
		return false, backendError("control", l.controls.keys[0], err)
	}
	return code == 1, nil
}

// dropMost is how many entries of ended pauses go with one change.
const dropMost = 20

// dropEnded removes entries whose pause has ended by itself, but for that of target.
// An error leaves them to the next change: nothing is in force of them.
func (c *Controls) dropEnded(ctx context.Context, state *controlState, target string) {
	dropped := 0
	for name, t := range state.targets {
		if name == target || t.wrong != nil || dropped == dropMost {
			continue
		}
		if t.entry.Limit != nil || t.entry.Pause == nil || !t.entry.Pause.endedAt(state.serverTime) {
			continue
		}
		dropped++
		if _, err := c.write(ctx, name, t.raw, ""); err != nil {
			return
		}
	}
}

// sortControls puts controls into the order in which they are listed.
func sortControls(list []Control) []Control {
	slices.SortFunc(list, func(a, b Control) int { return strings.Compare(a.Target, b.Target) })
	return list
}
