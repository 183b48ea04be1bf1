package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/examples/internal/demo"
	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // as in main
	redistest.Main(m)
}

const patience = redistest.Patience

func TestRun_guarded(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-tasks", "60")
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60})
	if !strings.Contains(o.stdout, busiest) {
		t.Errorf("no chart:\n%s", o.stdout)
	}
	if o.stderr != "" {
		t.Errorf("stderr of a run without trouble:\n%s", o.stderr)
	}
}

func TestRun_unguarded(t *testing.T) { // by itself: beside others tasks may not overlap
	o := try(t, t.Context(), "", "-tasks", "60", "-unguarded")
	if o.overlaps == 0 {
		t.Errorf("no overlaps without the guard:\n%s", o.stdout)
	}
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60, overlaps: o.overlaps})
}

func TestRun_limit(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-tasks", "60", "-limit", "2")
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60})
}

// A policy that lets tasks overlap is found out although there is a guard: the
// verdict comes from what the handlers did.
func TestRun_overlapsInSpiteOfGuard(t *testing.T) { // by itself: beside others tasks may not overlap
	o := try(t, t.Context(), "", "-tasks", "60", "-busy", "allow", "-wait", "0s")
	if o.overlaps == 0 {
		t.Errorf("no overlaps with -busy allow:\n%s", o.stdout)
	}
	o.expect(t, demo.ExitFindings, tally{tasks: 60, done: 60, overlaps: o.overlaps})
}

func TestRun_park(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-busy", "park", "-tasks", "120", "-work", "60ms")
	o.expect(t, demo.ExitOK, tally{tasks: 120, done: 120})
	if !strings.Contains(o.stdout, "limit 1, then park\n") {
		t.Errorf("the head line does not tell the policy:\n%s", o.stdout)
	}
	highest := 0
	for line := range strings.Lines(o.stdout) {
		if hill, ok := strings.CutPrefix(line, "  parked "); ok {
			highest += strings.Count(hill, "▇")
			if picture := strings.Fields(hill)[0]; strings.HasSuffix(picture, "▇") {
				t.Errorf("%q shows no task that came back", picture)
			}
		}
	}
	if highest == 0 {
		t.Errorf("the chart does not show what was parked:\n%s", o.stdout)
	}
	if o.stderr != "" {
		t.Errorf("stderr of a run without trouble:\n%s", o.stderr)
	}
}

// With one worker, with more than one turn at once, in a Cluster: nobody is
// lost, and nobody overlaps.
func TestRun_parkEverywhere(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		address := "redis://" + s.Addr()
		if s.Kind() == redistest.KindCluster {
			address = strings.Join(s.Addrs(), ",")
		}
		for _, args := range []string{"", "-workers 1", "-limit 2", "-workers 3 -on sender.login"} {
			all := append(strings.Fields(args), "-redis", address, "-busy", "park", "-tasks", "100", "-work", "3ms")
			o := try(t, t.Context(), "", all...)
			o.expect(t, demo.ExitOK, tally{tasks: 100, done: 100})
			if o.stderr != "" {
				t.Errorf("%q: stderr of a run without trouble:\n%s", all, o.stderr)
			}
		}
	})
}

func TestRun_parkInput(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-busy", "park", "-input", "testdata/events.jsonl", "-workers", "2")
	o.expect(t, demo.ExitOK, tally{tasks: 11, done: 9, archived: 2})
}

// What is parked when the program is stopped is still to be run.
func TestRun_parkInterrupted(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: mini.Addr()})
	defer inspector.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	parked := make(chan string, 1) // ends with the first answer
	go func() {
		parked <- demoQueue(t, inspector, func(q *asynq.QueueInfo) bool { return q.Retry >= 20 })
		cancel()
	}()
	o := try(t, ctx, "", "-redis", "redis://"+mini.Addr(), "-busy", "park", "-tasks", "200", "-work", "40ms", "-on", "")
	<-parked
	o.expect(t, demo.ExitOK, tally{tasks: o.tasks, done: o.done})
	if want := fmt.Sprintf("\nqueued=%d in asynq queue ", o.tasks-o.done); o.tasks-o.done < 20 || !strings.Contains(o.stdout, want) {
		t.Errorf("no line%s:\n%s", want, o.stdout)
	}
	if picture := strings.Fields(lineOf(t, o.stdout, "  parked"))[1]; !strings.HasSuffix(picture, "▇") {
		t.Errorf("%q does not show what is parked still", picture)
	}
}

func TestRun_skipAndArchive(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-tasks", "60", "-busy", "skip", "-wait", "0s")
	if o.skipped == 0 {
		t.Errorf("nothing skipped:\n%s", o.stdout)
	}
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60 - o.skipped, skipped: o.skipped})

	o = try(t, t.Context(), "", "-tasks", "60", "-busy", "archive", "-wait", "0s")
	if reason := fmt.Sprintf("%d archived: automutex: rule \"github:\": its key was busy\n", o.archived); o.archived == 0 || !strings.Contains(o.stdout, reason) {
		t.Errorf("nothing archived, or not for one reason:\n%s", o.stdout)
	}
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60 - o.archived, archived: o.archived})
}

// Older runs are stopped: each task is done or was replaced.
func TestRun_replace(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-tasks", "60", "-busy", "replace")
	if o.replaced == 0 {
		t.Errorf("nothing replaced:\n%s", o.stdout)
	}
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60 - o.replaced, replaced: o.replaced})
	if o.stderr != "" {
		t.Errorf("stderr of a run without trouble:\n%s", o.stderr)
	}
}

func TestRun_input(t *testing.T) {
	t.Parallel()
	const file = "testdata/events.jsonl"
	text, err := os.ReadFile(file)
	redistest.Must(t, err)
	for _, input := range []string{file, "-"} {
		o := try(t, t.Context(), string(text), "-input", input)
		o.expect(t, demo.ExitOK, tally{tasks: 11, done: 9, archived: 2})
		if got := strings.Count(o.stderr, "\n"); got != 1 || !strings.Contains(o.stderr, "line 7: ") {
			t.Errorf("stderr is to be one line about line 7:\n%s", o.stderr)
		}
		for _, kind := range []string{"github:organization", "github:ping"} {
			told := regexp.MustCompile(`1 archived: .*` + kind + `.*repository\.full_name`)
			if !told.MatchString(o.stdout) {
				t.Errorf("no line that says which field the %s task lacks:\n%s", kind, o.stdout)
			}
		}
	}
}

func TestRun_inputWithoutTasks(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "oops\n", "-input", "-")
	o.expect(t, demo.ExitOK, tally{})
	if !strings.Contains(o.stderr, "line 1: ") {
		t.Errorf("the bad line is not reported: %q", o.stderr)
	}
}

func TestRun_oneLockForAll(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 12 {
		fmt.Fprintf(&lines, `{"type":"kind-%d","payload":"not an object"}`+"\n", i%3)
	}
	o := try(t, t.Context(), lines.String(), "-input", "-", "-on", "", "-work", "5ms")
	o.expect(t, demo.ExitOK, tally{tasks: 12, done: 12})
}

// On a real Redis nothing is left when the work is done.
func TestRun_leavesNothing(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	redistest.Must(t, mini.Set("another", "program's"))
	for _, busy := range []string{"archive", "park"} {
		o := try(t, t.Context(), "", "-redis", "redis://"+mini.Addr(), "-tasks", "40", "-busy", busy, "-wait", "0s")
		o.expect(t, demo.ExitOK, tally{tasks: 40, done: 40 - o.archived, archived: o.archived})
		passing := func(key string) bool { // of all processes with this prefix: ends by itself
			return strings.HasSuffix(key, ":{control}:format") || strings.Contains(key, ":{fleet}:rules:")
		}
		if got := slices.DeleteFunc(mini.Keys(), passing); !slices.Equal(got, []string{"another"}) {
			t.Errorf("-busy %s: keys in Redis afterwards: %q, want what was there before", busy, got)
		}
	}
}

// demoQueue waits until the demo's queue in Redis is as ready wants it, and
// gives its name.
func demoQueue(t *testing.T, inspector *asynq.Inspector, ready func(*asynq.QueueInfo) bool) string {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		queues, err := inspector.Queues()
		if err != nil || len(queues) != 1 {
			continue
		}
		if info, err := inspector.GetQueueInfo(queues[0]); err == nil && ready(info) {
			return queues[0]
		}
	}
	t.Error("the demo's queue never became as wanted")
	return ""
}

func TestRun_interrupted(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: mini.Addr()})
	defer inspector.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	queue := make(chan string, 1) // ends with the first answer
	go func() {
		queue <- demoQueue(t, inspector, func(q *asynq.QueueInfo) bool { return q.Processed >= 5 })
		cancel()
	}()
	o := try(t, ctx, "", "-redis", "redis://"+mini.Addr(), "-tasks", "400", "-work", "40ms")
	name := <-queue
	if o.done < 5 || o.done == o.tasks {
		t.Errorf("%d of %d tasks done, want some", o.done, o.tasks)
	}
	o.expect(t, demo.ExitOK, tally{tasks: o.tasks, done: o.done})
	if want := fmt.Sprintf("\nqueued=%d in asynq queue %s ", o.tasks-o.done, name); !strings.Contains(o.stdout, want) {
		t.Errorf("no line%s:\n%s", want, o.stdout)
	}
	info, err := inspector.GetQueueInfo(name)
	redistest.Must(t, err)
	if info.Active != 0 || info.Pending+info.Retry+info.Scheduled != o.tasks-o.done {
		t.Errorf("in Redis are %d active, %d pending, %d retry; want %d to be run and none active",
			info.Active, info.Pending, info.Retry, o.tasks-o.done)
	}
}

func TestRun_interruptedBeforeTheStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := try(t, ctx, "", "-tasks", "20")
	o.expect(t, demo.ExitOK, tally{})
}

// A task that vanishes from Redis is noticed.
func TestRun_lost(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: mini.Addr()})
	defer inspector.Close()
	deleted := make(chan error, 1) // ends with the first answer
	go func() {
		queue := demoQueue(t, inspector, func(q *asynq.QueueInfo) bool { return q.Pending >= 10 })
		tasks, err := inspector.ListPendingTasks(queue)
		if err == nil {
			err = inspector.DeleteTask(queue, tasks[len(tasks)-1].ID)
		}
		deleted <- err
	}()
	o := try(t, t.Context(), "", "-redis", "redis://"+mini.Addr(), "-tasks", "20", "-workers", "1", "-work", "100ms", "-unguarded")
	redistest.Must(t, <-deleted)
	o.expect(t, demo.ExitFindings, tally{tasks: 20, done: 19, lost: 1})
}

// A Redis that forgets everything is noticed, too.
func TestRun_everythingLost(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: mini.Addr()})
	defer inspector.Close()
	flushed := make(chan struct{}) // closed by the goroutine when it ends
	go func() {
		defer close(flushed)
		demoQueue(t, inspector, func(q *asynq.QueueInfo) bool { return q.Pending >= 10 && q.Processed > 0 })
		mini.FlushAll()
	}()
	o := try(t, t.Context(), "", "-redis", "redis://"+mini.Addr(), "-tasks", "100", "-work", "500ms", "-unguarded")
	<-flushed
	o.expect(t, demo.ExitFindings, tally{tasks: 100, done: o.done, lost: 100 - o.done, overlaps: o.overlaps})
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"-limit", "0"},
		{"-busy", "never"},
		{"-ttl", "1ms"},
		{"-on", "a..b"},
		{"-redis", "nonsense"},
		{"-redis", "redis://127.0.0.1:1"},
		{"-input", filepath.Join(dir, "missing")},
	} {
		var stdout, stderr bytes.Buffer
		exit := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
		if exit != demo.ExitUsage || stdout.Len() > 0 || strings.Count(stderr.String(), "\n") != 1 || !strings.HasPrefix(stderr.String(), "worker: ") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want exit 2 and one line on stderr", args, exit, stdout.String(), stderr.String())
		}
	}
}

func TestRun_help(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if exit := run(t.Context(), []string{"-h"}, nil, &stdout, &stderr); exit != demo.ExitOK || !strings.Contains(stderr.String(), "-unguarded") {
		t.Errorf("exit %d, stderr %q", exit, stderr.String())
	}
}

// With -in-order the tasks of a key run in the order of their Enqueue, also those that fail once.
func TestRun_inOrder(t *testing.T) {
	t.Parallel()
	o := try(t, t.Context(), "", "-tasks", "60", "-in-order")
	o.expect(t, demo.ExitOK, tally{tasks: 60, done: 60})
	if !strings.Contains(o.stdout, "in order: 6 attempts failed and kept their places; 0 tasks began after one of their key that was enqueued later") {
		t.Errorf("the report lacks the order:\n%s", o.stdout)
	}
}
