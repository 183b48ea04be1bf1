package e2e

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Many tasks, several processes, and both kinds of places in one line.

// ledger counts the runs of each task, and how many there are at once for each
// payload.
type ledger struct {
	mu      sync.Mutex
	runs    map[string]int // by task ID
	now     map[string]int // by payload
	most    int
	last    time.Time
	longest time.Duration // between two runs
	done    int
}

func newLedger() *ledger { return &ledger{runs: map[string]int{}, now: map[string]int{}} }

// enter notes that somebody has the key; the function it gives, that he has not.
func (l *ledger) enter(key string) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now[key]++
	l.most = max(l.most, l.now[key])
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.now[key]--
	}
}

// ProcessTask is a handler.
func (l *ledger) ProcessTask(ctx context.Context, t *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	defer l.enter(string(t.Payload()))()
	runtime.Gosched() // some work
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[id]++
	l.done++
	if !l.last.IsZero() {
		l.longest = max(l.longest, time.Since(l.last))
	}
	l.last = time.Now()
	return nil
}

// await waits until n runs are done, checks that they were those of n tasks, and
// gives the longest time between two of them.
func (l *ledger) await(t *testing.T, n int) time.Duration {
	t.Helper()
	before, deadline := -1, time.Now()
	redistest.Eventually(t, 10*patience, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.done != before { // patience is for what does not move
			before, deadline = l.done, time.Now().Add(patience)
		}
		return l.done >= n || time.Now().After(deadline)
	}, "%d runs", n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done != n || len(l.runs) != n {
		t.Errorf("%d runs of %d tasks, and there are %d", l.done, len(l.runs), n)
	}
	return l.longest
}

// enqueueMany enqueues n tasks, on several connections at once.
func (r *rig) enqueueMany(n int, taskType string, payload func(i int) string) {
	r.t.Helper()
	const at = 4
	var wg sync.WaitGroup
	for g := range at {
		redistest.Go(&wg, func() {
			for i := g; i < n; i += at {
				_, err := r.client.Enqueue(asynq.NewTask(taskType, []byte(payload(i))), asynq.Queue(r.queue), asynq.MaxRetry(5), asynq.Timeout(10*time.Minute))
				if err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Ten thousand (on the real server, and without the race detector) parked on one
// key: each runs once, and the line never stands still.
func TestPark_tenThousand(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		n := map[string]int{redistest.KindMini: 500, redistest.KindReal: 10_000, redistest.KindCluster: 1000}[s.Kind()]
		if raceDetector || !redistest.All() {
			n /= 10
		}
		runs := newLedger()
		r := start(t, s, setup{
			rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, handler: runs.ProcessTask, workers: 8,
		})
		held := r.hold("work", "1")
		r.enqueueMany(n, "work", func(int) string { return `{"id":1}` })
		// The last ones find no other who takes their workers.
		redistest.Eventually(t, 4*patience, func() bool { return r.stored("work", "1").Parked >= n-8 }, "they are parked")
		r.seen.clear()
		r.free(held)
		longest := runs.await(t, n)
		if runs.most != 1 {
			t.Errorf("%d at once", runs.most)
		}
		// Without a call it would be hours. Calls that were lost are repeated after
		// half a second at most: none was, or it did not show.
		if longest > patience {
			t.Errorf("the line stood still for %s", longest)
		}
		// With few tasks what counts is that 64 are called at once at most, all of
		// them in vain if several workers come back at the same time.
		if vain := len(r.seen.list(automutex.EventParked)); vain > n/2+64 {
			t.Errorf("%d trips in vain of %d tasks", vain, n)
		}
		r.awaitStored(0, 0, "work", "1")
	})
}

// At most Limit at once, and all slots are used.
func TestPark_limit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const limit, n = 3, 12
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Limit: limit, Busy: automutex.Park}}, workers: limit + 1})
		for range n {
			r.enqueue("work", one)
		}
		r.awaitStored(0, n-limit, "work", "1")
		for range n / limit {
			var runs []*run
			for range limit {
				runs = append(runs, r.stage.next(t))
			}
			for _, run := range runs {
				run.returns(nil)
			}
		}
		redistest.Eventually(t, patience, func() bool { return len(r.seen.list(automutex.EventReleased)) == n }, "all are done")
		if most := r.stage.mostAtOnce("work"); most != limit {
			t.Errorf("%d at once", most)
		}
		r.awaitStored(0, 0, "work", "1")
	})
}

// A version with a higher Limit follows one with a lower: what the old one has
// parked fills the new slots, as soon as the first of them is back.
func TestPark_limitRaised(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Park}
		old := start(t, s, setup{rules: []automutex.Rule{rule}, workers: 1})
		held := old.take("work", "1")
		var ids []string
		for range 4 {
			id := old.enqueue("work", one)
			old.awaitParked(id)
			ids = append(ids, id)
		}
		old.stop()
		rule.Limit = 3
		r := start(t, s, setup{rules: []automutex.Rule{rule}, workers: 5, queue: old.queue, prefix: old.cfg.Prefix})
		r.comesBack(ids[0])
		first, second := r.stage.next(t), r.stage.next(t)
		r.awaitStored(0, 2, "work", "1") // three slots are taken
		r.stage.none(t)
		first.returns(nil)
		third := r.stage.next(t)
		r.free(held)
		fourth := r.stage.next(t)
		for _, run := range []*run{second, third, fourth} {
			run.returns(nil)
		}
		for _, id := range ids {
			r.await(id, asynq.TaskStateCompleted)
		}
		if most := r.stage.mostAtOnce("work"); most > 3 {
			t.Errorf("%d at once", most)
		}
	})
}

// A version with a lower Limit follows: its tasks begin when few enough are left
// of the old one's, whose releases call them in vain until then.
func TestPark_limitLowered(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Park, Limit: 3}
		old := start(t, s, setup{rules: []automutex.Rule{rule}, workers: 3})
		var left []*run
		for range 3 {
			old.enqueue("work", one)
			left = append(left, old.stage.next(t))
		}
		rule.Limit = 1
		r := start(t, s, setup{rules: []automutex.Rule{rule}, workers: 1, prefix: old.cfg.Prefix})
		var ids []string
		for range 3 {
			id := r.enqueue("work", one)
			r.awaitParked(id)
			ids = append(ids, id)
		}
		for i, run := range left {
			r.stage.none(t)
			run.returns(nil)
			redistest.Eventually(t, patience, func() bool { return len(old.seen.list(automutex.EventReleased)) == i+1 }, "the release")
		}
		r.finishAll(ids...)
		if most := r.stage.mostAtOnce("work"); most != 1 {
			t.Errorf("%d at once", most)
		}
	})
}

// Two processes with a queue each, keys that both have tasks for, handlers that
// fail now and then, and plain lock users: never two at once for a key, and each
// task has one run that succeeds.
func TestPark_queuesAndProcesses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n, keys, goroutines, rounds = 24, 3, 2, 10
		runs := newLedger()
		rules := []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}
		a := start(t, s, setup{rules: rules, workers: 3, handler: runs.ProcessTask})
		b := start(t, s, setup{rules: rules, workers: 2, handler: runs.ProcessTask, prefix: a.cfg.Prefix})
		payload := func(i int) string { return fmt.Sprintf(`{"id":%d}`, i%keys) }
		var users sync.WaitGroup
		for i := range keys * goroutines {
			redistest.Go(&users, func() { // ends after its rounds, each of which gets the lock or ends with patience
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				for range rounds {
					err := a.lockOf("work", fmt.Sprint(i%keys)).Do(ctx, func(context.Context) error {
						defer runs.enter(payload(i))()
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		a.enqueueMany(n, "work", payload)
		b.enqueueMany(n, "work", payload)
		runs.await(t, 2*n)
		users.Wait()
		if runs.most != 1 {
			t.Errorf("%d at once", runs.most)
		}
		for i := range keys {
			a.awaitStored(0, 0, "work", fmt.Sprint(i))
		}
	})
}

// Goroutines are served first, though what is parked came before them: a slot is
// not reserved for what is not there.
func TestPark_goroutinesInOneLine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		first := r.enqueue("work", one)
		r.awaitParked(first)
		type got struct {
			which int
			lease *lock.Lease
			err   error
		}
		granted := make(chan got, 2)
		for i := range 2 {
			go func() { // ends with its lease, or fails after patience
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				lease, err := r.lockOf("work", "1").Lock(ctx)
				granted <- got{i, lease, err}
			}()
			r.awaitStored(i+1, 1, "work", "1")
		}
		second := r.enqueue("work", one)
		r.awaitParked(second)
		if place := r.awaitEvent(automutex.EventParked, second).Busy.Place; place != 3 {
			t.Errorf("it is parked at place %d, behind three", place)
		}
		free()
		for i := range 2 {
			g := <-granted
			if g.err != nil || g.which != i {
				t.Fatalf("the lock went to %d, %v; want %d", g.which, g.err, i)
			}
			r.stage.none(t)
			r.free(g.lease)
		}
		r.finishAll(first, second)
	})
}

// The head of the line was called and finds no worker: others take and give back
// the key meanwhile, at once.
func TestPark_allWorkersBusy(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		head := r.enqueue("work", one)
		r.awaitParked(head)
		other := r.enqueue("other", nil)
		blocks := r.stage.next(t)
		free()
		r.await(head, asynq.TaskStatePending)
		for range 5 {
			r.free(r.take("work", "1"))
		}
		blocks.returns(nil)
		r.await(other, asynq.TaskStateCompleted)
		r.finish(head)
		r.awaitStored(0, 0, "work", "1")
	})
}

// The head was called and does not come, since its queue's workers are all busy:
// its call lapses, and a task of another queue has its turn.
func TestPark_callLapses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, free := heldRig(t, s, setup{workers: 1})
		b := start(t, s, setup{rules: a.cfg.Rules, workers: 1, prefix: a.cfg.Prefix})
		head := a.enqueue("work", one)
		a.awaitParked(head)
		other := a.enqueue("other", nil)
		blocks := a.stage.next(t)
		second := b.enqueue("work", one)
		b.awaitParked(second)
		free()
		a.await(head, asynq.TaskStatePending)
		b.finish(second)
		a.stage.none(t)
		a.awaitStored(0, 1, "work", "1") // and the head has a place yet
		blocks.returns(nil)
		a.await(other, asynq.TaskStateCompleted)
		a.finish(head)
		a.awaitStored(0, 0, "work", "1")
	})
}
