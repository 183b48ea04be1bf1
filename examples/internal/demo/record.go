package demo

import (
	"slices"
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
	failed bool // the handler returned an error
}

// waited is the time from the enqueue to the start of the handler.
func (r taskRun) waited() time.Duration { return max(0, r.begin-r.queued) }

// parkedTime is one time that a task was parked: handed back with its place in
// line kept, until a worker had it again.
type parkedTime struct {
	entity   string
	task     string
	from, to time.Duration
}

// arrival is what is known of a task before it runs.
type arrival struct {
	entity string
	at     time.Duration
}

// recorder notes what the handlers really did. The verdict (overlaps, lost
// tasks) is made from it, never from what the guard says it did; only the parked
// times, which no handler sees, are the guard's word.
type recorder struct {
	start time.Time

	// mu guards what follows, which all handlers write. Times are taken while
	// it is held, so that their order is the order of what happened.
	mu       sync.Mutex
	enqueued map[string]arrival // by task ID
	order    []string           // the task IDs as enqueued
	runs     []taskRun
	parked   []parkedTime
	away     map[string]int  // by ID of a task that is parked now: its place in parked
	done     map[string]bool // handler returned nil
	skipped  map[string]bool // ended by the policy without running
	replaced map[string]bool // ended for a newer one, whether or not they had begun
}

func newRecorder() *recorder {
	return &recorder{
		start:    time.Now(),
		enqueued: make(map[string]arrival),
		away:     make(map[string]int),
		done:     make(map[string]bool),
		skipped:  make(map[string]bool),
		replaced: make(map[string]bool),
	}
}

// enqueue is called right before a task is handed to asynq; forget takes it
// back when asynq refused it.
func (r *recorder) enqueue(entity, task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enqueued[task] = arrival{entity, time.Since(r.start)}
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
		queued: r.enqueued[task].at, begin: time.Since(r.start), end: -1,
	})
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.runs[i].end = time.Since(r.start)
		r.runs[i].failed = err != nil
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

// replace notes a task that ended for a newer one.
func (r *recorder) replace(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replaced[task] = true
}

// park notes a task that is parked from now on.
func (r *recorder) park(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away[task] = len(r.parked)
	r.parked = append(r.parked, parkedTime{entity: r.enqueued[task].entity, task: task, from: time.Since(r.start), to: -1})
}

// back notes that a worker has had the task for waited by now. It does nothing
// for a task that was not parked.
func (r *recorder) back(task string, waited time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.away[task]; ok {
		r.parked[i].to = max(r.parked[i].from, time.Since(r.start)-waited)
		delete(r.away, task)
	}
}

// snapshot copies the runs and the parked times; those not over yet end now.
func (r *recorder) snapshot() ([]taskRun, []parkedTime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.start)
	runs, parked := slices.Clone(r.runs), slices.Clone(r.parked)
	for i := range runs {
		if runs[i].end < 0 {
			runs[i].end = now
		}
	}
	for i := range parked {
		if parked[i].to < 0 {
			parked[i].to = now
		}
	}
	return runs, parked
}

// disorder counts the runs that began after the run of a task of their key that was enqueued later, and the runs
// that failed.
func (r *recorder) disorder() (broken, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := make(map[string]int, len(r.order))
	for i, id := range r.order {
		place[id] = i
	}
	last := map[string]int{} // by entity, the latest place that has begun
	for _, run := range r.runs {
		if at := place[run.task]; at < last[run.entity] {
			broken++
		} else {
			last[run.entity] = at
		}
		if run.failed {
			failed++
		}
	}
	return broken, failed
}
