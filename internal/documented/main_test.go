package documented

import (
	"fmt"
	"os"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// The tests of this package hold the repository's documents against its code, so they run at its top.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	redistest.Main(m)
}
