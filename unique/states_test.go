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
			asynq.TaskStateActive: active, asynq.TaskStateRetry: retry, asynq.TaskStateArchived: archived, asynq.TaskStateCompleted: completed,
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
		idle := redistest.Name(t) // a queue without workers
		served := redistest.Name(t)
		queueOf := func(state asynq.TaskState) string {
			if slices.Contains([]asynq.TaskState{asynq.TaskStatePending, asynq.TaskStateScheduled, asynq.TaskStateAggregating}, state) {
				return idle
			}
			return served
		}
		taskType := func(name string, d Duplicate, state asynq.TaskState) string {
			return name + "/" + d.String() + "/" + state.String()
		}
		var rules []Rule
		var guarded []automutex.Rule
		for _, c := range cases {
			for _, d := range duplicates {
				for state := range c.want {
					r := Rule{Task: taskType(c.name, d, state), Queue: queueOf(state), On: []string{"id"}, Until: c.until, Duplicate: d, KeepArchived: c.keep}
					rules = append(rules, r)
					if c.guarded {
						guarded = append(guarded, automutex.Rule{Task: r.Task, On: r.On})
					}
				}
			}
		}
		r := start(t, s, rules...)
		running := make(chan struct{})
		var begun sync.Map // the types whose old task's handler has begun
		r.serve(func(_ context.Context, task *asynq.Task) error {
			if !strings.Contains(string(task.Payload()), `"old"`) {
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
		}, r.guard(guarded...), served)
		t.Cleanup(func() { close(running) }) // runs before the server's own cleanup, which waits for handlers

		for _, c := range cases {
			for i, d := range duplicates {
				for state, want := range c.want {
					checkState(t, r, stateCase{
						taskType: taskType(c.name, d, state), queue: queueOf(state), state: state, want: want[i], delay: minute,
						byID: c.until == UntilDone && !d.supersedes(), begun: &begun,
					})
				}
			}
		}
	})
}

type stateCase struct {
	taskType, queue, want string
	state                 asynq.TaskState
	delay                 time.Duration
	byID                  bool
	begun                 *sync.Map
}

func checkState(t *testing.T, r *rig, c stateCase) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf(c.taskType+": "+format, args...)
	}
	var opts []asynq.Option
	switch c.state {
	case asynq.TaskStateScheduled:
		opts = append(opts, asynq.ProcessIn(time.Hour))
	case asynq.TaskStateAggregating:
		opts = append(opts, asynq.Group("g"))
	case asynq.TaskStateCompleted:
		opts = append(opts, asynq.Retention(time.Hour))
	default:
	}
	old := r.must(r.Enqueue(task(c.taskType, "7", "old"), opts...))
	if strings.Contains(c.taskType, "/postpone") && (c.queue != r.queue) {
		// The first call is put off too: bring it into the state.
		old = bring(t, r, c, old, opts)
	}
	r.await(c.queue, old.ID, c.state)
	if c.state == asynq.TaskStateActive {
		redistest.Eventually(t, longest, func() bool { _, ok := c.begun.Load(c.taskType); return ok }, "%s having begun", c.taskType)
	}
	before, err := r.inspector.GetTaskInfo(c.queue, old.ID)
	redistest.Must(t, err)

	began := time.Now()
	info, err := r.Enqueue(task(c.taskType, "7", "new"), opts...)
	lived := r.tasks(c.queue, c.taskType, live...)
	after, _ := r.inspector.GetTaskInfo(c.queue, old.ID)
	unchanged := after != nil && after.State == c.state && string(after.Payload) == string(before.Payload) && after.NextProcessAt.Unix() == before.NextProcessAt.Unix()
	if c.state == asynq.TaskStatePending && after != nil { // asynq calls that time now
		unchanged = after.State == c.state && string(after.Payload) == string(before.Payload)
	}
	var dup *DuplicateError
	switch c.want {
	case rejected:
		if info != nil || !errors.As(err, &dup) || dup.ID != old.ID || dup.State != c.state || dup.Queue != c.queue || dup.Rule != c.taskType {
			fail("answered %v, %v; want a *DuplicateError for %q", info, err, old.ID)
		}
		if !unchanged {
			fail("the task in the way went from %+v to %+v", before, after)
		}
	case joined:
		if err != nil || info.ID != old.ID || info.State != c.state || string(info.Payload) != string(before.Payload) {
			fail("answered %+v, %v; want the task that is there", info, err)
		}
		if !unchanged {
			fail("the task joined went from %+v to %+v", before, after)
		}
	case replaced, delayed:
		if err != nil || len(lived) != 1 || !slices.Equal(texts(lived), []string{"new"}) || lived[0].ID != info.ID || lived[0].State != info.State {
			fail("answered %+v, %v; there are %q", info, err, texts(lived))
			return
		}
		if at := lived[0].NextProcessAt; c.want == delayed && (lived[0].State != asynq.TaskStateScheduled || at.Before(began.Add(c.delay)) || at.After(began.Add(c.delay+longest)) && c.state != asynq.TaskStateScheduled) {
			fail("it is %s for %s", lived[0].State, at.Sub(began))
		}
		if c.want == replaced && (lived[0].State != c.state || c.state == asynq.TaskStateScheduled && !lived[0].NextProcessAt.Equal(before.NextProcessAt)) {
			fail("it is %s at %s, want as it was: %s at %s", lived[0].State, lived[0].NextProcessAt, c.state, before.NextProcessAt)
		}
	case accepted:
		if err != nil || !slices.Contains(texts(lived), "new") {
			fail("answered %+v, %v; there are %q", info, err, texts(lived))
			return
		}
		if c.byID && info.ID != old.ID {
			fail("the ID went from %q to %q", old.ID, info.ID)
		}
	}
}

// bring has a task that Postpone has put off reach the state of the case.
func bring(t *testing.T, r *rig, c stateCase, old *asynq.TaskInfo, opts []asynq.Option) *asynq.TaskInfo {
	t.Helper()
	switch c.state {
	case asynq.TaskStateScheduled:
		return old
	case asynq.TaskStateAggregating:
		// It loses its group in asynq when it is put off; one that has it comes
		// from a rule that did not put it off.
		redistest.Must(t, r.inspector.DeleteTask(old.Queue, old.ID))
		return r.must(r.plain.Enqueue(task(c.taskType, "7", "old"), append(slices.Clone(opts), asynq.Queue(old.Queue), asynq.TaskID(old.ID))...))
	default:
		redistest.Must(t, r.inspector.RunTask(old.Queue, old.ID))
		return old
	}
}
