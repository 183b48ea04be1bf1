package automutextest

import (
	"runtime"
	"time"

	"github.com/hibiken/asynq"
)

const (
	// linger is how long a run waits for others of its group while the test may still
	// be enqueuing.
	linger = 20 * time.Millisecond
	// lingerBound ends the wait where a task stays on its way: its handler is not the
	// watched one, or its queue is paused.
	lingerBound = 200 * time.Millisecond
)

// served is what [Serve] tells a Guard about a server.
type served struct {
	queues  map[string]int
	workers int
}

// serves notes a server with its queues and workers.
func (g *Guard) serves(cfg asynq.Config) {
	workers := cfg.Concurrency
	if workers < 1 {
		workers = runtime.NumCPU() // asynq's default
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.servers = append(g.servers, served{cfg.Queues, workers})
}

// enqueued notes that the test has just given a task to asynq.
func (g *Guard) enqueued() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lastEnqueue = time.Now()
}

// watching notes that the test's goroutine only looks on until the returned function
// is called: it enqueues nothing meanwhile.
func (g *Guard) watching() (done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onlookers++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.onlookers--
	}
}

// mayEnqueue reports whether the test may be about to enqueue more, for a run that
// began at that time.
func (g *Guard) mayEnqueue(began time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.onlookers > 0 {
		return false
	}
	last := began
	if g.lastEnqueue.After(last) {
		last = g.lastEnqueue
	}
	return time.Since(last) < linger
}

// onTheirWay reports whether a task may still reach its handler by itself: a worker is
// free for a pending one, or an active one neither stands in line nor is in a handler
// for which running is true.
func (g *Guard) onTheirWay(running func(queue, id string) bool) (bool, error) {
	g.mu.Lock()
	queues, workers := map[string]bool{}, 0
	for _, s := range g.servers {
		workers += s.workers
		for queue := range s.queues {
			queues[queue] = true
		}
	}
	g.mu.Unlock()

	inspector := asynq.NewInspectorFromRedisClient(g.rdb) // shares rdb, so that there is nothing to close
	known, err := inspector.Queues()
	if err != nil {
		return false, err
	}
	pending, active := 0, 0
	for _, queue := range known {
		if len(queues) > 0 && !queues[queue] {
			continue // no server fetches from it
		}
		// Pending before active: a task that is fetched in between is seen twice, not missed.
		waiting, err := inspector.ListPendingTasks(queue, asynq.PageSize(1))
		if err != nil {
			return false, err
		}
		pending += len(waiting)
		const page = 1000
		now, err := inspector.ListActiveTasks(queue, asynq.PageSize(page))
		if err != nil {
			return false, err
		}
		active += len(now)
		for _, t := range now {
			s := g.sighted(queue, t.ID)
			inLine := s != nil && s.waiting > 0
			if !inLine && !running(queue, t.ID) {
				return true, nil
			}
		}
	}
	return pending > 0 && (workers == 0 || active < workers), nil
}
