package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	redistest.Main(m)
}

// outcome is what a run told.
type outcome struct {
	exit           int
	stdout, stderr string
	// What the last line counts.
	tasks, done, skipped, replaced, archived, lost, overlaps int
}

// try runs the program with words of flags; the last line of its output must be the result.
func try(t *testing.T, ctx context.Context, flags string) (o outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o.exit = run(ctx, strings.Fields(flags), &stdout, &stderr)
	o.stdout, o.stderr = stdout.String(), stderr.String()
	_, result, _ := strings.Cut(o.stdout, "\nresult: ")
	if !strings.Contains(result, "replaced=") {
		result = strings.Replace(result, " archived", " replaced=0 archived", 1)
	}
	if _, err := fmt.Sscanf(result, "tasks=%d done=%d skipped=%d replaced=%d archived=%d lost=%d overlaps=%d\n",
		&o.tasks, &o.done, &o.skipped, &o.replaced, &o.archived, &o.lost, &o.overlaps); err != nil {
		t.Fatalf("%q: %v in the last line of\n%s\nstderr:\n%s", flags, err, o.stdout, o.stderr)
	}
	return o
}

// expect checks the exit status and how many tasks there were, done, or ended by the policy. Redis may be late.
func (o outcome) expect(t *testing.T, exit, tasks int) {
	t.Helper()
	if o.exit != exit || o.tasks != tasks || o.done+o.skipped+o.replaced+o.archived != tasks || exit == 0 &&
		strings.Count(o.stderr, "\n") != strings.Count(o.stderr, "the controls can") {
		t.Errorf("exit %d, want %d with %d tasks, nothing lost or said\nstdout:\n%s\nstderr:\n%s", o.exit, exit, tasks,
			o.stdout, o.stderr)
	}
}

// With the guard nobody overlaps and nobody is lost, whatever the policy, on every kind of Redis.
func TestRun_guarded(t *testing.T) {
	t.Parallel()
	for flags, ends := range map[string]func(o outcome) bool{
		"": nil, "-limit 2": nil, "-busy park": nil, "-busy park -workers 1": nil, "-on sender.login -work 3ms": nil,
		"-in-order":              nil,
		"-busy skip -wait 0s":    func(o outcome) bool { return o.skipped > 0 },
		"-busy archive -wait 0s": func(o outcome) bool { return o.archived > 0 },
		"-busy replace":          func(o outcome) bool { return o.replaced > 0 },
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			o := try(t, t.Context(), "-tasks 60 "+flags)
			o.expect(t, 0, 60)
			if ends == nil && o.done != 60 || ends != nil && !ends(o) || o.overlaps > 0 {
				t.Errorf("%s", o.stdout)
			}
			if strings.Contains(flags, "order") && !strings.Contains(o.stdout, "in order: 0 tasks began after one") {
				t.Errorf("the report lacks the order:\n%s", o.stdout)
			}
		})
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		address := "redis://" + s.Addr()
		if s.Kind() == redistest.KindCluster {
			address = strings.Join(s.Addrs(), ",")
		}
		try(t, t.Context(), "-busy park -tasks 60 -work 3ms -redis "+address).expect(t, 0, 60)
	})
}

// The verdict comes from what the handlers did: without the guard tasks overlap, as in the first run of -noisy, and so
// they do under a policy that lets them.
func TestRun_overlaps(t *testing.T) { // by itself: beside others tasks may not overlap
	for flags, exit := range map[string]int{"-unguarded": 0, "-noisy -work 5ms": 0, "-busy allow -wait 0s": 1} {
		o := try(t, t.Context(), "-tasks 60 "+flags)
		o.expect(t, exit, 60)
		if o.overlaps == 0 || o.done != 60 || strings.Contains(o.stdout, "without the rule") == (flags[1] != 'n') {
			t.Errorf("%q: no overlaps:\n%s", flags, o.stdout)
		}
	}
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{
		"-workers 0", "-limit -1", "-busy never", "-on a..b", "-wait -1s", "-redis nonsense", "-redis redis://127.0.0.1:1",
		"-web 0.0.0.0:0", "-web x", "-in-order -unguarded", "-noisy -unguarded", "stray", "-nosuch",
	} {
		var stdout, stderr bytes.Buffer
		if exit := run(t.Context(), strings.Fields(flags), &stdout, &stderr); exit != 2 ||
			!strings.Contains(stderr.String(), "worker: ") {
			t.Errorf("%q: exit %d, stderr %q", flags, exit, stderr.String())
		}
	}
	var stderr bytes.Buffer
	if exit := run(t.Context(), []string{"-h"}, io.Discard, &stderr); exit != 0 ||
		!strings.Contains(stderr.String(), "-unguarded") {
		t.Errorf("exit %d, stderr %q", exit, stderr.String())
	}
}
