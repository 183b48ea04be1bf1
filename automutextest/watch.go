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

// linger is how long a run waits for others of its group before its handler begins,
// so that one that is let in beside it is seen however quick the handler is.
const linger = 5 * time.Millisecond

// Runs is a handler that knows which runs there were at once; see [Watch].
type Runs struct {
	guard   *Guard
	handler asynq.Handler
	by      func(*asynq.Task) string

	mu     sync.Mutex // guards the fields below; not held while the handler runs
	total  int
	groups map[string]*group
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
	id      string
	guarded bool // it has a lease
}

// Watch wraps a handler, inside of guard.Middleware, so that [Runs.AtMostAtOnce] can
// tell what ran at once. by says which tasks must not: it gives the name of what
// they share, such as the account that they change, by the payload and without a
// look at the rules, so that a rule that forgets a field is found out.
//
// A run begins up to 5 ms late, for others to show. It is safe for concurrent use.
func Watch(tb testing.TB, g *Guard, handler asynq.Handler, by func(*asynq.Task) string) *Runs {
	tb.Helper()
	g.check(tb, "Watch")
	if handler == nil || by == nil {
		tb.Fatal("automutextest: Watch: the handler or the function that groups tasks is nil")
	}
	return &Runs{guard: g, handler: handler, by: by, groups: map[string]*group{}}
}

// ProcessTask runs the handler.
func (r *Runs) ProcessTask(ctx context.Context, task *asynq.Task) error {
	this := &run{task: task}
	this.id, _ = asynq.GetTaskID(ctx)
	_, this.guarded = automutex.Lease(ctx)
	name := r.by(task)
	alone := r.enter(name, this)
	defer r.leave(name, this)
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-alone:
	case <-timer.C:
	case <-ctx.Done():
	}
	return r.handler.ProcessTask(ctx, task)
}

// enter notes a run, and gives what is closed when another one of its group begins.
func (r *Runs) enter(name string, this *run) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
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
	g := r.groups[name]
	g.now = slices.DeleteFunc(g.now, func(other *run) bool { return other == this })
}

// Count is how many runs there were so far.
func (r *Runs) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// AtMostAtOnce checks that never more than n runs of one group were under way at
// once: with 1, never two. It fails the test as well when there was no run at all,
// since that proves nothing; call it when the tasks have run.
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
