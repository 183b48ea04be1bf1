package unique

import (
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// Producers work as a user who may do what docs/redis.md says, and nothing else.
func TestRights(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.AsUser(t, redistest.AllRights(t, "../docs/redis.md"), []string{
		"UntilStart_oneRunsOneWaits", "For_window", "Worker_dropsTheClaim", "Postpone", "Replace_scheduled", "EnqueueAll",
		"States",
	})
}
