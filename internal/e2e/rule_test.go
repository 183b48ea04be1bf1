package e2e

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A Wait beyond the Timeout that a task came with is told of when it waits, once for each rule.
func TestRule_waitIsLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Wait: 20 * time.Second, Busy: automutex.Retry}, {Task: "waits less", Wait: 8 * time.Second, Busy: automutex.Retry}}})
		for _, scope := range []string{"work", "waits less"} {
			held := r.take(scope)
			for n := range 2 {
				r.enqueue(scope, nil, asynq.Timeout(10*time.Second))
				r.awaitLine(n+1, scope)
			}
			r.free(held)
		}
		r.stop()
		if text := r.log.Text(slog.LevelWarn); strings.Count(text, "Wait is longer") != 1 || !strings.Contains(text, "rule=work ") {
			t.Errorf("logged: %q", text)
		}
	})
}
