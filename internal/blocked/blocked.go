// Package blocked looks at tasks in asynq: it wakes those that are parked, finds the ordered keys whose next task does
// not run, and skips such a task for operators.
package blocked

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// Key is automutex.Blocked. Its JSON is what the command prints with --json.
type Key struct {
	Key    string    `json:"key"`
	Task   string    `json:"task"`
	Since  time.Time `json:"since"`
	Why    string    `json:"why"`
	Behind int       `json:"behind"`
}

// Heads returns the heads that may block their keys; asynq knows. They come in the order of First. It walks all keys
// with SCAN.
func Heads(ctx context.Context, e *engine.Engine) (heads []engine.Head, err error) {
	for info, err := range e.List(ctx) {
		if err != nil {
			return nil, err
		}
		if info.Head.MayBlock() {
			heads = append(heads, info.Head)
		}
	}
	slices.SortFunc(heads, First)
	return heads, nil
}

// First orders heads: those that are held, those that have failed, then the others; of each those that came first.
func First(a, b engine.Head) int {
	rank := func(h engine.Head) int {
		switch {
		case h.Held():
			return 0
		case h.Blocks():
			return 1
		}
		return 2
	}
	return cmp.Or(rank(a)-rank(b), a.Since.Compare(b.Since), strings.Compare(a.Key, b.Key))
}

// List returns the keys of Heads that are blocked, as asynq says of the task of each. With a nil inspector it does not
// ask.
func List(ctx context.Context, e *engine.Engine, inspector *asynq.Inspector) (found []Key, err error) {
	heads, err := Heads(ctx, e)
	for i, why := range Whys(inspector, heads) {
		if head := heads[i]; why != "" {
			found = append(found, Key{Key: head.Key, Task: head.Note, Since: head.Since, Why: why, Behind: head.Queued - 1})
		}
	}
	return found, err
}

// Whys is Why of each head. It asks asynq for the task of each, and for a queue once. With a nil inspector it asks
// nobody.
func Whys(inspector *asynq.Inspector, heads []engine.Head) []string {
	whys, queues := make([]string, len(heads)), map[string]string{}
	for i, head := range heads {
		whys[i] = Why(look(inspector, head, queues))
	}
	return whys
}

// Seen is a head, and what asynq says of its task.
type Seen struct {
	Head engine.Head
	Info *asynq.TaskInfo // nil: it is gone, or nothing is known of it
	Gone bool            // asynq does not have the task, but may have another one with its ID

	// Queue is why asynq delivers no task of the task's queue, and what ends that. It is empty if asynq does, or if that
	// is not known, and for a task that does not wait for a worker.
	Queue string
}

// look asks asynq for the task of a head. queues has the answers of undelivered.
func look(inspector *asynq.Inspector, head engine.Head, queues map[string]string) Seen {
	s := Seen{Head: head}
	queue, id, ok := tasknote.Parse(head.Note)
	if !ok || inspector == nil {
		return s
	}
	s.Info, s.Gone, _ = Find(inspector, nil, queue, id) // an error: nothing is known
	switch {
	case s.Info == nil:
	case isOther(s.Info, head.Key, head.Note, head.Nonce):
		s.Gone = true
	case s.Info.State == asynq.TaskStatePending, isParked(s.Info, head.Key, head.Note):
		if _, known := queues[queue]; !known {
			queues[queue] = undelivered(inspector, queue)
		}
		s.Queue = queues[queue]
	}
	return s
}

func undelivered(inspector *asynq.Inspector, queue string) string {
	info, err := inspector.GetQueueInfo(queue)
	servers, unknown := inspector.Servers()
	switch {
	case err == nil && info.Paused:
		return "is paused; unpause it or skip the task"
	case unknown == nil && !serves(servers, queue):
		return "no server serves; start one or skip the task"
	}
	return ""
}

// Find asks the Inspector for a task. rdb is a client that may be on asynq's Redis; nil: none is known. gone reports
// whether asynq has no such task; then err says so, too.
//
// "Queue not found" is not "no such task". asynq's client lists a queue once in its life, so one that was deleted is
// not listed again. If rdb has the task, Find lists its queue, and asks again. If the Inspector still does not see the
// task, it looks at another database: gone is false. If rdb has no such task, it is gone if asynq works where the
// Inspector looks; without rdb, if no server serves it.
func Find(
	inspector *asynq.Inspector, rdb redis.UniversalClient, queue, id string,
) (info *asynq.TaskInfo, gone bool, err error) {
	for range 10 { // a task with that ID may come and go between two looks
		info, err = inspector.GetTaskInfo(queue, id)
		unlisted := errors.Is(err, asynq.ErrQueueNotFound)
		if !unlisted && !errors.Is(err, asynq.ErrTaskNotFound) {
			return info, false, err
		}
		kept, unknown := false, error(nil)
		if rdb != nil {
			kept, unknown = IsKept(rdb, queue, id)
		}
		switch {
		case unknown != nil: // rdb may be without the right to asynq's keys
			return nil, !unlisted, err
		case kept && unlisted:
			_ = rdb.SAdd(context.Background(), "asynq:queues", queue).Err() // without the right to, the next answer is the same
		case unlisted:
			servers, unknown := inspector.Servers()
			queues, _ := inspector.Queues() // an error: there is none to rely on
			works := unknown == nil && len(servers)+len(queues) > 0
			return nil, works && (rdb != nil || !serves(servers, queue)), err
		case !kept:
			return nil, true, err
		}
	}
	return nil, false, fmt.Errorf("%w: task %q of queue %q is in Redis: %w", ErrElsewhere, id, queue, err)
}

// ErrElsewhere says that the Inspector looks at another Redis, or another database, than asynq.
var ErrElsewhere = errors.New("the asynq.Inspector does not see asynq's tasks: give it the Redis and the database " +
	"of the asynq.Client")

// IsKept reports whether asynq keeps the task there.
func IsKept(rdb redis.UniversalClient, queue, id string) (bool, error) {
	kept, err := rdb.Exists(context.Background(), fmt.Sprintf("asynq:{%s}:t:%s", queue, id)).Result()
	return kept > 0, err
}

func serves(servers []*asynq.ServerInfo, queue string) bool {
	return slices.ContainsFunc(servers, func(s *asynq.ServerInfo) bool { return s.Queues[queue] > 0 })
}

// soon is how long a task may take to come without a word.
const soon = time.Minute

// Why says what keeps a head from running, and what ends that, as in "behind default/8a1c, which failed and is
// retried in 40s". It is empty if nothing is known to.
func Why(s Seen) string {
	held, lastErr := s.Head.Held(), ""
	if s.Info != nil && s.Info.LastErr != "" {
		lastErr = ": " + s.Info.LastErr
	}
	switch {
	case s.Head.State == "" || s.Head.Runs:
		return ""
	case held && s.Gone:
		return "is archived, and since then gone from asynq; skip it to go on"
	case held && s.Info != nil && s.Info.State != asynq.TaskStateArchived:
		return fmt.Sprintf("was archived, and is now %s", s.Info.State)
	case s.Gone && (s.Head.State != "i" || time.Since(s.Head.Since) > soon): // i: its producer may be about to enqueue it
		return "is gone from asynq; the next task goes on in a moment"
	case held, s.Info != nil && s.Info.State == asynq.TaskStateArchived:
		return "is archived; run it again or skip it to go on" + lastErr
	case s.Queue != "":
		return fmt.Sprintf("waits in queue %s, which %s", s.Info.Queue, s.Queue)
	case s.Info == nil && s.Head.Failed:
		return "failed; asynq does not say when it is retried"
	case s.Info == nil:
		return ""
	}
	in := max(0, time.Until(s.Info.NextProcessAt)).Round(time.Second)
	switch {
	case s.Info.State == asynq.TaskStateRetry && s.Head.Failed:
		return fmt.Sprintf("failed and is retried in %s%s", in, lastErr)
	case s.Info.State == asynq.TaskStateRetry && s.Head.State == "a":
		return fmt.Sprintf("has gone back without a run, and comes in %s%s", in, lastErr)
	case s.Info.State == asynq.TaskStateScheduled && in > soon:
		return fmt.Sprintf("is scheduled, and comes in %s", in)
	case s.Info.State == asynq.TaskStateActive && time.Since(s.Head.Since) > soon:
		// one that waits in its worker is seen every few seconds
		return "is active in asynq, and does not hold its key: asynq runs it again in a few minutes; skip it to go on sooner"
	}
	return ""
}

// isParked: one that is scheduled was parked when it was enqueued; one that is aggregating was run by hand, and nobody
// may look into its group.
func isParked(info *asynq.TaskInfo, key, note string) bool {
	if info.State == asynq.TaskStateScheduled {
		s, _ := stamp.Of(info.Headers, note)
		return s.Nonce == "" && s.Key == key
	}
	return (info.State == asynq.TaskStateRetry || info.State == asynq.TaskStateAggregating) &&
		strings.Contains(info.LastErr, ParkedOn(key))
}

// isOther reports whether asynq has another task with the ID of the one in order of key: of two stamps one is another
// task's, and a task that joined at its arrival had none for that key.
func isOther(info *asynq.TaskInfo, key, note, nonce string) bool {
	s, _ := stamp.Of(info.Headers, note)
	return s.Nonce != nonce && (!strings.HasPrefix(nonce, "~") || s.Nonce != "" && s.Key == key)
}

// ParkedOn is in the last error of a task that is parked on the key, and of no other: who wakes the task
// knows it by that. It ends in a comma, so that the text of one key is not part of that of a longer key.
func ParkedOn(key string) string { return "parked on " + key + "," }

// WakeNext has asynq run the head of key if that is parked: the workers that would wake it may have ended since, and an
// operator does not wait for its own return. Errors are ignored: it returns anyway.
func WakeNext(ctx context.Context, e *engine.Engine, inspector *asynq.Inspector, key string) {
	head, _ := e.Head(ctx, engine.Ref{Key: key})
	if s := look(inspector, head, map[string]string{}); s.Info != nil && !s.Gone && isParked(s.Info, key, head.Note) {
		_ = inspector.RunTask(s.Info.Queue, s.Info.ID)
	}
}

// Skip gives up the place of the head of key, and wakes the next one; see automutex.Guard.SkipHead. ticket
// is that of the head that the operator saw. 0: of the head now.
func Skip(ctx context.Context, e *engine.Engine, inspector *asynq.Inspector, key, task string, ticket int64) error {
	r, err := e.Ref(key)
	if err != nil {
		return err
	}
	head, err := e.Skip(ctx, r, task, ticket)
	switch {
	case errors.Is(err, engine.ErrHeadRuns):
		return fmt.Errorf("task %s of key %q runs now: wait until it has ended", task, key)
	case errors.Is(err, engine.ErrNotHead) && head == "":
		return fmt.Errorf("no task of key %q is in order", key)
	case errors.Is(err, engine.ErrNotHead) && head == task:
		return fmt.Errorf("the next task of key %q is another one with the ID of %s: look at it first", key, task)
	case errors.Is(err, engine.ErrNotHead):
		return fmt.Errorf("task %s is not the next one of key %q: that is %s", task, key, head)
	case err == nil:
		WakeNext(ctx, e, inspector, key)
	}
	return err
}
