package e2e

import (
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// Server, guard and inspector work as a user who may do what docs/redis.md says,
// and nothing else.
func TestRights(t *testing.T) {
	t.Parallel()
	redistest.AsUser(t, redistest.AllRights(t, "../../docs/redis.md"), []string{
		"Middleware_mux", "Middleware_limit", "Middleware_keyError", "Policy_retry", "Policy_archive",
		"Attempt_maxRetryZero", "Attempt_sameTask", "Park_explainsItself", "Park_yieldsTheLastWorker", "Park_concurrencyOne", "Park_wakeAtFront",
		"Replace_holderReturnsAnError", "Replace_waiting", "Lifetime_waitInOrder", "Shutdown_waiters",
		"InOrder_throughFailures", "InOrder_holdKey", "InOrder_full", "InOrder_operators", "InOrder_isSeen", "InOrder_redelivery", "Reserved_lastAttemptParks",
	})
}
