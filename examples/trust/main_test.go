package trust

import (
	"flag"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

var (
	long     = flag.Bool("long", false, "the long forms")
	seedFlag = flag.Uint64("seed", 0, "what decides about everything at random; 0 for one that is printed")
)

func TestMain(m *testing.M) {
	logging.Disable() // what go-redis has to say, its callers are told too
	redistest.Main(m)
}

func size[T any](short, longer T) T {
	if *long {
		return longer
	}
	return short
}

// seed gives what a test's dice are made of, and has it printed if the test fails.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", s)
		}
	})
	return s
}
