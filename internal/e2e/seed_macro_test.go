package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What the spec of redis-mutex's macro defines, `auto_mutex :perform, on: [...]`,
// and where it is shown here. A method is a task type, its arguments are the
// fields of the payload. The cases of the mutex itself are in
// lock/seeds_test.go.
//
//	adds auto_mutex                                TestSeedMacro_OneLockPerTaskType
//	adds auto_mutex on different args              TestSeedMacro_OnArguments
//	adds auto_mutex on same args                   TestSeedMacro_OnArguments
//	adds auto_mutex on different keyword args      TestSeedMacro_OnArguments
//	adds auto_mutex on same keyword args           TestSeedMacro_OnArguments
//	raises if there is no such argument            TestSeedMacro_UnknownArgument
//
// Its README beyond that:
//
//	block: and block: 0                            TestSeedMacro_Block
//	after_failure gets the arguments, its value    TestSeedMacro_AfterFailure
//	is the result
//	without after_failure nothing runs             TestSeedMacro_WithoutAfterFailure
//	what the method returns, and raises            TestSeedMacro_ResultOfTheHandler
//	one key for several methods                    TestSeedMacro_SharedScope
//
// Not carried over, on purpose:
//
//   - keyword and positional arguments: a payload has named fields, in any
//     order. So the spec's two pairs of cases are one.
//   - an argument that is not given leaves its part of the key out: here the
//     task is archived, since it would share a lock with others.
//   - keys of arguments that have ":" in them, which collide.
//   - a LockError from within the method, which the macro takes for its own and
//     answers with after_failure.
//   - the polling interval, and an expiry in the middle of a long run.

// macro runs one case, titled with the behaviour, on every kind of server.
func macro(t *testing.T, behaviour string, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	t.Run(behaviour, func(t *testing.T) {
		t.Parallel()
		redistest.Each(t, f)
	})
}

// failure is after_failure in the spec: its value, made from the arguments, is
// the result.
func failure(_ context.Context, t *asynq.Task, _ *automutex.BusyError) error {
	return errors.New("failure: " + string(t.Payload()))
}

// race starts a task, and while it runs a second, and gives what became of that:
// "success", or the text of its failure.
func race(t *testing.T, r *rig, taskType string, first, second string) string {
	t.Helper()
	one := r.enqueue(taskType, first)
	running := r.stage.next(t)
	defer func() {
		running.returns(nil)
		r.await(one, asynq.TaskStateCompleted)
	}()
	two := r.enqueue(taskType, second)
	result := ""
	redistest.Eventually(t, patience, func() bool {
		select {
		case beside := <-r.stage.started:
			beside.returns(nil)
			r.await(two, asynq.TaskStateCompleted)
			result = "success"
			return true
		default:
		}
		info, err := r.inspector.GetTaskInfo(r.queue, two)
		if err == nil && info.State == asynq.TaskStateRetry {
			result = info.LastErr
		}
		return result != ""
	}, "the second task running or failing")
	return result
}

func TestSeedMacro_OneLockPerTaskType(t *testing.T) {
	t.Parallel()
	macro(t, "without on, one task of the type runs at a time, whatever its arguments",
		func(t *testing.T, s *redistest.Server) {
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "run_singularly", Busy: automutex.AfterFailure(failure)}}})
			if got := race(t, r, "run_singularly", `{"id":1}`, `{"id":2}`); got != `failure: {"id":2}` {
				t.Errorf("the second ends with %q", got)
			}
			if r.locked("run_singularly") {
				t.Error("it is locked after both")
			}
		})
}

func TestSeedMacro_OnArguments(t *testing.T) {
	t.Parallel()
	macro(t, "with on, one task runs at a time for each combination of the arguments named",
		func(t *testing.T, s *redistest.Server) {
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "run_on_args", On: []string{"id", "bar"},
				Busy: automutex.AfterFailure(failure)}}})
			const first = `{"id":1,"foo":"2","bar":{"a":1,"b":[2]}}`
			for second, want := range map[string]string{
				`{"id":2,"foo":"2","bar":{"a":1,"b":[2]}}`:     "success", // another id
				`{"id":1,"foo":"2","bar":{"a":1,"b":[3]}}`:     "success", // another bar
				`{"id":1,"foo":"2","bar":{"a":1,"b":[2]}}`:     "failure",
				`{"id":1,"foo":"other","bar":{"a":1,"b":[2]}}`: "failure", // foo is not named
				`{"bar":{"b":[2],"a":1},"id":"1"}`:             "failure", // the same, by content
			} {
				got := race(t, r, "run_on_args", first, second)
				if want == "failure" {
					want += ": " + second
				}
				if got != want {
					t.Errorf("%s beside %s ends with %q, want %q", second, first, got, want)
				}
			}
		})
	macro(t, "values with separators in them do not collide", func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "run", On: []string{"a", "b"},
			Busy: automutex.AfterFailure(failure)}}})
		if got := race(t, r, "run", `{"a":"x:y","b":"z"}`, `{"a":"x","b":"y:z"}`); got != "success" {
			t.Errorf("the second ends with %q", got)
		}
	})
	macro(t, "an argument that is not given is an error, not a wider lock", func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "run", On: []string{"id"}, Busy: automutex.Retry}}})
		info := r.await(r.enqueue("run", `{"foo":1}`), asynq.TaskStateArchived)
		if !strings.Contains(info.LastErr, `"id"`) {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.stage.none(t)
	})
}

func TestSeedMacro_SharedScope(t *testing.T) {
	t.Parallel()
	macro(t, "task types with one Scope share their locks, from any queue", func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "charge", Scope: "account", On: []string{"account"}, Busy: automutex.Skip},
			{Task: "refund", Scope: "account", On: []string{"to"}, Busy: automutex.Skip},
		}})
		other := start(t, s, setup{rules: []automutex.Rule{{Task: "audit", Scope: "account", On: []string{"account"},
			Busy: automutex.Skip}}, prefix: r.cfg.Prefix})
		charge := r.enqueue("charge", `{"account":7}`)
		running := r.stage.next(t)
		refund := r.enqueue("refund", `{"to":7}`)
		r.await(refund, asynq.TaskStateCompleted)
		r.awaitEvent(automutex.EventSkipped, refund)
		audit := other.enqueue("audit", `{"account":7}`)
		other.await(audit, asynq.TaskStateCompleted)
		other.awaitEvent(automutex.EventSkipped, audit)
		beside := r.enqueue("refund", `{"to":8}`)
		r.stage.next(t).returns(nil)
		r.await(beside, asynq.TaskStateCompleted)
		running.returns(nil)
		r.await(charge, asynq.TaskStateCompleted)
	})
}

func TestSeedMacro_UnknownArgument(t *testing.T) {
	t.Parallel()
	macro(t, "an argument that does not exist is an error at definition, which names it",
		func(t *testing.T, s *redistest.Server) {
			type arguments struct {
				ID int `json:"id"`
			}
			define := func(on ...string) error {
				guard, err := automutex.New(s.Client(t), automutex.Config{Rules: []automutex.Rule{{Task: "run_without_such_args",
					On: on, Payload: arguments{}}}})
				if guard != nil {
					_ = guard.Close(context.Background())
				}
				return err
			}
			if err := define("missing_arg"); err == nil || !strings.Contains(err.Error(), `"missing_arg"`) ||
				!strings.Contains(err.Error(), "run_without_such_args") {
				t.Errorf("got %v", err)
			}
			redistest.Must(t, define("id"))
		})
}

func TestSeedMacro_Block(t *testing.T) {
	t.Parallel()
	macro(t, "Wait is block: within it the second runs after the first", func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "run", Wait: patience, Busy: automutex.AfterFailure(failure)}}})
		one := r.enqueue("run", nil)
		running := r.stage.next(t)
		two := r.enqueue("run", nil)
		r.awaitLine(1, "run")
		r.stage.none(t)
		running.returns(nil)
		r.await(one, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(two, asynq.TaskStateCompleted)
	})
	macro(t, "beyond it the second fails, and says how long it waited", func(t *testing.T, s *redistest.Server) {
		waited := make(chan time.Duration, 1)
		const block = 100 * time.Millisecond
		r := start(t, s, setup{rules: []automutex.Rule{{
			Task: "run", Wait: block,
			Busy: automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error {
				waited <- busy.Waited
				return nil
			}),
		}}})
		r.take("run")
		r.await(r.enqueue("run", nil), asynq.TaskStateCompleted)
		if d := <-waited; d < block/2 {
			t.Errorf("it waited for %s, want %s", d, block)
		}
		r.stage.none(t)
	})
}

// It gets the arguments and who is in the way, and what it returns is the result.
func TestSeedMacro_AfterFailure(t *testing.T) { TestPolicy_afterFailure(t) }

func TestSeedMacro_WithoutAfterFailure(t *testing.T) {
	t.Run("Skip is what the macro does then: nothing runs, and it is no failure", TestPolicy_skip)
	t.Run("the default does not lose the task: it comes back, no attempt spent", TestPolicy_retry)
}

func TestSeedMacro_ResultOfTheHandler(t *testing.T) {
	t.Parallel()
	macro(t, "what the handler returns is the result, and the lock is free after, after a panic too",
		func(t *testing.T, s *redistest.Server) {
			r := start(t, s, setup{
				rules: []automutex.Rule{{Task: "run", Busy: automutex.AfterFailure(failure)}},
				handler: func(_ context.Context, t *asynq.Task) error {
					switch string(t.Payload()) {
					case "error":
						return errors.New("something went wrong")
					case "panic":
						panic("something went very wrong")
					case "busy":
						// A lock error of the handler's own is not ours to answer.
						return &lock.BusyError{Name: "another lock"}
					}
					return nil
				},
			})
			for payload, want := range map[string]string{
				"error": "something went wrong", "panic": "something went very wrong", "busy": "another lock",
			} {
				info := r.awaitRetried(r.enqueue("run", payload), 1)
				if !strings.Contains(info.LastErr, want) || strings.Contains(info.LastErr, "failure: ") {
					t.Errorf("%s: the last error is %q", payload, info.LastErr)
				}
				if r.locked("run") {
					t.Errorf("%s: locked after it", payload)
				}
			}
			r.await(r.enqueue("run", "fine"), asynq.TaskStateCompleted)
			if r.locked("run") {
				t.Error("locked after success")
			}
		})
}
