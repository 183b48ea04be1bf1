package e2e

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Who sets IsFailure on what ServerConfig returned is warned when more tasks have gone back than there are workers.
func TestServer_withOtherFunctions(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*asynq.Config){
		"IsFailure":      func(c *asynq.Config) { c.IsFailure = func(error) bool { return true } },
		"RetryDelayFunc": func(c *asynq.Config) { c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 } },
		"none":           func(*asynq.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Mini(t)
			r := start(t, s, setup{workers: 1, rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}, after: set})
			lease := r.take("work")
			for range 3 {
				r.awaitEvent(automutex.EventRetried, r.enqueue("work", nil))
			}
			r.free(lease)
			warned := func() bool {
				return strings.Contains(r.log.Text(slog.LevelWarn), "IsFailure or RetryDelayFunc was set")
			}
			if name != "none" {
				redistest.Eventually(t, patience, warned, "a warning")
			} else if warned() {
				t.Errorf("the log says %q", r.log.Text(slog.LevelWarn))
			}
		})
	}
}

// A server without ServerConfig is warned of for RetryAfter of a task without a rule, too. A BaseContext that is set on what
// ServerConfig returned loses the Guard's mark: attempts are not spent then, and the warning does not say that they are. Where
// asynq counts the attempt, no EventRetried says the opposite, whether or not the handler ran.
func TestServer_withoutTheGuardsMark(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, configured := range []bool{false, true} {
			r := start(t, s, setup{unmarked: true, rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}, handler: func(context.Context, *asynq.Task) error {
				return automutex.RetryAfter(0, errUpstream)
			}})
			if configured {
				r.guard.ServerConfig(asynq.Config{Logger: redistest.Silent{}})
			}
			r.await(r.enqueue("free", nil), asynq.TaskStateRetry)
			lease := r.take("work")
			r.awaitRetried(r.enqueue("work", nil), 1)
			r.free(lease)
			retried := 0
			for _, e := range r.seen.list() {
				if e.Kind == automutex.EventRetried {
					retried++
				}
			}
			if want := map[bool]int{false: 0, true: 2}[configured]; retried != want {
				t.Errorf("ServerConfig was called: %t; %d EventRetried, want %d", configured, retried, want)
			}
			text := r.log.Text(slog.LevelWarn)
			if spends := strings.Contains(text, "spends an attempt"); spends == configured || configured != strings.Contains(text, "BaseContext was set") {
				t.Errorf("ServerConfig was called: %t; the log says %q", configured, text)
			}
		}
	})
}
