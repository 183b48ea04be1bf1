package lock

import (
	"os"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

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
