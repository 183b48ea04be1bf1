package unique

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What becomes of a task, by what is in its way.
const (
	rejected = "rejected" // for the task that is there, which stays as it is
	joined   = "joined"   // the answer is the task that is there
	replaced = "replaced" // one task waits, at the time of the old one, with the new payload
	delayed  = "delayed"  // one task waits, with the new payload, until the delay is over
	accepted = "accepted" // what was there is in nobody's way
)

// Every state of asynq against every Until and every Duplicate.
func TestStates(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	duplicates := []Duplicate{Reject, Join, Replace, Postpone(minute)}
	acts := []string{rejected, joined, replaced, delayed}
	refuses := []string{rejected, joined, rejected, rejected}
	makesRoom := []string{accepted, accepted, accepted, accepted}
	kept := []string{rejected, rejected, rejected, rejected}
	type row map[asynq.TaskState][]string
	waits := func(active, retry, archived, completed []string) row {
		return row{
			asynq.TaskStatePending: acts, asynq.TaskStateScheduled: acts, asynq.TaskStateAggregating: acts,
			asynq.TaskStateActive: active, asynq.TaskStateRetry: retry, asynq.TaskStateArchived: archived,
			asynq.TaskStateCompleted: completed,
		}
	}
	cases := []struct {
		name    string
		until   Until
		keep    bool
		guarded bool // the worker has a rule with an equal key
		want    row
	}{
		{"until done", UntilDone, false, false, waits(refuses, refuses, makesRoom, makesRoom)},
		{"until done, keep", UntilDone, true, false, waits(refuses, refuses, kept, kept)},
		{"until start", UntilStart, false, true, waits(makesRoom, makesRoom, makesRoom, makesRoom)},
		{"until start, no rule", UntilStart, false, false, waits(makesRoom, makesRoom, makesRoom, makesRoom)},
		{"until start, keep", UntilStart, true, true, waits(makesRoom, makesRoom, makesRoom, makesRoom)}, // they have begun
		{"for", For(time.Hour), false, false, waits(refuses, refuses, kept, kept)},
		{"for, keep", For(time.Hour), true, false, waits(refuses, refuses, kept, kept)},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		idle := r.queue + "-idle" // a queue without workers
		var rules, first []Rule
		var guarded []automutex.Rule
		var all []stateCase
		for _, c := range cases {
			for i, d := range duplicates {
				for state, want := range c.want {
					queue := r.queue
					if state == asynq.TaskStatePending || state == asynq.TaskStateScheduled || state == asynq.TaskStateAggregating {
						queue = idle
					}
					rule := Rule{Task: c.name + "/" + d.String() + "/" + state.String(), Queue: queue, On: onID, Until: c.until,
						Duplicate: d, KeepArchived: c.keep}
					rules = append(rules, rule)
					if c.guarded {
						guarded = append(guarded, automutex.Rule{Task: rule.Task, On: rule.On})
					}
					all = append(all, stateCase{rule, state, want[i], minute})
					if d.supersedes() {
						rule.Duplicate = Replace // so that the first task is not put off
					}
					first = append(first, rule)
				}
			}
		}
		running := make(chan struct{})
		var begun sync.Map // the types whose old task's handler has begun
		r.serve(func(_ context.Context, task *asynq.Task) error {
			if textOf(task.Payload()) != "old" {
				<-running
				return nil
			}
			begun.Store(task.Type(), true)
			switch {
			case strings.HasSuffix(task.Type(), "/active"):
				<-running
			case strings.HasSuffix(task.Type(), "/retry"):
				return errors.New("not yet")
			case strings.HasSuffix(task.Type(), "/archived"):
				return asynq.SkipRetry
			}
			return nil
		}, r.guard(guarded...))
		t.Cleanup(func() { close(running) }) // runs before the server's own cleanup, which waits for handlers
		before, after := r.producer(r.rdb, first...), r.producer(r.rdb, rules...)
		for _, c := range all {
			checkState(t, r, c, before, after, &begun)
		}
	})
}

// stateCase is a task in that state in the way of another one of the rule.
type stateCase struct {
	rule  Rule
	state asynq.TaskState
	want  string
	delay time.Duration
}

func checkState(t *testing.T, r *rig, c stateCase, first, next *Client, begun *sync.Map) {
	t.Helper()
	taskType, queue := c.rule.Task, c.rule.Queue
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf(taskType+": "+format, args...)
	}
	opts := map[asynq.TaskState][]asynq.Option{
		asynq.TaskStateScheduled: {asynq.ProcessIn(time.Hour)}, asynq.TaskStateAggregating: {asynq.Group("g")},
		asynq.TaskStateCompleted: {asynq.Retention(time.Hour)},
	}[c.state]
	old := r.must(first.Enqueue(task(taskType, "7", "old"), opts...))
	r.await(queue, old.ID, c.state)
	if c.state == asynq.TaskStateActive {
		eventually(t, func() bool { _, ok := begun.Load(taskType); return ok }, "%s having begun", taskType)
	}
	before, err := r.inspector.GetTaskInfo(queue, old.ID)
	redistest.Must(t, err)

	began := time.Now()
	info, err := next.Enqueue(task(taskType, "7", "new"), opts...)
	lived := r.tasks(queue, taskType, live...)
	after, _ := r.inspector.GetTaskInfo(queue, old.ID)
	unchanged := after != nil && after.State == c.state && string(after.Payload) == string(before.Payload) &&
		(c.state == asynq.TaskStatePending || after.NextProcessAt.Equal(before.NextProcessAt)) // asynq calls that time now
	var dup *DuplicateError
	switch c.want {
	case rejected:
		if info != nil || !errors.As(err, &dup) || dup.ID != old.ID || dup.State != c.state || dup.Queue != queue ||
			dup.Rule != taskType {
			fail("answered %v, %v; want a *DuplicateError for %q", info, err, old.ID)
		} else if ended := c.state == asynq.TaskStateArchived ||
			c.state == asynq.TaskStateCompleted; strings.Contains(err.Error(), "until asynq drops it") != ended {
			fail("%v", err)
		}
		if !unchanged {
			fail("the task in the way went from %+v to %+v", before, after)
		}
	case joined:
		if err != nil || info.ID != old.ID || info.State != c.state || !unchanged {
			fail("answered %+v, %v; want the task that is there; it went from %+v to %+v", info, err, before, after)
		}
	case replaced, delayed:
		if err != nil || len(lived) != 1 || !slices.Equal(texts(lived), []string{"new"}) || lived[0].ID != info.ID ||
			lived[0].State != info.State {
			fail("answered %+v, %v; there are %q", info, err, texts(lived))
			return
		}
		at := lived[0].NextProcessAt
		if c.want == delayed && (lived[0].State != asynq.TaskStateScheduled || at.Before(began.Add(c.delay)) ||
			at.After(began.Add(c.delay+longest)) && c.state != asynq.TaskStateScheduled) {
			fail("it is %s for %s", lived[0].State, at.Sub(began))
		}
		if c.want == replaced && (lived[0].State != c.state || c.state == asynq.TaskStateScheduled &&
			!at.Equal(before.NextProcessAt)) {
			fail("it is %s at %s, want as it was: %s at %s", lived[0].State, at, c.state, before.NextProcessAt)
		}
	case accepted:
		if err != nil || !slices.Contains(texts(lived), "new") {
			fail("answered %+v, %v; there are %q", info, err, texts(lived))
		} else if byID := !(&rule{Rule: c.rule}).hasClaim(); byID != (info.ID == old.ID) {
			fail("the ID went from %q to %q", old.ID, info.ID)
		}
	}
}
