package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

func (r *rig) pauseTarget(target string, until time.Time) {
	r.t.Helper()
	redistest.Must(r.t, r.guard.Controls().Pause(context.Background(), target, until, "repair"))
}

func (r *rig) resumeTarget(target string) {
	r.t.Helper()
	redistest.Must(r.t, r.guard.Controls().Resume(context.Background(), target))
}

// Whatever the policy, a paused task goes back with its attempt unspent, and runs once when it is resumed.
func TestPaused_everyPolicy(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		after := automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error {
			t.Error("the function of AfterFailure was called for a pause")
			return nil
		})
		for name, rule := range map[string]automutex.Rule{
			"retry": {Busy: automutex.Retry}, "retry in": {Busy: automutex.RetryIn(time.Second)},
			"wait": {Wait: time.Hour, Busy: automutex.Retry}, "skip": {Busy: automutex.Skip},
			"archive": {Busy: automutex.Archive},
			"fail":    {Busy: automutex.Fail}, "park": {Busy: automutex.Park}, "replace": {Busy: automutex.Replace},
			"allow": {Busy: automutex.Allow}, "after": {Busy: after},
			"wait and skip": {Wait: time.Hour, Busy: automutex.Skip}, "limit": {Limit: 3, Busy: automutex.Retry},
			"cooldown": {Cooldown: time.Second, Busy: automutex.Retry},
			"max hold": {MaxHold: time.Minute, Busy: automutex.Retry},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rule.Task, rule.On = "work", onID
				r := start(t, s, setup{rules: []automutex.Rule{rule}})
				r.pauseTarget("work", time.Time{})
				id := r.enqueueOne()
				info := r.awaitRetried(id, 0)
				r.none()
				says(t, info.LastErr, `rule "work"`, r.lockOf("work", "1").Key(), "paused until somebody resumes it", "this-worker",
					"repair")
				event := r.awaitEvent(automutex.EventBusy, id)
				if event.Busy == nil || event.Busy.Reason != "paused" || event.Busy.Pause == nil ||
					event.Busy.Pause.Why != "repair" {
					t.Errorf("event %+v, busy %+v: want who paused it, and why", event, event.Busy)
				}
				policy := automutex.Retry // what may end or run a task does not for a pause
				switch name {
				case "retry in", "park", "replace":
					policy = rule.Busy
				}
				r.wantPolicy(id, policy)
				want := []automutex.EventKind{automutex.EventBusy, automutex.EventRetried}
				if rule.Busy == automutex.Park {
					want[1] = automutex.EventParked
				}
				r.wantKinds(id, want...)

				r.resumeTarget("work")
				if rule.Busy != automutex.Park { // which is called
					r.rerun(id)
				}
				r.ends(r.next())
				r.wantRuns(1)
			})
		}
	})
}

// A task on its last attempt cannot go back, since asynq would archive it: it waits in its worker for the end of the
// pause. If another holds the key then, its policy counts.
func TestPaused_lastAttempt(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ends := map[automutex.Policy]asynq.TaskState{automutex.Skip: asynq.TaskStateCompleted,
			automutex.Archive: asynq.TaskStateArchived, automutex.Fail: asynq.TaskStateArchived}
		for name, policy := range map[string]automutex.Policy{"retry": automutex.Retry, "skip": automutex.Skip,
			"archive": automutex.Archive, "fail": automutex.Fail, "park": automutex.Park, "replace": automutex.Replace} {
			for _, held := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, held %t", name, held), func(t *testing.T) {
					t.Parallel()
					r, free := busyRig(t, s, automutex.Rule{Busy: policy}, setup{})
					if !held {
						free()
					}
					r.pauseTarget(r.lockOf("work", "1").Key(), time.Time{})
					id := r.enqueueOne(asynq.MaxRetry(0))
					if ends[policy] == 0 {
						r.awaitLine(1, "work", "1")
					} else if busy := r.awaitEvent(automutex.EventBusy, id).Busy; busy.Reason != automutex.ReasonPaused {
						t.Errorf("it has met %v", busy)
					}
					r.none()
					r.resumeTarget(r.lockOf("work", "1").Key())
					if held && ends[policy] > 0 {
						r.await(id, ends[policy])
						r.none()
						return
					}
					if held {
						free()
					}
					r.finish(id)
				})
			}
		}
	})
}

// A pause ends a wait in line at once: the time of the pause is no time in line, and
// Skip does not drop the task. Under Park the task parks.
func TestPaused_whileItWaits(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for name, rule := range map[string]automutex.Rule{"wait": {Wait: time.Hour, Busy: automutex.Retry},
			"skip": {Wait: time.Hour, Busy: automutex.Skip}, "park": {Busy: automutex.Park},
			"replace": {Wait: time.Hour, Busy: automutex.Replace}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, free := busyRig(t, s, rule, setup{})
				id := r.enqueueOne()
				r.awaitLine(1, "work", "1")
				r.pauseTarget("work", time.Time{})
				r.awaitRetried(id, 0)
				r.awaitEvent(automutex.EventBusy, id)
				if busy := r.seen.list(automutex.EventBusy, automutex.EventSkipped); len(busy) != 1 ||
					busy[0].Busy.Reason != automutex.ReasonPaused {
					t.Errorf("the policy was applied: %v", busy)
				}
				r.awaitLine(0, "work", "1")
				free()
				r.none()
				r.resumeTarget("work")
				if rule.Busy != automutex.Park {
					r.rerun(id)
				}
				r.finish(id)
			})
		}
	})
}

// A task of several rules takes none of its locks while one of them is paused.
func TestPaused_severalRules(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{
		{Name: "tenant", Scope: "tenant", On: onID, Busy: automutex.Retry},
		{Name: "api", Scope: "api", Limit: 5, Busy: automutex.Skip},
	}}, func(t *testing.T, r *rig) {
		r.pauseTarget("api", time.Time{})
		id := r.enqueueOne()
		r.awaitRetried(id, 0)
		r.wantKinds(id, automutex.EventBusy, automutex.EventRetried)
		r.resumeTarget("api")
		r.rerun(id)
		r.finish(id)
	})
}

// A limit for a scope, or one key, is obeyed by tasks.
func TestControls_limitOfTasks(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{On: onID, Busy: automutex.Skip}}}, func(t *testing.T, r *rig) {
		redistest.Must(t, r.guard.Controls().SetLimit(t.Context(), "work|1", 2, "a larger plan"))
		r.enqueueOne()
		r.enqueueOne()
		first, second := r.next(), r.next()
		r.awaitEvent(automutex.EventSkipped, r.enqueueOne())
		first.returns(nil)
		second.returns(nil)
	})
}

// A rule whose Task is a beginning of types, without a Scope, has a scope for each of them. An operator pauses all of
// them by the Task.
func TestPaused_allTypesOfARule(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{Task: "report:", On: onID, Busy: automutex.Park},
		{Task: "mail:send", On: onID, Busy: automutex.Retry}}}, func(t *testing.T, r *rig) {
		r.pauseTarget("report:", time.Time{})
		r.pauseTarget("mail:", time.Time{})
		ids := []string{r.enqueue("report:monthly", one), r.enqueue("report:daily", one), r.enqueue("mail:send", one)}
		for _, id := range ids {
			says(t, r.awaitRetried(id, 0).LastErr, "paused until somebody resumes it")
		}
		r.none()
	})
}
