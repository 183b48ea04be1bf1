package automutextest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// Outcome is what has happened to a task; see the constants.
type Outcome string

// The outcomes that [Task.Becomes] knows.
const (
	// Done: asynq has completed the task. Its handler ran and returned nil, or
	// AfterFailure did.
	Done Outcome = "done"
	// Skipped: the task ended as done, and its handler never ran: policy Skip, or AfterFailure
	// whose function returned nil.
	Skipped Outcome = "skipped"
	// HandedBack: the Guard returned the task to asynq, which runs it again, and the attempt
	// is not spent: policies Retry, RetryIn and Park, a pause, a hold.
	HandedBack Outcome = "handed back"
	// Failed: the task waits in asynq to run again, and the attempt is spent: its
	// handler returned an error, or the policy is Fail.
	Failed Outcome = "failed"
	// Archived: asynq has archived the task: policy Archive, no key, or no attempts
	// left.
	Archived Outcome = "archived"
	// Waiting: the task stands in line, in a worker.
	Waiting Outcome = "waiting"

	// Others are on the way to one of these.
	pending   Outcome = "pending"
	scheduled Outcome = "scheduled"
	active    Outcome = "in a worker"
)

var outcomes = []Outcome{Done, Skipped, HandedBack, Failed, Archived, Waiting}

// final tells whether asynq is through with a task.
func (o Outcome) final() bool { return o == Done || o == Skipped || o == Archived }

// Task is a task that was enqueued with [Server.Enqueue].
type Task struct {
	server *Server
	task   *asynq.Task
	queue  string
	id     string
	spent  int // attempts, when it was last run again
}

// poll is how often a task is looked at.
const poll = 2 * time.Millisecond

// ID returns the task's ID in asynq.
func (k *Task) ID() string { return k.id }

// Becomes waits until the task has the outcome want. It fails the test if the task ends up
// with another outcome, or does not have want within ten seconds plus the longest Wait of the
// rules.
func (k *Task) Becomes(tb testing.TB, want Outcome) {
	tb.Helper()
	if !slices.Contains(outcomes, want) {
		tb.Fatalf("automutextest: Becomes: there is no outcome %q, only %q", want, outcomes)
	}
	defer k.server.guard.watching()()
	deadline := time.Now().Add(k.server.guard.patience)
	for {
		now := k.look(tb)
		switch {
		case now.outcome == want:
			return
		case now.settled():
			tb.Fatalf("automutextest: the task is to become %s, but %s", want, k.describe(now))
		case time.Now().After(deadline):
			tb.Fatalf("automutextest: the task is to become %s, but not within %s: %s", want, k.server.guard.patience, k.describe(now))
		}
		<-time.After(poll)
	}
}

// Again has asynq run a task now that it keeps for later: one that was handed back, has failed
// or is scheduled. For any other task Again fails the test.
func (k *Task) Again(tb testing.TB) {
	tb.Helper()
	now := k.look(tb)
	if !now.later {
		tb.Fatalf("automutextest: Again: asynq does not keep the task for later: %s", k.describe(now))
	}
	k.spent = now.spent
	k.server.guard.forget(k.queue, k.id)
	defer k.server.guard.enqueued()
	if err := k.server.inspector.RunTask(k.queue, k.id); err != nil {
		tb.Fatalf("automutextest: Again: %s: %v", k.describe(k.look(tb)), err)
	}
}

// state is what a task is at a moment.
type state struct {
	outcome Outcome
	later   bool   // asynq keeps it for later
	parked  bool   // it comes back when it is called
	spent   int    // attempts so far
	reason  string // asynq's last error, or who was in the way
	unseen  bool   // the Guard knows nothing of it
}

// settled tells whether nothing more happens to it by itself.
func (s state) settled() bool {
	return s.outcome.final() || s.outcome == Failed || s.outcome == HandedBack && !s.parked
}

func (k *Task) look(tb testing.TB) state {
	tb.Helper()
	info, err := k.server.inspector.GetTaskInfo(k.queue, k.id)
	if err != nil {
		tb.Fatalf("automutextest: task %s/%s (%s): asynq does not have it: %v", k.queue, k.id, k.task.Type(), err)
	}
	now := state{spent: info.Retried, reason: info.LastErr}
	seen := k.server.guard.sighted(k.queue, k.id)
	if now.unseen = seen == nil; now.unseen {
		seen = &sightings{}
	}
	if now.parked = seen.parked; seen.last != nil && now.reason == "" {
		now.reason = seen.last.Error()
	}
	switch info.State {
	case asynq.TaskStateCompleted:
		now.outcome = Done
		if seen.skipped {
			now.outcome = Skipped
		}
	case asynq.TaskStateArchived:
		now.outcome = Archived
	case asynq.TaskStateRetry:
		now.outcome, now.later = HandedBack, true
		if info.Retried > k.spent {
			now.outcome = Failed
		}
	case asynq.TaskStateScheduled:
		now.outcome, now.later = scheduled, true
	case asynq.TaskStateActive:
		now.outcome = active
		if seen.waiting > 0 {
			now.outcome = Waiting
		}
	case asynq.TaskStatePending, asynq.TaskStateAggregating:
		now.outcome = pending
	}
	return now
}

// describe says what is known of the task, for a failure.
func (k *Task) describe(now state) string {
	var b strings.Builder
	fmt.Fprintf(&b, "task %s/%s (%s) is %s", k.queue, k.id, k.task.Type(), now.outcome)
	if now.reason != "" {
		fmt.Fprintf(&b, ": %s", now.reason)
	}
	locks, err := k.server.guard.Explain(context.Background(), k.task)
	if err != nil && !strings.Contains(now.reason, err.Error()) {
		fmt.Fprintf(&b, "\n  %v", err)
	}
	for _, lock := range locks {
		fmt.Fprintf(&b, "\n  %s", lock)
	}
	if len(locks) > 0 && now.unseen && now.outcome != pending && now.outcome != scheduled {
		b.WriteString("\n  the guard saw nothing of it: is guard.Middleware around the handler?")
	}
	return b.String()
}
