package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What is busy because of a cooldown says so, and for how long.
func TestPark_lastErrorTellsOfACooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1})
		m := r.others.Mutex("work", lock.Parts("1"))
		held, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		redistest.Must(t, held.Cooldown(t.Context(), time.Hour))
		_, err = m.TryLock(t.Context())
		if err == nil || !strings.Contains(err.Error(), ": cooling down for ") || strings.Contains(err.Error(), "renewed") {
			t.Errorf("TryLock during a cooldown: %v", err)
		}
		id := r.enqueue("work", one)
		info := r.awaitParked(id)
		if !strings.Contains(info.LastErr, "place 1 in line: cooling down for ") || strings.Contains(info.LastErr, "renewed") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if info.State != asynq.TaskStateRetry {
			t.Errorf("the task is %s", info.State)
		}
	})
}
