package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain lets this test binary be a replica too.
func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestRun_killedLeaderIsReplaced(t *testing.T) {
	var out strings.Builder
	if err := run(&out, 2); err != nil {
		t.Error(err)
	}
	text := out.String()
	for _, want := range []string{"replica A enqueues", "replica B enqueues", "is killed", "result: ticks=4 twice=0"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}
