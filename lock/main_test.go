package lock_test

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
	redistest.Main(m)
}
