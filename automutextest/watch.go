package automutextest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// Runs is a handler that records which of its runs overlapped; see [Watch].
type Runs struct {
	guard   *Guard
	handler asynq.Handler
	by      func(*asynq.Task) string

	mu      sync.Mutex // guards the fields below; not held while the handler runs
	total   int
	groups  map[string]*group
	running map[string]int // calls under way, by queue and task ID
}

// group are the runs of one group.
type group struct {
	now     []*run        // under way
	crowd   []*run        // the most there were at once
	arrival chan struct{} // closed when another one arrives
}

// run is one call of the handler.
type run struct {
	task    *asynq.Task
	queue   string
	id      string
	guarded bool // it has a lease
}

// Watch wraps a handler so that [Runs.AtMostAtOnce] can check which runs overlapped. Put the
// result inside of guard.Middleware. by groups the tasks that must not overlap: it returns the
// name of what they share, such as the account that they change. It should read the payload
// and not use the rules, so that the check finds a rule that forgets a field.
//
// Watch delays each run for at most 200 ms, so that it finds an overlap however short the
// handler is. The delay ends when another run of the group begins, or when no other task can
// reach the handler before a running one ends. Outside of [Server.Drain] and [Task.Becomes]
// the test may still enqueue, so the second reason applies only after 20 ms. Runs is safe for
// concurrent use.
func Watch(tb testing.TB, g *Guard, handler asynq.Handler, by func(*asynq.Task) string) *Runs {
	tb.Helper()
	g.check(tb, "Watch")
	if handler == nil || by == nil {
		tb.Fatal("automutextest: Watch: the handler or the function that groups tasks is nil")
	}
	return &Runs{guard: g, handler: handler, by: by, groups: map[string]*group{}, running: map[string]int{}}
}

// ProcessTask runs the handler.
func (r *Runs) ProcessTask(ctx context.Context, task *asynq.Task) error {
	this := &run{task: task}
	this.queue, _ = asynq.GetQueueName(ctx)
	this.id, _ = asynq.GetTaskID(ctx)
	_, this.guarded = automutex.Lease(ctx)
	name := r.by(task)
	joined := r.enter(name, this)
	defer r.leave(name, this)
	r.awaitOthers(ctx, joined)
	return r.handler.ProcessTask(ctx, task)
}

// awaitOthers waits until joined is closed, or no other task is about to come, or ctx
// ends. A Redis that does not answer ends the wait, too: the run itself needs none.
func (r *Runs) awaitOthers(ctx context.Context, joined <-chan struct{}) {
	began := time.Now()
	bound := time.NewTimer(lingerBound)
	defer bound.Stop()
	for {
		if !r.guard.mayEnqueue(began) {
			if coming, err := r.guard.onTheirWay(r.isRunning); err != nil || !coming {
				return
			}
		}
		select {
		case <-joined:
			return
		case <-bound.C:
			return
		case <-ctx.Done():
			return
		case <-time.After(poll):
		}
	}
}

// isRunning reports whether the handler is at work on a task.
func (r *Runs) isRunning(queue, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[queue+"/"+id] > 0
}

// enter notes a run. The channel is closed when another run of its group begins.
func (r *Runs) enter(name string, this *run) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	r.running[this.queue+"/"+this.id]++
	g := r.groups[name]
	if g == nil {
		g = &group{}
		r.groups[name] = g
	}
	if g.arrival != nil {
		close(g.arrival)
	}
	g.arrival = make(chan struct{})
	g.now = append(g.now, this)
	if len(g.now) > len(g.crowd) {
		g.crowd = slices.Clone(g.now)
	}
	return g.arrival
}

func (r *Runs) leave(name string, this *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := this.queue + "/" + this.id; r.running[key] > 1 {
		r.running[key]--
	} else {
		delete(r.running, key)
	}
	g := r.groups[name]
	g.now = slices.DeleteFunc(g.now, func(other *run) bool { return other == this })
}

// Count returns how many runs there were so far.
func (r *Runs) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// AtMostAtOnce checks that never more than n runs of one group overlapped. It also fails the
// test if there was no run, since that proves nothing; call it after the tasks have run.
func (r *Runs) AtMostAtOnce(tb testing.TB, n int) {
	tb.Helper()
	if n < 1 {
		tb.Fatalf("automutextest: AtMostAtOnce: %d is no bound; use 1 for never two at once", n)
	}
	if r.Count() == 0 {
		tb.Errorf("automutextest: AtMostAtOnce: the handler never ran, so nothing was tested")
	}
	for name, crowd := range r.crowds(n) {
		var b strings.Builder
		for _, run := range crowd {
			fmt.Fprintf(&b, "\n  task %s: %s", run.id, r.keys(run))
		}
		tb.Errorf("automutextest: AtMostAtOnce: %d runs of %q at once, want at most %d:%s", len(crowd), name, n, b.String())
	}
}

// crowds are the runs of the groups that had more than n at once.
func (r *Runs) crowds(n int) map[string][]*run {
	r.mu.Lock()
	defer r.mu.Unlock()
	crowds := map[string][]*run{}
	for name, g := range r.groups {
		if len(g.crowd) > n {
			crowds[name] = g.crowd
		}
	}
	return crowds
}

// keys says what a run held, or should have.
func (r *Runs) keys(this *run) string {
	locks, err := r.guard.Explain(context.Background(), this.task)
	switch n := (needs{this.task, locks}); {
	case err != nil:
		return fmt.Sprintf("%s %s: %v", this.task.Type(), brief(this.task.Payload()), err)
	case len(locks) == 0:
		return n.String() + "no rule is for it"
	case !this.guarded:
		return n.String() + ", but it ran without a lock: is guard.Middleware around the handler, and the policy not allow?"
	default:
		return n.String()
	}
}
