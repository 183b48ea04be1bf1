// Package blocked finds the ordered keys whose next task does not run, and skips such a task. The Guard and the
// command do so for operators.
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

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// inner has the calls of package lock that only the packages of this module make.
var inner = lock.Inside(inside.Pass{})

// Key is automutex.Blocked.
type Key struct {
	Key    string
	Task   string
	Since  time.Time
	Why    string
	Behind int
}

// Heads returns the heads that may block their keys; asynq knows. They come in the order of First: those that are held first, then those
// that are blocked for longest. It walks all keys with SCAN.
func Heads(ctx context.Context, l *lock.Locker) ([]inside.Head, error) {
	var heads []inside.Head
	for info, err := range inner.List(ctx, l) {
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

// First orders heads: those that are held, then those that are blocked for longest.
func First(a, b inside.Head) int {
	rank := map[bool]int{true: 0, false: 1}
	return cmp.Or(rank[a.Held()]-rank[b.Held()], a.Since.Compare(b.Since), strings.Compare(a.Key, b.Key))
}

// List returns the blocked keys under the Locker's prefix, in the order of First. It asks asynq for the first task of
// each. With a nil inspector it does not.
func List(ctx context.Context, l *lock.Locker, inspector *asynq.Inspector) ([]Key, error) {
	heads, err := Heads(ctx, l)
	if err != nil {
		return nil, err
	}
	var found []Key
	for _, head := range heads {
		if why := Why(Look(inspector, head)); why != "" {
			found = append(found, Key{Key: head.Key, Task: head.Note, Since: head.Since, Why: why, Behind: head.Queued - 1})
		}
	}
	return found, nil
}

// Seen is a head, and what asynq says of its task.
type Seen struct {
	Head inside.Head
	Info *asynq.TaskInfo
	Err  error
}

// Look asks asynq for the task of a head. With a nil inspector nothing is known of it.
func Look(inspector *asynq.Inspector, head inside.Head) Seen {
	s := Seen{Head: head, Err: errors.New("there is no Inspector")}
	if queue, id, ok := tasknote.Parse(head.Note); ok && inspector != nil {
		s.Info, s.Err = inspector.GetTaskInfo(queue, id)
	}
	return s
}

// Why says what keeps a head from running, and what ends that, as in "behind default/8a1c, which failed and is
// retried in 40s". It is empty if nothing is known to.
func Why(s Seen) string {
	gone := errors.Is(s.Err, asynq.ErrTaskNotFound) || errors.Is(s.Err, asynq.ErrQueueNotFound) || s.Err == nil && isOther(s.Info, s.Head)
	held := s.Head.Held()
	switch {
	case s.Head.State == "" || s.Head.Runs:
		return ""
	case held && gone:
		return "is archived, and since then gone from asynq; skip it to go on"
	case held && s.Err == nil && s.Info.State != asynq.TaskStateArchived:
		return fmt.Sprintf("was archived, and is now %s", s.Info.State)
	case held && s.Err == nil:
		return withLastErr("is archived; run it again or skip it to go on", s.Info.LastErr)
	case held:
		return "is archived; run it again or skip it to go on"
	case gone:
		return "is gone from asynq; the next task goes on in a moment"
	case s.Err != nil || s.Info.State != asynq.TaskStateRetry || s.Head.State != "a":
		return ""
	}
	in := max(0, time.Until(s.Info.NextProcessAt)).Round(time.Second)
	return withLastErr(fmt.Sprintf("failed and is retried in %s", in), s.Info.LastErr)
}

// isOther reports whether asynq has another task with the head's ID.
func isOther(info *asynq.TaskInfo, head inside.Head) bool {
	s, _ := stamp.Of(info.Headers, head.Note)
	return s.Nonce != head.Nonce && !strings.HasPrefix(head.Nonce, "~")
}

func withLastErr(why, lastErr string) string {
	if lastErr == "" {
		return why
	}
	return why + ": " + lastErr
}

// ParkedOn is in the last error of a task that is parked on the key, and of no other: who wakes the task
// knows it by that. It ends in a comma, so that the text of one key is not part of that of a longer key.
func ParkedOn(key string) string { return "parked on " + key + "," }

// WakeNext has asynq run the head of key if that is parked. The workers that would wake the head may have ended since
// it parked; an operator does not wait for the head's own return. Errors are ignored, since the head returns anyway.
func WakeNext(ctx context.Context, l *lock.Locker, inspector *asynq.Inspector, key string) {
	head, err := inner.Head(ctx, inner.ByOrder(l, key))
	if err != nil || head.State != "p" && head.State != "c" {
		return
	}
	if s := Look(inspector, head); s.Err == nil && s.Info.State == asynq.TaskStateRetry && !isOther(s.Info, head) && strings.Contains(s.Info.LastErr, ParkedOn(key)) {
		_ = inspector.RunTask(s.Info.Queue, s.Info.ID)
	}
}

// Skip gives up the place of the head of key, and wakes the next one; see automutex.Guard.SkipHead. ticket
// is that of the head that the operator saw. 0: of the head now.
func Skip(ctx context.Context, l *lock.Locker, inspector *asynq.Inspector, key, task string, ticket int64) error {
	head, err := inner.SkipHead(ctx, inner.ByOrder(l, key), task, ticket)
	switch {
	case inner.IsHeadRunning(err):
		return fmt.Errorf("task %s of key %q runs now: wait until it has ended", task, key)
	case inner.IsNotHead(err) && head == "":
		return fmt.Errorf("no task of key %q is in order", key)
	case inner.IsNotHead(err) && head == task:
		return fmt.Errorf("the next task of key %q is another one with the ID of %s: look at it first", key, task)
	case inner.IsNotHead(err):
		return fmt.Errorf("task %s is not the next one of key %q: that is %s", task, key, head)
	case err == nil:
		WakeNext(ctx, l, inspector, key)
	}
	return err
}
