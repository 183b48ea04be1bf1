package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// TestMain lets this test binary be a replica too.
func TestMain(m *testing.M) {
	if addr := os.Getenv(replicaEnv); addr != "" {
		os.Exit(replica(context.Background(), addr))
	}
	os.Exit(m.Run())
}

func TestRun_killedLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-before", "2", "-after", "2"}, &out, &errs); code != 0 {
		t.Errorf("it ends with %d: %s", code, errs.String())
	}
	text := out.String()
	for _, want := range []string{"replica A enqueues", "replica B enqueues", "is killed", "result: ticks=4 twice=0 gap="} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-before", "0"}, {"-after", "-1"}, {"more"}, {"-nosuch"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%q ends with %d and says %q", args, code, errs.String())
		}
	}
}
