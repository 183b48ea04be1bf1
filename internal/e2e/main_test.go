package e2e

import (
	"os"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		runMain()
		return
	}
	redistest.Main(m)
}
