package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// taskRemovals is a redis.Hook that sees the scripts with which asynq's Inspector
// archives and deletes a task. The first deletion is answered with "it is active"
// and not sent: by the next look the task is as it was. meddle is called before and
// after each script that follows, with its number from one.
type taskRemovals struct {
	redistest.FailHook
	meddle func(n int, sent bool, send func() error) error

	mu  sync.Mutex // guards what follows
	old bool       // the first deletion has been answered
	n   int
}

func (h *taskRemovals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		kind := removalOf(cmd)
		if kind == "" {
			return next(ctx, cmd)
		}
		h.mu.Lock()
		first := kind == "delete" && !h.old
		h.old = h.old || first
		if !first && h.old {
			h.n++
		}
		n := h.n
		h.mu.Unlock()
		if first {
			cmd.(*redis.Cmd).SetVal(int64(-1))
			return nil
		}
		send := func() error { return next(ctx, cmd) }
		if err := h.meddle(n, false, send); err != nil {
			return err
		}
		if err := send(); err != nil {
			h.mu.Lock()
			h.n-- // NOSCRIPT: it is sent again, as a whole
			h.mu.Unlock()
			return err
		}
		return h.meddle(n, true, send)
	}
}

// removalOf tells which of the two scripts a command is; empty: neither.
func removalOf(cmd redis.Cmder) string {
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") || len(args) < 6 {
		return ""
	}
	key, _ := args[3].(string)
	second, _ := args[4].(string)
	switch {
	case !strings.Contains(key, ":t:"):
		return ""
	case fmt.Sprint(args[2]) == "2" && strings.HasSuffix(second, ":groups"):
		return "delete"
	case fmt.Sprint(args[2]) == "3" && strings.HasSuffix(second, ":archived"):
		return "archive"
	}
	return ""
}

// go-redis sends a command again when its reply is lost. Whichever command of taking the
// new task back that hits: a task that was accepted is there.
func TestReplace_takesTheNewTaskBackAlsoWhenTheReplyIsLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			for _, keep := range []bool{false, true} {
				unsettled := 0
				for lost := 1; lost <= 3; lost++ {
					rule := Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: Replace, KeepArchived: keep}
					r := start(t, s, rule)
					r.must(r.Enqueue(task("draft", "1", "old")))
					rdb := s.Client(t)
					rdb.AddHook(&taskRemovals{meddle: func(n int, sent bool, send func() error) error {
						if n == lost && sent {
							return send() // again, and this is the reply
						}
						return nil
					}})
					_, err := r.producer(rdb, rule).Enqueue(task("draft", "1", "new"))
					left := texts(r.tasks(r.queue, "draft", live...))
					where := fmt.Sprintf("%s, keep archived %v, reply %d lost", until, keep, lost)
					switch {
					case errors.Is(err, errUnsettled):
						unsettled++
						if !slices.Equal(left, []string{"old"}) {
							t.Errorf("%s: %v, and there are %q", where, err, left)
						}
					case err != nil || !slices.Equal(left, []string{"new"}):
						t.Errorf("%s: answered %v, and there are %q", where, err, left)
					}
				}
				if unsettled != 1 {
					t.Errorf("%s, keep archived %v: %d replies leave open what happened, want that of the deletion alone", until, keep, unsettled)
				}
			}
		}
	})
}

// An operator who runs the new task before it is taken back makes it an accepted one: it
// is not enqueued a second time.
func TestReplace_keepsTheNewTaskThatAnOperatorRan(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			rule := Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: Replace}
			r := start(t, s, rule)
			r.must(r.Enqueue(task("draft", "1", "old"), asynq.ProcessIn(time.Hour)))
			var mu sync.Mutex
			var ran []string
			rdb := s.Client(t)
			rdb.AddHook(&taskRemovals{meddle: func(n int, sent bool, _ func() error) error {
				if n != 1 || sent {
					return nil
				}
				for _, info := range r.tasks(r.queue, "other", asynq.TaskStateScheduled) {
					if err := r.inspector.RunTask(r.queue, info.ID); err != nil {
						return err
					}
				}
				r.serve(func(_ context.Context, task *asynq.Task) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, string(task.Payload()))
					return nil
				}, nil)
				redistest.Eventually(t, longest, func() bool {
					return len(r.tasks(r.queue, "other", live...)) == 0
				}, "the new task having run")
				return nil
			}})
			// Of another type, so that the old one's payload is not just changed.
			rules := []Rule{rule, rule}
			rules[0].Scope, rules[1].Scope, rules[1].Task = "draft", "draft", "other"
			info, err := r.producer(rdb, rules...).Enqueue(task("other", "1", "new"))
			if err != nil {
				t.Errorf("%s: %v, %v", until, info, err)
			}
			mu.Lock()
			if len(ran) != 1 || !strings.Contains(ran[0], "new") {
				t.Errorf("%s: %q ran", until, ran)
			}
			mu.Unlock()
			if left := texts(r.tasks(r.queue, "other", live...)); len(left) > 0 {
				t.Errorf("%s: there are %q", until, left)
			}
		}
	})
}
