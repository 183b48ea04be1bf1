// Package inspect reads locks as operators see them, and says what rules make of them.
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/lock"
)

// Lock is one lock. Its JSON is what the command prints with --json.
type Lock struct {
	Key     string     `json:"key"`
	Held    int        `json:"held"`
	Line    int        `json:"line"`             // waiting, parked and queued together
	Parked  int        `json:"parked,omitempty"` // of the line, called ones included
	Queued  int        `json:"queued,omitempty"` // of the line: tasks of an ordered key
	Next    *Next      `json:"next,omitempty"`   // the first task of an ordered key that does not run
	Since   *time.Time `json:"since,omitempty"`  // when the newest holder took it
	Gate    *Gate      `json:"gate,omitempty"`   // nil: it is open
	Holders []Holder   `json:"holders"`
	Waiters []Waiter   `json:"waiters,omitempty"` // set by One only

	Paused   bool      `json:"paused,omitempty"`   // by an operator
	Limit    int       `json:"limit,omitempty"`    // set by an operator; 0: the program's own
	Rate     rate.Rate `json:"rate,omitzero"`      // set by an operator
	Controls []Control `json:"controls,omitempty"` // the orders that are for it

	At time.Time `json:"-"` // Redis' time before the look
}

// Next is the task that is next in the order of its key, and does not run.
type Next struct {
	Task    string      `json:"task"` // queue/id
	Since   time.Time   `json:"since"`
	Blocked bool        `json:"blocked,omitempty"` // it has failed or is archived, and others wait for it
	Held    bool        `json:"held,omitempty"`    // it is archived and holds its key
	Head    engine.Head `json:"-"`                 // what package blocked says more of
}

// Work is the task of a holder or waiter. Note is set if there is none.
type Work struct {
	Queue string `json:"queue,omitempty"`
	Task  string `json:"task,omitempty"`
	Note  string `json:"note,omitempty"`
}

// WorkOf reads a note: a task, or another text.
func WorkOf(note string) Work {
	if queue, id, ok := tasknote.Parse(note); ok {
		return Work{Queue: queue, Task: id}
	}
	return Work{Note: note}
}

// Holder is one holder of a lock.
type Holder struct {
	Token string `json:"token"`
	Owner string `json:"owner"`
	Work
	Until time.Time `json:"until"`
}

// Waiter is one place in the line of a lock.
type Waiter struct {
	Owner string `json:"owner"`
	Work
	Since time.Time `json:"since"`
	State string    `json:"state"` // see WaiterState
}

// Gate is why nobody starts on a lock, and until when.
type Gate struct {
	Closed string    `json:"closed"` // rate, closed or cooldown
	Opens  time.Time `json:"opens"`
}

// String says why, for an operator.
func (g Gate) String() string {
	return map[string]string{lock.ReasonRate: "rate used up", lock.ReasonCooldown: "cooling down",
		lock.ReasonClosed: "closed"}[g.Closed]
}

// Breakable reports whether a break of all opens a gate that was closed for that reason: CloseGate or a cooldown has
// closed it, and not a rate. Empty means that the gate is open.
func Breakable(closed string) bool {
	return closed == lock.ReasonClosed || closed == lock.ReasonCooldown
}

// Break takes a lock from the holders with those tokens and, if gate is true, opens its gate. It returns how many of
// them had the lock, and whether a gate was opened; neither is no error.
func Break(
	ctx context.Context, e *engine.Engine, key string, tokens []string, gate bool,
) (broken int, opened bool, err error) {
	r, err := e.Ref(key)
	if err != nil {
		return 0, false, err
	}
	if broken, err = e.Break(ctx, r, engine.BreakHolders, tokens...); err != nil {
		return broken, false, fmt.Errorf("%d of %d broken: %w", broken, len(tokens), err)
	}
	if gate {
		n, err := e.Break(ctx, r, engine.BreakGate)
		if opened = n > 0; err != nil {
			return broken, false, fmt.Errorf("%d of %d broken, and the gate not opened: %w", broken, len(tokens), err)
		}
	}
	return broken, opened, nil
}

// Control is an operator's order that is in force.
type Control = control.Control

// FromOrders makes Controls of orders.
func FromOrders(list []control.Order) (all []Control) {
	for _, o := range list {
		all = append(all, o.Control)
	}
	return all
}

// lockOf makes a Lock of what an Engine reads. now is Redis' time.
func lockOf(info engine.Info, orders []control.Order, now time.Time) Lock {
	until := func(d time.Duration) time.Time { return now.Add(d).Truncate(time.Millisecond).UTC() }
	parked := info.Parked + info.Called
	l := Lock{Key: info.Key, Held: info.Held, Line: info.Waiting + parked + info.Queued, Parked: parked,
		Queued: info.Queued, Holders: []Holder{}, At: now}
	if h := info.Head; info.Queued > 0 && !h.Runs {
		l.Next = &Next{Task: h.Note, Since: h.Since.UTC(), Blocked: h.Blocks(), Held: h.Held(), Head: h}
	}
	if info.Held > 0 && !info.Taken.IsZero() {
		at := info.Taken.UTC()
		l.Since = &at
	}
	if info.Gate.OpensIn > 0 {
		l.Gate = &Gate{info.Gate.Reason, until(info.Gate.OpensIn)}
	}
	for _, h := range info.Holders {
		l.Holders = append(l.Holders, Holder{Token: h.Token, Owner: h.Owner, Work: WorkOf(h.Note), Until: until(h.ExpiresIn)})
	}
	its, in := control.For(orders, l.Key)
	l.Controls, l.Limit, l.Rate, l.Paused = FromOrders(its), in.Limit, in.Rate, in.Paused
	return l
}

// present returns the clock of Redis and the orders in force. A user without the right to read orders has none, and the
// clock of this machine: that is for doctor to say.
func present(ctx context.Context, e *engine.Engine) (now func() time.Time, orders []control.Order) {
	state, err := e.Controls().Fetch(ctx)
	if err != nil {
		return time.Now, nil
	}
	return state.Now, state.Orders()
}

// Walk reads all locks under the Engine's prefix, some at a time. An error ends it.
func Walk(ctx context.Context, e *engine.Engine) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		now, orders := present(ctx, e)
		for info, err := range e.List(ctx) {
			if !yield(lockOf(info, orders, now()), err) {
				return
			}
		}
	}
}

// One reads one lock and the first hundred of its line.
func One(ctx context.Context, e *engine.Engine, key string) (Lock, error) {
	r, err := e.Ref(key)
	if err != nil {
		return Lock{}, err
	}
	clock, orders := present(ctx, e)
	now := clock() // before the look
	info, err := e.Inspect(ctx, r, engine.MaxHolders)
	if err != nil {
		return Lock{}, err
	}
	line, err := e.Line(ctx, r, info, 100)
	l := lockOf(info, orders, now)
	for _, w := range line {
		l.Waiters = append(l.Waiters, Waiter{Owner: w.Owner, Work: WorkOf(w.Note), Since: w.Since.UTC(),
			State: WaiterState(w)})
	}
	return l, err
}

// WaiterState is what a place in line is: waiting, parked or called. A task of an ordered key may also be archived, and
// hold its key, or be in order alone: asynq has it pending or retries it later.
func WaiterState(w engine.Waiter) string {
	switch {
	case w.Held:
		return "archived"
	case w.Called:
		return "called"
	case w.Parked:
		return "parked"
	case w.Ordered && w.Owner == "":
		return "in order"
	}
	return "waiting"
}

// TaskName names the task, or shows the note.
func (w Work) TaskName() string {
	if w.Task != "" {
		return w.Queue + "/" + w.Task
	}
	return cmp.Or(w.Note, "-")
}

// TaskState says what asynq knows of the task: its type and state.
func (w Work) TaskState(inspector *asynq.Inspector) string {
	if w.Task == "" {
		return "-"
	}
	info, err := inspector.GetTaskInfo(w.Queue, w.Task)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound), errors.Is(err, asynq.ErrTaskNotFound):
		return "not in asynq"
	case err != nil:
		return "unknown: " + printable.OneLine(err.Error())
	}
	return fmt.Sprintf("%s, %s", info.Type, info.State)
}

// ScopeOf returns the scope in a lock's key, as the key has it. fleet.Rule.Has says whether a rule has it.
func ScopeOf(key string) string {
	scope, _, _ := strings.Cut(control.Bare(key), "|")
	return scope
}

// Matches reports whether an operator who searches for a pattern means a text: it has the pattern in it, or fits the
// pattern as a whole, with *, ? or [a-z] as path.Match has them, except that a slash is a character like any other.
func Matches(pattern, text string) bool {
	// which path.Match takes for separators
	noSlash := func(text string) string { return strings.ReplaceAll(text, "/", "\x00") }
	fits, err := path.Match(noSlash(pattern), noSlash(text))
	return strings.Contains(text, pattern) || fits && err == nil
}

// IsHeldBy reports whether the label or the task of a holder fits a pattern, as Matches says it.
func (l Lock) IsHeldBy(pattern string) bool {
	return slices.ContainsFunc(l.Holders, func(h Holder) bool {
		return Matches(pattern, h.Owner) || Matches(pattern, h.TaskName())
	})
}

// Describe returns rules in words, named as automutex.New names them; none if New refuses them.
func Describe(rules []automutex.Rule) []fleet.Rule {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: rules, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil
	}
	return *inside.At(maker)
}

// ByTask finds the indexes of the rules that apply to a task type.
func ByTask(rules []automutex.Rule) *tasktype.Map[[]int] {
	var byTask tasktype.Map[[]int]
	for i, rule := range rules {
		before, _ := byTask.At(rule.Task)
		byTask.Add(rule.Task, append(before, i))
	}
	return &byTask
}

// FromFleet makes rules of what processes say they run: as much of them as keys and doctor need. What a function of the
// program decides is not known: a rule with a Key gives no lock.
func FromFleet(described []fleet.Rule) []automutex.Rule {
	rules := make([]automutex.Rule, len(described))
	for i, d := range described {
		wait, _ := time.ParseDuration(d.Wait)
		rules[i] = automutex.Rule{Name: d.Name, Task: d.Task, Scope: d.Scope, On: d.On, OnHeaders: d.OnHeaders,
			Optional: d.Optional, Wait: wait, Busy: automutex.Retry}
		if d.Busy == automutex.Park.String() {
			rules[i].Busy = automutex.Park
		}
		if d.Computed {
			rules[i].On, rules[i].OnHeaders = nil, nil
			rules[i].Key = func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }
		}
	}
	return rules
}

// Key returns the Redis key that an operator means: a whole key, or what stands between its braces.
func Key(prefix, text string) string {
	if strings.ContainsAny(text, "{}") {
		return text
	}
	return prefix + ":{" + text + "}"
}

// TypedKey returns the Redis key of the lock that a person types: a whole key, or a scope and its parts, which are
// escaped here, or hashed with the secret.
func TypedKey(prefix, secret, text string) string {
	if stored, err := control.Stored(prefix, secret, nil, text); err == nil && !strings.Contains(text, ":{") {
		return prefix + ":{" + stored + "}"
	}
	return Key(prefix, text) // package lock says what is wrong with it
}

// IsScope reports whether a rule has a scope of that very name, which then is the target of an order although it has a
// |.
func IsScope(rules []fleet.Rule, text string) bool {
	scope := keys.Scope(text)
	return slices.ContainsFunc(rules, func(r fleet.Rule) bool { its, _ := r.ScopeText(); return its == scope })
}

// Unknown says why no task has the target of an order, as a person types it; empty if one may have it, as far as rules
// and live locks tell. hashed: the values of keys are hashed.
func Unknown(
	ctx context.Context, e *engine.Engine, rules []fleet.Rule, hashed bool, text string,
) (why string, err error) {
	target, err := e.Controls().Target(text)
	if err != nil || len(rules) == 0 {
		return "", nil // package lock says what is wrong with it
	}
	if why = unruled(rules, hashed, target); why == "" {
		return "", nil
	}
	for l, err := range Walk(ctx, e) {
		if err != nil {
			return "", err
		}
		if control.Bare(l.Key) == target || ScopeOf(l.Key) == target {
			return "", nil
		}
	}
	return why + " There is no such lock now either", nil
}

// unruled says why no rule has a target, as it is stored; empty if one may.
func unruled(rules []fleet.Rule, hashed bool, target string) string {
	scope, values, valued := strings.Cut(target, "|")
	shown, parts := printable.Short(target), strings.Count(values, "|")+1
	fits := !valued || parts == 1 && strings.HasPrefix(values, "~") // a hash
	scopes := make([]string, 0, len(rules))
	var last *fleet.Rule // that has the scope
	for _, r := range rules {
		its, _ := r.ScopeText()
		scopes = append(scopes, its)
		if r.Has(scope) || !valued && keys.ControlsRule(r.Scope, r.Task, scope) {
			last = &r
			fits = fits || !hashed && (r.Computed || len(r.On)+len(r.OnHeaders) == parts)
		}
	}
	slices.Sort(scopes)
	switch meant := slices.IndexFunc(scopes, func(its string) bool { return nearest.IsMeant(its, scope) }); {
	case last == nil && meant >= 0:
		return fmt.Sprintf("No rule has the scope of %s: did you mean %s?", shown,
			printable.Short(keys.Unescape(scopes[meant]+target[len(scope):])))
	case last == nil:
		return fmt.Sprintf("No rule has the scope of %s (scopes: %s).", shown,
			printable.Short(strings.Join(slices.Compact(scopes), ", ")))
	case fits:
		return ""
	case hashed:
		return fmt.Sprintf("The keys of these rules are hashed, so no task has the key %s. Take the key that automutex "+
			"key prints.", shown)
	}
	return fmt.Sprintf("No task has the key %s: it has %s, and the keys of rule %s have %d.",
		shown, printable.Count(parts, "value"), printable.Short(last.Name), len(last.On)+len(last.OnHeaders))
}
