package demo

import (
	"slices"
	"sync"
	"time"
)

// fate is how a task ended, as far as handlers and events tell. What is known later counts
// only if it is greater.
type fate int

const (
	unknown  fate = iota // not yet, or asynq knows
	replaced             // ended for a newer one, whether or not it had begun
	skipped              // ended by the policy without running
	done                 // the handler returned nil
)

// stay is a time that a task spent in its handler, or parked: handed back with its place in
// line kept, until a worker had it again. to is -1 while it lasts. Times count from the recorder's start.
type stay struct {
	from, to time.Duration
	failed   bool // the handler returned an error
}

// taskRecord is what is known of one task.
type taskRecord struct {
	id, row      string
	queued       time.Duration
	fate         fate
	runs, parked []stay
}

// recorder notes what the handlers really did. The verdict (overlaps, lost
// tasks) is made from it, never from what the guard says it did; only the parked
// times, which no handler sees, are the guard's word.
type recorder struct {
	start time.Time

	// mu guards what follows, which all handlers write. Times are taken while
	// it is held, so that their order is the order of what happened.
	mu    sync.Mutex
	tasks []*taskRecord // as enqueued
	byID  map[string]*taskRecord
}

func newRecorder() *recorder { return &recorder{start: time.Now(), byID: map[string]*taskRecord{}} }

// enqueue is called right before a task is handed to asynq; forget takes the last one back
// when asynq refused it.
func (r *recorder) enqueue(row, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &taskRecord{id: id, row: row, queued: time.Since(r.start)}
	r.tasks, r.byID[id] = append(r.tasks, t), t
}

func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.tasks) - 1
	delete(r.byID, r.tasks[last].id)
	r.tasks = r.tasks[:last]
}

// note changes what is known of a task at a time. It does nothing for an unknown task.
func (r *recorder) note(id string, change func(t *taskRecord, now time.Duration)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.byID[id]; t != nil {
		change(t, time.Since(r.start))
	}
}

// begin is the first thing that a handler does. The result is to be called
// last, with what the handler returns.
func (r *recorder) begin(id string) (end func(error)) {
	i := 0
	r.note(id, func(t *taskRecord, now time.Duration) {
		i = len(t.runs)
		t.runs = append(t.runs, stay{from: now, to: -1})
	})
	return func(err error) {
		r.note(id, func(t *taskRecord, now time.Duration) {
			t.runs[i].to, t.runs[i].failed = now, err != nil
			if err == nil {
				t.fate = done
			}
		})
	}
}

// end notes how the policy ended a task.
func (r *recorder) end(id string, how fate) {
	r.note(id, func(t *taskRecord, _ time.Duration) { t.fate = max(t.fate, how) })
}

// park notes a task that is parked from now on.
func (r *recorder) park(id string) {
	r.note(id, func(t *taskRecord, now time.Duration) { t.parked = append(t.parked, stay{from: now, to: -1}) })
}

// back notes that a worker has had the task for waited by now. It does nothing
// for a task that was not parked.
func (r *recorder) back(id string, waited time.Duration) {
	r.note(id, func(t *taskRecord, now time.Duration) {
		if last := len(t.parked) - 1; last >= 0 && t.parked[last].to < 0 {
			t.parked[last].to = max(t.parked[last].from, now-waited)
		}
	})
}

// stop ends what is not over yet.
func (r *recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.start)
	for _, t := range r.tasks {
		for _, stays := range [][]stay{t.runs, t.parked} {
			for i := range stays {
				if stays[i].to < 0 {
					stays[i].to = now
				}
			}
		}
	}
}

// disorder counts the runs that began after the run of a task of their row that was enqueued later, and the runs
// that failed.
func (r *recorder) disorder() (broken, failed int) {
	type begun struct {
		at    time.Duration
		place int
		row   string
	}
	var runs []begun
	for place, t := range r.tasks {
		for _, run := range t.runs {
			runs = append(runs, begun{run.from, place, t.row})
			if run.failed {
				failed++
			}
		}
	}
	slices.SortFunc(runs, func(a, b begun) int { return int(a.at - b.at) })
	last := map[string]int{} // by row, the latest place that has begun
	for _, run := range runs {
		if run.place < last[run.row] {
			broken++
		}
		last[run.row] = max(last[run.row], run.place)
	}
	return broken, failed
}
