package main

import (
	"sync"
	"time"
)

// taskRun is one stay in a handler, told in time since the recorder's start.
type taskRun struct {
	entity string // whose turn it was; "" when the payload names nobody
	task   string // asynq task ID
	kind   string // task type
	queued time.Duration
	begin  time.Duration
	end    time.Duration
}

// waited is the time from the enqueue to the start of the handler.
func (r taskRun) waited() time.Duration { return max(0, r.begin-r.queued) }

// recorder notes what the handlers really did. The verdict (overlaps, lost
// tasks) is made from it, never from what the guard says it did.
type recorder struct {
	start time.Time

	// mu guards what follows, which all handlers write. Times are taken while
	// it is held, so that their order is the order of what happened.
	mu       sync.Mutex
	enqueued map[string]time.Duration // by task ID
	order    []string                 // the task IDs as enqueued
	runs     []taskRun
	done     map[string]bool // handler returned nil
	skipped  map[string]bool // ended by the policy without running
}

func newRecorder() *recorder {
	return &recorder{
		start:    time.Now(),
		enqueued: make(map[string]time.Duration),
		done:     make(map[string]bool),
		skipped:  make(map[string]bool),
	}
}

// enqueue is called right before a task is handed to asynq; forget takes it
// back when asynq refused it.
func (r *recorder) enqueue(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enqueued[task] = time.Since(r.start)
	r.order = append(r.order, task)
}

func (r *recorder) forget(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.enqueued, task)
	r.order = r.order[:len(r.order)-1]
}

// begin is the first thing that a handler does. The result is to be called
// last, with what the handler returns.
func (r *recorder) begin(entity, task, kind string) (end func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.runs)
	r.runs = append(r.runs, taskRun{
		entity: entity, task: task, kind: kind,
		queued: r.enqueued[task], begin: time.Since(r.start), end: -1,
	})
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.runs[i].end = time.Since(r.start)
		if err == nil {
			r.done[task] = true
		}
	}
}

// skip notes a task that the policy ended without running it.
func (r *recorder) skip(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skipped[task] = true
}

// snapshot copies the runs; those still under way end now.
func (r *recorder) snapshot() []taskRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.start)
	runs := append([]taskRun(nil), r.runs...)
	for i := range runs {
		if runs[i].end < 0 {
			runs[i].end = now
		}
	}
	return runs
}
