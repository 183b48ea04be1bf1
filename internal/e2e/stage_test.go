package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// stage is a handler whose every run waits for the test's say.
type stage struct {
	started chan *run
	over    chan struct{} // closed when the test ends: whatever runs returns nil
	ended   sync.Once

	mu     sync.Mutex
	runs   int            // so far
	now    map[string]int // under way, by task type
	most   map[string]int // at once, by task type
	fences []int64
}

// run is one call of the handler.
type run struct {
	ctx    context.Context
	task   *asynq.Task
	id     string
	finish chan error // what the handler returns
	left   chan struct{}
}

func newStage() *stage {
	return &stage{
		started: make(chan *run, 1000), over: make(chan struct{}),
		now: map[string]int{}, most: map[string]int{},
	}
}

// ProcessTask ignores the end of its context, as the worst of handlers do.
func (s *stage) ProcessTask(ctx context.Context, t *asynq.Task) error {
	r := &run{ctx: ctx, task: t, finish: make(chan error, 1), left: make(chan struct{})}
	r.id, _ = asynq.GetTaskID(ctx)
	s.enter(ctx, t.Type())
	defer s.leave(t.Type())
	defer close(r.left)
	s.started <- r
	select {
	case err := <-r.finish:
		return err
	case <-s.over:
		return nil
	}
}

func (s *stage) enter(ctx context.Context, taskType string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	s.now[taskType]++
	s.most[taskType] = max(s.most[taskType], s.now[taskType])
	if fence, err := automutex.Fence(ctx); err == nil {
		s.fences = append(s.fences, fence)
	}
}

func (s *stage) leave(taskType string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[taskType]--
}

func (s *stage) end() { s.ended.Do(func() { close(s.over) }) }

// count is how many runs there have been.
func (s *stage) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// mostAtOnce is how many runs of a type there were at one moment.
func (s *stage) mostAtOnce(taskType string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most[taskType]
}

// next is the next run to start.
func (s *stage) next(t *testing.T) *run {
	t.Helper()
	select {
	case r := <-s.started:
		return r
	case <-time.After(patience):
		t.Fatal("no handler starts")
		return nil
	}
}

// nextIs is next, for a task that has to be this one.
func (s *stage) nextIs(t *testing.T, id string) *run {
	t.Helper()
	r := s.next(t)
	if r.id != id {
		t.Fatalf("task %s runs, want %s", r.id, id)
	}
	return r
}

// none checks that no handler has started that the test does not know of. It
// does not wait: whatever tells that the task did not run comes first.
func (s *stage) none(t *testing.T) {
	t.Helper()
	select {
	case r := <-s.started:
		t.Fatalf("the handler of %s (%s) runs", r.id, r.task.Type())
	default:
	}
}

// returns ends a run.
func (r *run) returns(err error) { r.finish <- err }

// cut ends the context of a run, as its deadline would, and waits for that.
// asynq then files the task as failed, though the handler still runs.
func (r *run) cut() {
	r.ctx.Value(cutKey{}).(context.CancelFunc)()
	<-r.ctx.Done()
}

// awaitEnd waits until the context of a run has ended, and gives the cause.
func (r *run) awaitEnd(t *testing.T) error {
	t.Helper()
	select {
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	case <-time.After(patience):
		t.Fatal("the handler's context does not end")
		return nil
	}
}
