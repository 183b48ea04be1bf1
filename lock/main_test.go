package lock

import (
	"os"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// A test named TestRuleNN_... holds rule NN of docs/architecture.md, which has the whole text:
//
//	01  at most N live holders
//	02  only the holder's token renews or releases
//	03  an ask is idempotent for its token
//	04  ask-and-join is one script; release-and-grant is one script
//	05  one grant message for each freed slot
//	06  a grant is short
//	07  messages are hints
//	08  one renewal loop per process, in pipelines
//	09  a renewal is retried until the lease's own end
//	10  the release runs by a plain defer
//	11  the fence is max(server time, last fence + 1)
//	12  every key of a lock has a TTL
//	13  all keys are declared, and what users write is only data

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	if os.Getenv(stressEnv) != "" {
		stressMain()
		return
	}
	redistest.Main(m)
}
