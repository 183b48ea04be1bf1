// Package inspect reads locks as operators see them, and says what rules make of them. The command and the page
// share it.
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"path"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// inner has the calls of package lock that only the packages of this module make.
var inner = lock.Inside(inside.Pass{})

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
	head    inside.Head
}

// Head is what package blocked says more of.
func (n Next) Head() inside.Head { return n.head }

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

// FromControls makes Controls of what package lock reads: one for the pause and one for the limit of a target, which
// may be of different people, times and reasons.
func FromControls(list []lock.Control) (all []Control) {
	for _, c := range inner.Orders(list) {
		made := Control{Target: c.Target, Paused: c.Paused, Limit: c.Limit, Why: c.Why, By: c.By, Since: c.Since.UTC()}
		if until := c.PausedUntil.UTC(); !until.IsZero() {
			made.PausedUntil = &until
		}
		all = append(all, made)
	}
	return all
}

// OrderText says what an order is, who gave it, when and why. c is a pause or a limit. Times are UTC, with the day if it
// is not that of now.
func OrderText(c lock.Control, now time.Time) string {
	clock := func(t time.Time) string {
		return strings.TrimPrefix(t.UTC().Format("2006-01-02 15:04"), now.UTC().Format(time.DateOnly+" "))
	}
	text := fmt.Sprintf("limited to %d", c.Limit)
	switch {
	case c.Paused && c.PausedUntil.IsZero():
		text = "paused until somebody resumes it"
	case c.Paused:
		text = "paused until " + clock(c.PausedUntil)
	}
	text += fmt.Sprintf("; ordered by %s at %s", c.By, clock(c.Since))
	if c.Why != "" {
		text += ": " + c.Why
	}
	return text
}

// lockOf makes a Lock of what package lock reads. now is Redis' time.
func lockOf(info inside.Info, orders []lock.Control, now time.Time) Lock {
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
	its, limit, pause := inner.ControlsFor(orders, l.Key)
	l.Controls, l.Limit, l.Paused = FromControls(its), limit, pause != nil
	return l
}

// ordersOf lists the controls of a locker. A user without the right to read them has none: that is for doctor to say.
func ordersOf(ctx context.Context, locker *lock.Locker) []lock.Control {
	list, err := locker.Controls().List(ctx)
	if err != nil {
		return nil
	}
	return list
}

// batchSize is how many locks Walk reads before it hands any of them on: as many as one SCAN brings.
const batchSize = 1000

// Walk reads all locks under the locker's prefix, some at a time, so that neither Redis nor the caller ever has all of
// them at hand. An error ends it.
func Walk(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient) iter.Seq2[[]Lock, error] {
	return func(yield func([]Lock, error) bool) {
		now, err := ServerTime(ctx, rdb)
		if err != nil {
			yield(nil, err)
			return
		}
		start, orders := time.Now(), ordersOf(ctx, locker)
		var batch []Lock
		for info, err := range inner.List(ctx, locker) {
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
func One(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient, key string) (l Lock, now time.Time, err error) {
	m := inner.ByKey(locker, key)
	if now, err = ServerTime(ctx, rdb); err != nil {
		return l, now, err
	}
	info, err := inner.Inspect(ctx, m)
	if err != nil {
		return l, now, err
	}
	line, err := inner.Line(ctx, m, info, lineShown)
	if err != nil {
		return l, now, err
	}
	l = lockOf(info, ordersOf(ctx, locker), now)
	for _, w := range line {
		l.Waiters = append(l.Waiters, Waiter{Owner: w.Owner, Work: workOf(w.Note), Since: w.Since.UTC(), State: WaiterState(w)})
	}
	return l, now, nil
}

// WaiterState is what a place in line is: waiting, parked or called. A task of an ordered key may also be archived, and
// hold its key, or be in order alone: asynq has it pending or retries it later.
func WaiterState(w inside.Waiter) string {
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
	target, _ := control.InBraces(key)
	scope, _, _ := strings.Cut(target, "|")
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
