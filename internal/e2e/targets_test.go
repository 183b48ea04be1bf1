package e2e

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What becomes of a task whose key is not to be had, and of one that needs none.

// A task may stop an older one under Replace and then be ended by a later rule.
func TestNew_replaceBeforeSkip(t *testing.T) {
	t.Parallel()
	replace := automutex.Rule{Task: "work", Name: "doc", Scope: "doc", Busy: automutex.Replace}
	after := automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })
	for _, c := range []struct {
		busy  automutex.Policy
		first bool // the other rule is declared before
		warns bool
	}{{automutex.Skip, false, true}, {automutex.Archive, false, true}, {automutex.Fail, false, true}, {after, false, true}, {automutex.Skip, true, false}, {automutex.Retry, false, false}, {automutex.Park, false, false}} {
		rules := []automutex.Rule{replace, {Task: "work", Name: "all", Scope: "all", Busy: c.busy}}
		if c.first {
			slices.Reverse(rules)
		}
		log := &redistest.Log{}
		newGuard(t, redistest.Mini(t), log, &events{}, rules...)
		if text := log.Text(slog.LevelWarn); strings.Contains(text, "may stop the older one") != c.warns {
			t.Errorf("%s, declared first %t: logged %q", c.busy, c.first, text)
		}
	}
}

// A Redis client that was closed before the Guard.
func TestClose_clientBefore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, busy := range []automutex.Policy{automutex.Retry, automutex.Replace, automutex.Park} {
			locks := s.Client(t)
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: busy}}, locks: locks})
			held := r.enqueue("work", nil)
			run := r.stage.next(t)
			redistest.Must(t, locks.(interface{ Close() error }).Close())
			id := r.enqueue("work", nil)
			if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, "close the Guard first") {
				t.Errorf("%s: the last error is %q", busy, info.LastErr)
			}
			run.returns(nil)
			r.await(held, asynq.TaskStateCompleted)
			if event := r.awaitEvent(automutex.EventBackendError, held); !errors.Is(event.Err, redis.ErrClosed) || !strings.Contains(event.Err.Error(), "close the Guard first") {
				t.Errorf("%s: at the release: %v", busy, event.Err)
			}
			r.stop()
		}
	})
}
