package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// depot is a queue of jobs as a task queue would be: each is pending, active,
// parked or done, and what is parked comes back when it is called.
type depot struct {
	t       testing.TB
	limit   int
	keys    []string
	pending chan int

	mu     sync.Mutex // guards the fields below
	states []jobState
	runs   []int

	inside    []atomic.Int64 // by key
	left      atomic.Int64
	trips     atomic.Int64
	allDone   chan struct{}
	lastFence []atomic.Int64
}

type jobState int

const (
	jobPending jobState = iota
	jobActive
	jobParked
	jobDone
)

func newDepot(t testing.TB, limit, keys, jobs int) *depot {
	d := &depot{
		t: t, limit: limit, pending: make(chan int, jobs), states: make([]jobState, jobs), runs: make([]int, jobs),
		inside: make([]atomic.Int64, keys), lastFence: make([]atomic.Int64, keys), allDone: make(chan struct{}),
	}
	for range keys {
		d.keys = append(d.keys, redistest.Name(t))
	}
	for job := range jobs {
		d.pending <- job
	}
	d.left.Store(int64(jobs))
	return d
}

func (d *depot) lock(l *Locker, job int) *Lock {
	return l.Semaphore(d.keys[job%len(d.keys)], d.limit, Note(strconv.Itoa(job)), Fenced())
}

// to moves a job on.
func (d *depot) to(job int, state jobState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states[job] = state
	if state == jobPending {
		d.pending <- job
	}
}

// call is the Caller.
func (d *depot) call(_ context.Context, _, note string) inside.Fate {
	job, err := strconv.Atoi(note)
	if err != nil {
		d.t.Errorf("called: %q", note)
		return inside.FateGone
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.states[job] {
	case jobPending:
		return inside.FateComing
	case jobActive:
		return inside.FateUnsure
	case jobDone:
		return inside.FateGone
	case jobParked:
	}
	if rand.N(20) == 0 {
		return inside.FateLater
	}
	d.states[job] = jobPending
	d.pending <- job
	d.trips.Add(1)
	return inside.FateComing
}

// run does one job, if it gets its lock. crash has the process end in the middle.
func (d *depot) run(l *Locker, job int, yield <-chan struct{}, crash bool) {
	d.to(job, jobActive)
	m := d.lock(l, job)
	le, err := m.lockOrPark(context.Background(), yield)
	busy, ok := asBusy(err)
	if ok && busy.Parked {
		d.to(job, jobParked)
		return
	}
	if err != nil {
		// Its own note holds: the process that crashed with it.
		if own := ok && busy.Note == m.note; !own && !errors.Is(err, ErrClosed) {
			d.t.Errorf("LockOrPark: %v", err)
		}
		d.to(job, jobPending)
		return
	}
	key := job % len(d.keys)
	if n := d.inside[key].Add(1); n > int64(d.limit) && le.Held() { // a lease that ran out in a stall proves nothing
		d.t.Errorf("%d hold a lock for %d; %s", n, d.limit, dump(m))
	}
	if fence, err := le.Fence(); err == nil {
		if before := d.lastFence[key].Swap(fence); d.limit == 1 && before >= fence {
			d.t.Errorf("fence %d after %d", fence, before)
		}
	} else if le.Held() {
		d.t.Errorf("Fence: %v", err)
	}
	if crash {
		d.inside[key].Add(-1)
		_ = l.Close() // the lease lasts until its deadline
		d.to(job, jobPending)
		return
	}
	d.mu.Lock()
	d.runs[job]++
	d.mu.Unlock()
	<-time.After(100 * time.Microsecond) // the work
	d.to(job, jobDone)                   // before the release: what is called then is another
	d.inside[key].Add(-1)
	if err := le.Unlock(context.Background()); err != nil && !errors.Is(err, ErrNotHeld) {
		d.t.Errorf("Unlock: %v", err)
	}
	if d.left.Add(-1) == 0 {
		close(d.allDone)
	}
}

// Jobs of three processes on a few keys: some wait, some park at once, some
// after a while, plain goroutines come between, processes crash while they hold,
// or with what they parked. Nobody is let in who should not be, each job is done
// once, and nothing is left.
func TestParkStress(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		for _, limit := range []int{1, 2} {
			t.Run(fmt.Sprint("N=", limit), func(t *testing.T) {
				t.Parallel()
				jobs := 200
				if s.Kind() == redistest.KindReal {
					jobs = 1000
				}
				parkStress(t, s, newDepot(t, limit, 4/limit, jobs))
			})
		}
	})
}

func parkStress(t *testing.T, s *redistest.Server, d *depot) {
	const lockers, workers, crashes = 3, 4, 6
	half := d.left.Load() / 2
	var wg sync.WaitGroup
	work := func(l *Locker, yields func() (<-chan struct{}, func())) {
		for {
			select {
			case <-d.allDone:
				return
			case job := <-d.pending:
				yield, over := yields()
				d.run(l, job, yield, false)
				over()
			}
		}
	}
	for range lockers {
		l := newLocker(t, s.Client(t), calls(d.call))
		for i := range workers {
			redistest.Go(&wg, func() {
				work(l, func() (<-chan struct{}, func()) {
					switch i {
					case 0:
						return nil, func() {}
					case 1:
						return closedYield, func() {}
					}
					yield := make(chan struct{})
					timer := time.AfterFunc(rand.N(3*time.Millisecond), func() { close(yield) })
					return yield, func() { timer.Stop() }
				})
			})
		}
		redistest.Go(&wg, func() { // plain goroutines
			for i := 0; d.left.Load() > half; i++ {
				key := i % len(d.keys)
				le, err := l.Semaphore(d.keys[key], d.limit).Lock(context.Background())
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				if n := d.inside[key].Add(1); n > int64(d.limit) {
					t.Errorf("%d hold a lock for %d", n, d.limit)
				}
				d.inside[key].Add(-1)
				if err := le.Unlock(context.Background()); err != nil && !errors.Is(err, ErrNotHeld) {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	redistest.Go(&wg, func() { // processes that crash
		for range crashes {
			l := New(s.Client(t), Options{call: d.call, TTL: 300 * time.Millisecond})
			for range 3 { // some park, the last one crashes
				select {
				case job := <-d.pending:
					d.run(l, job, closedYield, false)
				case <-d.allDone:
				}
			}
			select {
			case job := <-d.pending:
				d.run(l, job, closedYield, d.left.Load() > half)
			case <-d.allDone:
			}
			_ = l.Close()
			if d.left.Load() <= half {
				return
			}
		}
	})
	redistest.Eventually(t, 2*time.Minute, func() bool {
		select {
		case <-d.allDone:
			return true
		default:
			return t.Failed()
		}
	}, "all jobs done; %s", stringer(func() string { return fmt.Sprint(d.left.Load(), " are left") }))
	if t.Failed() {
		t.FailNow()
	}
	wg.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for job, n := range d.runs {
		if n != 1 {
			t.Errorf("job %d was done %d times", job, n)
		}
	}
	if d.trips.Load() == 0 {
		t.Error("nothing was called")
	}
	t.Logf("N=%d: %d jobs, %d called", d.limit, len(d.runs), d.trips.Load())
	watch := newLocker(t, s.Client(t))
	for _, key := range d.keys {
		free(t, watch.Semaphore(key, d.limit), soon)
	}
}
