// Package inspect reads locks as operators see them, and says what rules make of them. The command and the page
// share it.
package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
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
	Controls []Control `json:"controls,omitempty"` // the orders that are for it
}

// Next is the task that is next in the order of its key, and does not run.
type Next struct {
	Task    string    `json:"task"` // queue/id
	Since   time.Time `json:"since"`
	Blocked bool      `json:"blocked,omitempty"` // it has failed or is archived, and others wait for it
	Held    bool      `json:"held,omitempty"`    // it is archived and holds its key
	head    engine.Head
}

// Head is what package blocked says more of.
func (n Next) Head() engine.Head { return n.head }

// Work is the task of a holder or waiter. Note is set if there is none.
type Work struct {
	Queue string `json:"queue,omitempty"`
	Task  string `json:"task,omitempty"`
	Note  string `json:"note,omitempty"`
}

// workOf reads a note: a task, or another text.
func workOf(note string) Work {
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
	switch g.Closed {
	case lock.ReasonRate:
		return "rate used up"
	case lock.ReasonCooldown:
		return "cooling down"
	}
	return "closed"
}

// Breakable reports whether a break of all opens a gate that was closed for that reason: a hold or a cooldown has
// closed it, and not a rate. Empty means that the gate is open.
func Breakable(closed string) bool {
	return closed == lock.ReasonClosed || closed == lock.ReasonCooldown
}

// Control is an operator's order that is in force: a pause or a limit. Its JSON is what the command prints with --json.
type Control struct {
	Target      string     `json:"target"`
	Paused      bool       `json:"paused,omitempty"`
	PausedUntil *time.Time `json:"paused_until,omitempty"` // nil: until resumed
	Limit       int        `json:"limit,omitempty"`
	Why         string     `json:"why,omitempty"`
	By          string     `json:"by"`
	Since       time.Time  `json:"since"`
}

// FromOrders makes Controls of orders.
func FromOrders(list []control.Order) (all []Control) {
	for _, o := range list {
		made := Control{Target: o.Target, Paused: o.Paused, Limit: o.Limit, Why: o.Why, By: o.By, Since: o.Since.UTC()}
		if until := o.Until.UTC(); !until.IsZero() {
			made.PausedUntil = &until
		}
		all = append(all, made)
	}
	return all
}

// OrderText says what an order is, who gave it, when and why. Times are UTC, with the day if it
// is not that of now.
func OrderText(o control.Order, now time.Time) string {
	clock := func(t time.Time) string {
		return strings.TrimPrefix(t.UTC().Format("2006-01-02 15:04"), now.UTC().Format(time.DateOnly+" "))
	}
	text := fmt.Sprintf("limited to %d", o.Limit)
	switch {
	case o.Paused && o.Until.IsZero():
		text = "paused until somebody resumes it"
	case o.Paused:
		text = "paused until " + clock(o.Until)
	}
	text += fmt.Sprintf("; ordered by %s at %s", o.By, clock(o.Since))
	if o.Why != "" {
		text += ": " + o.Why
	}
	return text
}

// lockOf makes a Lock of what an Engine reads. now is Redis' time.
func lockOf(info engine.Info, orders []control.Order, now time.Time) Lock {
	until := func(d time.Duration) time.Time { return now.Add(d).Truncate(time.Millisecond).UTC() }
	parked := info.Parked + info.Called
	l := Lock{Key: info.Key, Held: info.Held, Line: info.Waiting + parked + info.Queued, Parked: parked, Queued: info.Queued, Holders: []Holder{}}
	if h := info.Head; info.Queued > 0 && !h.Runs {
		l.Next = &Next{Task: h.Note, Since: h.Since.UTC(), Blocked: h.Blocks(), Held: h.Held(), head: h}
	}
	if info.Held > 0 && info.Granted > 0 {
		at := now.Add(-info.Granted).UTC()
		l.Since = &at
	}
	if info.Gate.OpensIn > 0 {
		l.Gate = &Gate{info.Gate.Reason, until(info.Gate.OpensIn)}
	}
	for _, h := range info.Holders {
		l.Holders = append(l.Holders, Holder{Token: h.Token, Owner: h.Owner, Work: workOf(h.Note), Until: until(h.ExpiresIn)})
	}
	its, limit, pause := control.For(orders, l.Key)
	l.Controls, l.Limit, l.Paused = FromOrders(its), limit, pause != nil
	return l
}

// ordersOf lists the orders in force. A user without the right to read them has none: that is for doctor to say.
func ordersOf(ctx context.Context, e *engine.Engine) []control.Order {
	list, _ := e.Controls().Orders(ctx)
	return list
}

// batchSize is how many locks Walk reads before it hands any of them on: as many as one SCAN brings.
const batchSize = 1000

// Walk reads all locks under the Engine's prefix, some at a time, so that neither Redis nor the caller ever has all of
// them at hand. An error ends it.
func Walk(ctx context.Context, e *engine.Engine, rdb redis.UniversalClient) iter.Seq2[[]Lock, error] {
	return func(yield func([]Lock, error) bool) {
		now, err := ServerTime(ctx, rdb)
		if err != nil {
			yield(nil, err)
			return
		}
		start, orders := time.Now(), ordersOf(ctx, e)
		var batch []Lock
		for info, err := range e.List(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			if batch = append(batch, lockOf(info, orders, now.Add(time.Since(start)))); len(batch) < batchSize {
				continue
			}
			if !yield(batch, nil) {
				return
			}
			batch = nil
		}
		if len(batch) > 0 {
			yield(batch, nil)
		}
	}
}

// lineShown is how many places of a line One reads.
const lineShown = 100

// One reads one lock and the beginning of its line. now is Redis' time.
func One(ctx context.Context, e *engine.Engine, rdb redis.UniversalClient, key string) (l Lock, now time.Time, err error) {
	r, err := e.Ref(key)
	if err != nil {
		return l, now, err
	}
	if now, err = ServerTime(ctx, rdb); err != nil {
		return l, now, err
	}
	info, err := e.Inspect(ctx, r, engine.MaxHolders, "", "")
	if err != nil {
		return l, now, err
	}
	line, err := e.Line(ctx, r, info, lineShown)
	if err != nil {
		return l, now, err
	}
	l = lockOf(info, ordersOf(ctx, e), now)
	for _, w := range line {
		l.Waiters = append(l.Waiters, Waiter{Owner: w.Owner, Work: workOf(w.Note), Since: w.Since.UTC(), State: WaiterState(w)})
	}
	return l, now, nil
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

// TaskName names the task of a holder or waiter, or shows its note.
func TaskName(queue, id, note string) string {
	switch {
	case id != "":
		return queue + "/" + id
	case note != "":
		return note
	}
	return "-"
}

// TaskState says what asynq knows of a task: its type and state. A task that asynq does not know any more matters to an
// operator: its lease ends at the deadline.
func TaskState(inspector *asynq.Inspector, queue, id string) string {
	if id == "" {
		return "-"
	}
	info, err := inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound), errors.Is(err, asynq.ErrTaskNotFound):
		return "not in asynq"
	case err != nil:
		return "unknown: " + printable.OneLine(err.Error())
	}
	return fmt.Sprintf("%s, %s", info.Type, info.State)
}

// Busier orders locks for a table: the longest line first, then the one taken longest ago, then by key, so that rows keep
// their place.
func Busier(a, b Lock) int {
	taken := func(l Lock) int64 {
		if l.Since == nil {
			return math.MaxInt64 // held by nobody: the last
		}
		return l.Since.UnixMicro()
	}
	return cmp.Or(cmp.Compare(b.Line, a.Line), cmp.Compare(taken(a), taken(b)), strings.Compare(a.Key, b.Key))
}

// InBraces returns what stands between the braces of a lock's key.
func InBraces(key string) string {
	return strings.TrimSuffix(key[strings.IndexByte(key, '{')+1:], "}")
}

// ScopeOf returns the scope in a lock's key, as the key has it. fleet.Rule.Has says whether a rule has it.
func ScopeOf(key string) string {
	scope, _, _ := strings.Cut(control.Bare(key), "|")
	return scope
}

// ServerTime returns Redis' time, by which all times of a lock are.
func ServerTime(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	now, err := rdb.Time(ctx).Result()
	return now, Backend(err)
}

// Backend marks an error as Redis': errors.Is finds lock.ErrBackend in it. The text stays as it is. Backend of nil is nil.
func Backend(err error) error {
	if err == nil {
		return nil
	}
	return &backendError{err}
}

type backendError struct{ err error }

func (e *backendError) Error() string   { return e.err.Error() }
func (e *backendError) Unwrap() []error { return []error{lock.ErrBackend, e.err} }

// Pattern is what an operator searches for: a part of a text, or a pattern of the whole text with *, ? or [a-z] as
// path.Match has it, except that a slash is a character like any other. The zero Pattern matches every text.
type Pattern struct{ part, pattern string }

// noSlash puts a character that no text has in the place of slashes, which path.Match takes for separators.
func noSlash(text string) string { return strings.ReplaceAll(text, "/", "\x00") }

// Compile reads a pattern. A text that is not a valid one matches as a part only.
func Compile(text string) Pattern { return Pattern{text, noSlash(text)} }

// Matches reports whether the text has the part in it, or fits the pattern.
func (p Pattern) Matches(text string) bool {
	if strings.Contains(text, p.part) {
		return true
	}
	fits, err := path.Match(p.pattern, noSlash(text))
	return fits && err == nil
}

// Describe returns rules as data, named as automutex.New names them.
func Describe(rules []automutex.Rule) []fleet.Rule {
	var file struct {
		Rules []fleet.Rule `json:"rules"`
	}
	text, err := json.Marshal(automutex.Config{Rules: rules})
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		panic(err) // both have the same form
	}
	return file.Rules
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

// FromFleet makes rules of what processes say they run: as much of them as keys and doctor need. What a function of the program
// decides is not known: a rule with a Key gives no lock.
func FromFleet(described []fleet.Rule) []automutex.Rule {
	rules := make([]automutex.Rule, len(described))
	for i, d := range described {
		rules[i] = automutex.Rule{Name: d.Name, Task: d.Task, Scope: d.Scope, On: d.On, OnHeaders: d.OnHeaders, Optional: d.Optional, Wait: time.Duration(d.Wait), Busy: automutex.Retry}
		if d.BusyShown() == automutex.Park.String() {
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

// TypedKey returns the Redis key of the lock that a person types: a whole key, or a scope and its parts, which are escaped here.
func TypedKey(prefix, text string) string {
	if stored, err := control.Stored(prefix, "", nil, text); err == nil && !strings.ContainsAny(text, "{}") {
		return prefix + ":{" + stored + "}"
	}
	return Key(prefix, text) // package lock says what is wrong with it
}

// IsScope reports whether a rule has a scope of that very name, which then is the target of an order although it has a |.
func IsScope(rules []fleet.Rule, text string) bool {
	scope := keys.Scope(text)
	return slices.ContainsFunc(rules, func(r fleet.Rule) bool { its, _ := r.ScopeText(); return its == scope })
}

// Unknown says why no task has the target that a text stands for, as far as rules tell, and what was probably meant;
// empty if a task may have it. hashed: the values of keys are hashed.
func Unknown(rules []fleet.Rule, hashed bool, prefix, text string) (why, meant string) {
	stored, err := control.Stored(prefix, "", func(text string) bool { return IsScope(rules, text) }, text)
	if err != nil || len(rules) == 0 {
		return "", "" // package lock says what is wrong with it
	}
	return unknown(rules, hashed, stored)
}

// Target returns the whole key of the target that an operator has typed for an order; empty if it is none, which package lock then
// refuses. A target that no rule and no live lock has is an error, unless force is true. To see that may take a walk of all locks.
func Target(ctx context.Context, e *engine.Engine, rdb redis.UniversalClient, rules []fleet.Rule, hashed bool, prefix, text string, force bool) (string, error) {
	stored, err := control.Stored(prefix, "", func(text string) bool { return IsScope(rules, text) }, text)
	if err != nil {
		return "", nil
	}
	if why, meant := Unknown(rules, hashed, prefix, text); why != "" && !force {
		is := func(l Lock) bool { return control.Bare(l.Key) == stored || ScopeOf(l.Key) == stored }
		used := false
		for some, err := range Walk(ctx, e, rdb) {
			if err != nil {
				return "", err
			}
			if used = slices.ContainsFunc(some, is); used {
				break
			}
		}
		if meant != "" {
			meant = "did you mean " + meant + "? "
		}
		if !used {
			return "", errors.New(strings.TrimSuffix(why, ".") + "; nor is there such a lock now; " + meant + "--force does it all the same")
		}
	}
	return prefix + ":{" + stored + "}", nil
}

// unknown says why no task has a target, as far as rules tell; empty if a task may have it.
func unknown(rules []fleet.Rule, hashed bool, target string) (why, meant string) {
	scope, values, valued := strings.Cut(target, "|")
	var its []fleet.Rule
	for _, r := range rules {
		if r.Has(scope) || !valued && r.IsFor(scope) {
			its = append(its, r)
		}
	}
	if len(its) == 0 {
		return fmt.Sprintf("No rule has the scope of %s.", printable.Short(target)), meantBy(rules, scope, values)
	}
	beginning := func(r fleet.Rule) bool {
		its, byType := r.ScopeText()
		return byType && its == scope && strings.HasSuffix(scope, ":")
	}
	parts := strings.Split(values, "|")
	isHash := len(parts) == 1 && strings.HasPrefix(values, "~")
	fits := func(r fleet.Rule) bool { return r.Computed || len(r.On)+len(r.OnHeaders) == len(parts) }
	switch {
	case !valued:
	case slices.ContainsFunc(its, beginning):
		return fmt.Sprintf("The rule for %s has no scope, so each task type has one of its own: %[1]s alone is none of them. Name a whole type in the key.", printable.Short(scope)), ""
	case isHash:
	case hashed:
		return fmt.Sprintf("The keys of these rules are hashed, so no task has the key %s. Take the key that automutex key prints.", printable.Short(target)), ""
	case !slices.ContainsFunc(its, fits):
		return fmt.Sprintf("No task has the key %s: it has %s, and the keys of rule %s have %d.",
			printable.Short(target), printable.Count(len(parts), "value"), printable.Short(its[0].Name), len(its[0].On)+len(its[0].OnHeaders)), ""
	}
	return "", ""
}

// meantBy finds the target that a scope was probably meant to be: that of a rule with such a scope, task or name.
func meantBy(rules []fleet.Rule, scope, values string) string {
	scopes := map[string]string{} // what may have been typed to the scope
	var names []string
	for _, r := range rules {
		its, byType := r.ScopeText()
		if byType && strings.HasSuffix(its, ":") && values != "" {
			continue // the beginning of scopes, and no key has it
		}
		for _, name := range []string{its, r.Name, r.Task, r.Task[strings.LastIndexByte(r.Task, ':')+1:]} {
			if _, known := scopes[name]; !known && name != "" {
				scopes[name], names = its, append(names, name)
			}
		}
	}
	name, ok := nearest.Name(scope, names)
	switch {
	case !ok:
		return ""
	case values != "":
		return scopes[name] + "|" + values
	}
	return scopes[name]
}
