package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/lock"
)

// Lock takes the lock that tasks of the rule with that Name take, for work that is no task: an HTTP handler, a script.
// parts are the values of the rule's On and OnHeaders, each as the key has it; see [Fields].
//
// Lock waits in line until ctx ends; the error is then a [*lock.BusyError], and Is ctx.Err(). Parked tasks come after
// those who wait. The rule's Limit, Rate, TTL, MaxHold and Fence count, and orders of operators; its Wait, Busy and
// Cooldown do not. No newer task stops it under [Replace].
//
// Unlock the lease. It outlives ctx, and is renewed until [Guard.Close], which does not wait for it. One EventReleased,
// or EventLost, follows each EventAcquired.
//
// It is an error, and nothing is taken, if no rule has that Name; if a part is missing, empty or not UTF-8; if the rule
// has InOrder, or makes its key or bounds from a task, for [Guard.LockFor]; and in a handler that holds the key. After
// Close the error Is [ErrClosed].
func (g *Guard) Lock(ctx context.Context, rule string, parts ...string) (*lock.Lease, error) {
	t, err := g.targetOf(rule, parts)
	if err != nil {
		return nil, fmt.Errorf("automutex: Lock: %w", err)
	}
	return g.lock(ctx, t)
}

// LockFor is [Guard.Lock] for the key and the bounds of a task, which need not be enqueued. It returns the errors of
// the rule's functions; without a lock the error Is [NoLock]. It takes nothing for a task that needs several.
func (g *Guard) LockFor(ctx context.Context, t *asynq.Task) (*lock.Lease, error) {
	if t == nil {
		return nil, errors.New("automutex: LockFor: the task is nil")
	}
	targets, err := g.rules.targets(ctx, t, g.cfg.Prefix)
	switch {
	case err != nil:
		return nil, err
	case g.rules.match(t.Type()) == nil:
		return nil, fmt.Errorf("automutex: LockFor: no rule is for tasks of type %q; add one", t.Type())
	case len(targets) == 0:
		return nil, fmt.Errorf("automutex: LockFor: task %q has no key: %w", t.Type(), NoLock)
	case len(targets) > 1:
		names := make([]string, len(targets))
		for i, its := range targets {
			names[i] = its.rule.Name
		}
		return nil, fmt.Errorf("automutex: LockFor: task %q needs several locks: take each with Lock, in the order of "+
			"its rules: %q", t.Type(), names)
	}
	return g.lock(ctx, &targets[0])
}

func (g *Guard) targetOf(name string, parts []string) (t *target, err error) {
	names := make([]string, len(g.rules.rules))
	for i, rule := range g.rules.rules {
		names[i] = rule.Name
	}
	i := slices.Index(names, name)
	if i < 0 {
		if meant, ok := nearest.Name(name, names); ok {
			return t, fmt.Errorf("no rule has the name %q; did you mean %q?", name, meant)
		}
		return t, fmt.Errorf("no rule has the name %q; there are %q", name, names)
	}
	c := g.rules.rules[i]
	limit := c.Limit
	if c.LimitField != nil {
		limit = c.LimitField.Default
	}
	of := slices.Concat(c.On, c.OnHeaders)
	isPrefixOf := func(served string) bool { return served != c.Task && g.rules.byTask.Pattern(served) == c.Task }
	switch field := c.needsTask(slices.ContainsFunc(g.served.List(), isPrefixOf)); {
	case c.InOrder: // lock refuses it
	case field != "":
		return t, fmt.Errorf("rule %q needs a task for its %s; use LockFor", name, field)
	case len(parts) != len(of):
		return t, fmt.Errorf("rule %q makes keys of %d values %q, not of %d; give one for each", name, len(of), of,
			len(parts))
	case slices.ContainsFunc(parts, func(part string) bool { return part == "" || !utf8.ValidString(part) }):
		return t, fmt.Errorf("rule %q: a part is empty or not UTF-8, and no task has such a key", name)
	}
	scope := c.scope(c.Task)
	key := keys.HashedKey(g.rules.secret, g.cfg.Prefix, scope, parts...)
	return &target{rule: c, key: key, scope: scope, limit: limit, pace: c.request.Pace}, nil
}

func (c *compiledRule) needsTask(isPrefix bool) string {
	switch {
	case c.Key != nil:
		return "Key"
	case c.LimitOf != nil:
		return "LimitOf"
	case c.LimitField != nil && c.LimitField.Default == 0:
		return "LimitField, which has no Default"
	case c.RateOf != nil:
		return "RateOf"
	case c.Cost != nil:
		return "Cost"
	case c.Scope == "" && (isPrefix || strings.ContainsAny(c.Task[len(c.Task)-1:], ":./-_")):
		return "Scope, which is the type of each that begins with its Task"
	}
	return ""
}

func (g *Guard) lock(ctx context.Context, t *target) (*lock.Lease, error) {
	d := &delivery{facts: facts{guard: g, ctx: ctx, task: asynq.NewTask("", nil)}}
	switch {
	case t.rule.InOrder:
		return nil, fmt.Errorf("automutex: rule %q has InOrder: only its tasks have places in the order of a key; enqueue "+
			"a task", t.rule.Name)
	case d.holds(t.key):
		return nil, fmt.Errorf("automutex: rule %q: this handler holds key %q, and would wait for itself; use its lease, "+
			"which Lease returns", t.rule.Name, t.key)
	case g.life.Closing.Err() != nil:
		return nil, ErrClosed
	}
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.life.Closing, cancel)()
	d.line.came = time.Now()
	r := d.request(t)
	r.Whole, r.MaxHold = false, t.rule.MaxHold
	r.Line = &engine.Line{OnWait: func(time.Duration) { d.observeWaiting(t) }}
	e, taken := Event{Kind: EventAcquired}, time.Now()
	m := &lock.Lock{}
	*inside.At(m) = engine.Handle{Engine: g.engine, Request: *r}
	lease, err := m.Lock(waits)
	d.observeWaited(t)
	e.Waited = time.Since(d.line.came)
	var busy *lock.BusyError
	switch {
	case err == nil:
		taken = time.Now()
	case g.life.Closing.Err() != nil:
		return nil, ErrClosed
	case errors.As(err, &busy):
		e.Kind, e.Busy = EventBusy, &BusyError{Rule: t.rule.Name, Key: t.key, Reason: busy.Reason, Holder: busy.Holder,
			HolderTask: busy.Note, ExpiresIn: busy.ExpiresIn, Waited: busy.Waited, Place: busy.Place, Pause: busy.Pause}
	default:
		e.Kind, e.Err = EventBackendError, err
	}
	if d.observe(t, e); err == nil {
		d.observeEnd(t, *inside.At(lease), taken)
	}
	return lease, err
}

// observeEnd has the end of a lease, and each release, observed.
func (f *facts) observeEnd(t *target, le *engine.Lease, taken time.Time) {
	var once sync.Once
	ended := func(kind EventKind, err error) {
		once.Do(func() { f.observe(t, Event{Kind: kind, Held: time.Since(taken), Err: err}) })
	}
	le.OnEnd = func(err error) {
		if errors.Is(err, lock.ErrNotHeld) {
			ended(EventLost, fmt.Errorf("%w: %w", lock.ErrLost, err))
			return
		}
		if err != nil {
			f.observe(t, Event{Kind: EventBackendError, Err: err})
		}
		ended(EventReleased, nil)
	}
	le.WhenEnds(func(cause error) {
		if errors.Is(cause, lock.ErrLost) { // a release has reported itself
			go ended(EventLost, cause)
		}
	})
}
