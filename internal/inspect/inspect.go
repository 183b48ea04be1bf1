// Package inspect reads locks as operators see them. The command line and the web page
// share it.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	orders "github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasknote"
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

	head inside.Head
}

// Head is what package blocked says more of.
func (n Next) Head() inside.Head { return n.head }

// Holder is one holder of a lock. Note is set where the holder is no task.
type Holder struct {
	Token string    `json:"token"`
	Owner string    `json:"owner"`
	Queue string    `json:"queue,omitempty"`
	Task  string    `json:"task,omitempty"`
	Note  string    `json:"note,omitempty"`
	Until time.Time `json:"until"`
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

// Noun names what a break of all ends.
func (g Gate) Noun() string {
	if g.Closed == lock.ReasonClosed {
		return "closed gate"
	}
	return g.Closed
}

// Breakable reports whether a break of all opens a gate that was closed for that reason: a
// hold or a cooldown has closed it, and not a rate. Empty means that the gate is open.
func Breakable(closed string) bool {
	return closed == lock.ReasonClosed || closed == lock.ReasonCooldown
}

// Waiter is one place in the line of a lock. Note is set where the waiter is no task.
type Waiter struct {
	Owner string    `json:"owner"`
	Queue string    `json:"queue,omitempty"`
	Task  string    `json:"task,omitempty"`
	Note  string    `json:"note,omitempty"`
	Since time.Time `json:"since"`
	State string    `json:"state"` // waiting, parked or called; of an ordered key also in order or archived
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

// taskOf reads a note: a task, or another text.
func taskOf(note string) (queue, id, other string) {
	if queue, id, ok := tasknote.Parse(note); ok {
		return queue, id, ""
	}
	return "", "", note
}

// fromInfo makes a Lock of what package lock reads. now is Redis' time.
func fromInfo(info inside.Info, now time.Time) Lock {
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
		l.Gate = &Gate{info.Gate.Reason, now.Add(info.Gate.OpensIn).Truncate(time.Millisecond).UTC()}
	}
	for _, h := range info.Holders {
		queue, id, other := taskOf(h.Note)
		l.Holders = append(l.Holders, Holder{
			Token: h.Token, Owner: h.Owner, Queue: queue, Task: id, Note: other,
			Until: now.Add(h.ExpiresIn).Truncate(time.Millisecond).UTC(),
		})
	}
	return l
}

// batchSize is how many locks Walk reads before it hands any of them on: as many as one
// SCAN brings.
const batchSize = 1000

// Walk reads all locks under the locker's prefix, some at a time, so that neither Redis
// nor the caller ever has all of them at hand. An error ends it.
func Walk(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient) iter.Seq2[[]Lock, error] {
	return func(yield func([]Lock, error) bool) {
		now, err := ServerTime(ctx, rdb)
		if err != nil {
			yield(nil, err)
			return
		}
		start, orders := time.Now(), controls(ctx, locker)
		var batch []Lock
		flush := func() bool {
			full := batch
			batch = nil
			return yield(full, nil)
		}
		for info, err := range inner.List(ctx, locker) {
			if err != nil {
				yield(nil, err)
				return
			}
			batch = append(batch, fromInfo(info, now.Add(time.Since(start))))
			batch[len(batch)-1].control(orders)
			if len(batch) == batchSize && !flush() {
				return
			}
		}
		if len(batch) > 0 {
			flush()
		}
	}
}

// lineShown is how many places of a line One reads.
const lineShown = 100

// One reads one lock and the beginning of its line. now is Redis' time.
func One(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient, key string) (l Lock, now time.Time, err error) {
	m := inner.ByKey(locker, key)
	if now, err = ServerTime(ctx, rdb); err != nil {
		return Lock{}, now, err
	}
	info, err := inner.Inspect(ctx, m)
	if err != nil {
		return Lock{}, now, err
	}
	l = fromInfo(info, now)
	l.control(controls(ctx, locker))
	line, err := inner.Line(ctx, m, info, lineShown)
	if err != nil {
		return Lock{}, now, err
	}
	for _, w := range line {
		queue, id, other := taskOf(w.Note)
		l.Waiters = append(l.Waiters, Waiter{Owner: w.Owner, Queue: queue, Task: id, Note: other, Since: w.Since.UTC(), State: WaiterState(w)})
	}
	return l, now, nil
}

// WaiterState is what a place in line is: waiting, parked or called. A task of an ordered key may also be
// archived, and hold its key, or be in order alone: asynq has it pending or retries it later.
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

// Key returns the Redis key that an operator means: a whole key, or what stands between
// its braces.
func Key(prefix, text string) string {
	if strings.ContainsAny(text, "{}") {
		return text
	}
	return prefix + ":{" + text + "}"
}

// InBraces returns what stands between the braces of a lock's key.
func InBraces(key string) string {
	return strings.TrimSuffix(key[strings.IndexByte(key, '{')+1:], "}")
}

// ScopeOf returns the scope in a lock's key, as the key has it. fleet.Rule.Has says whether a rule has it.
func ScopeOf(key string) string {
	_, scope, _ := orders.TargetsOf(key[strings.IndexByte(key, '{')+1:])
	return scope
}

// ServerTime returns Redis' time, by which all times of a lock are.
func ServerTime(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	now, err := rdb.Time(ctx).Result()
	return now, Backend(err)
}

// TaskState says what asynq knows of a task: its type and state. A task that asynq does
// not know any more matters to an operator: its lease ends at the deadline.
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

// Backend marks an error as Redis': errors.Is finds lock.ErrBackend in it. The text
// stays as it is. Backend of nil is nil.
func Backend(err error) error {
	if err == nil {
		return nil
	}
	return &backendError{err}
}

type backendError struct{ err error }

func (e *backendError) Error() string   { return e.err.Error() }
func (e *backendError) Unwrap() []error { return []error{lock.ErrBackend, e.err} }
