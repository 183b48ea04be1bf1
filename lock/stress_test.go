package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Four processes with eight goroutines each: at most N hold at any time by their own beliefs, everybody gets its turns,
// fences grow, and nothing is left in the end.
func TestRule01_Stress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		for _, limit := range []int{1, 3} {
			t.Run(fmt.Sprint("N=", limit), func(t *testing.T) {
				t.Parallel()
				const lockers, each = 4, 8
				sections := 100
				if s.Kind() != redistest.KindReal {
					sections = 25 // under the race detector these are ten times slower
				}
				rdb, name := s.Client(t), redistest.Name(t)
				var inside, lastFence atomic.Int64
				var turns [lockers * each]atomic.Int64
				var wg sync.WaitGroup
				for i := range lockers {
					// Different TTLs: a holder's is its own affair.
					m := newLocker(t, s.Client(t)).Semaphore(name, limit, lock.TTL(time.Duration(30+10*i)*time.Second), lock.Fenced())
					for j := range each {
						redistest.Go(&wg, func() {
							for range sections {
								le, err := m.Lock(t.Context())
								if err != nil {
									t.Errorf("Lock: %v", err)
									return
								}
								if now := inside.Add(1); now > int64(limit) {
									t.Errorf("%d hold a lock for %d", now, limit)
								}
								if fence := fenceOf(t, le); limit == 1 && lastFence.Swap(fence) >= fence {
									t.Errorf("fence %d is not higher than the one before", fence)
								}
								turns[i*each+j].Add(1)
								inside.Add(-1)
								if err := le.Unlock(t.Context()); err != nil || t.Failed() {
									t.Errorf("Unlock: %v", err)
									return
								}
							}
						})
					}
				}
				done := make(chan struct{})
				go func() { defer close(done); wg.Wait() }()
				redistest.Eventually(t, 2*time.Minute, func() bool {
					if life := rdb.PTTL(t.Context(), "automutex:{"+name+"}").Val(); life == -1 {
						t.Error("the key has no TTL")
					}
					select {
					case <-done:
						return true
					default:
						return false
					}
				}, "all sections")
				for i := range turns {
					if n := turns[i].Load(); n != int64(sections) && !t.Failed() {
						t.Errorf("%d turns, want %d", n, sections)
					}
				}
				free(t, newLocker(t, rdb).Mutex(name))
			})
		}
	})
}

// Waiters that come, give up, try and hold in all orders: at most N believe, and no waiter is left behind.
func TestStress_waitersThatGiveUp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		const limit = 2
		name := redistest.Name(t)
		var inside, served, gaveUp atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			m := newLocker(t, s.Client(t)).Semaphore(name, limit)
			for i := range 6 {
				redistest.Go(&wg, func() {
					for j := range 30 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(3+(i*j)%25)*2*time.Millisecond)
						le, err := m.Lock(ctx)
						if err != nil {
							// A machine that is busy may not answer before the context ends.
							if !errors.Is(err, lock.ErrBusy) && !errors.Is(err, ctx.Err()) {
								t.Errorf("Lock: %v", err)
							}
							gaveUp.Add(1)
							cancel()
							continue
						}
						if n := inside.Add(1); n > limit {
							t.Errorf("%d hold a lock for %d", n, limit)
						}
						<-ctx.Done()
						inside.Add(-1)
						served.Add(1)
						cancel()
						if err := le.Unlock(ctx); err != nil {
							t.Errorf("Unlock: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
		if gaveUp.Load() == 0 {
			t.Errorf("%d served, and nobody gave up", served.Load())
		}
		m := newLocker(t, s.Client(t)).Semaphore(name, limit)
		free(t, m) // an ask that was under way when its caller returned is undone when it has ended
		takesAndUnlocks(t, m)
		free(t, m)
	})
}

// depot is a queue of jobs as a task queue would be: each is pending, active, parked or done, and what is parked comes back
// when it is called.
type depot struct {
	t       testing.TB
	limit   int
	keys    []string
	pending chan int
	inside  []atomic.Int64 // by key
	left    atomic.Int64
	trips   atomic.Int64
	allDone chan struct{}

	mu     sync.Mutex // guards the fields below
	states []jobState
	runs   []int
}

type jobState int

const (
	jobPending jobState = iota
	jobActive
	jobParked
	jobDone
)

func newDepot(t testing.TB, limit, keys, jobs int) *depot {
	d := &depot{t: t, limit: limit, pending: make(chan int, jobs), states: make([]jobState, jobs), runs: make([]int, jobs), inside: make([]atomic.Int64, keys), allDone: make(chan struct{})}
	for range keys {
		d.keys = append(d.keys, redistest.Name(t))
	}
	for job := range jobs {
		d.pending <- job
	}
	d.left.Store(int64(jobs))
	return d
}

// to moves a job on.
func (d *depot) to(job int, state jobState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.states[job] = state; state == jobPending {
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
func (d *depot) run(l *lock.Locker, job int, yield <-chan struct{}, crash bool) {
	d.to(job, jobActive)
	key := job % len(d.keys)
	le, err := insider.LockOrPark(context.Background(), l.Semaphore(d.keys[key], d.limit, lock.Note(strconv.Itoa(job))), yield)
	if err != nil {
		var busy *lock.BusyError
		if errors.As(err, &busy) && busy.Parked {
			d.to(job, jobParked)
			return
		}
		// Its own note holds: the process that crashed with it.
		if own := busy != nil && busy.Note == strconv.Itoa(job); !own && !errors.Is(err, lock.ErrClosed) {
			d.t.Errorf("LockOrPark: %v", err)
		}
		d.to(job, jobPending)
		return
	}
	if n := d.inside[key].Add(1); n > int64(d.limit) && le.Held() { // a lease that ran out in a stall proves nothing
		d.t.Errorf("%d hold a lock for %d", n, d.limit)
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
	d.to(job, jobDone) // before the release: what is called then is another
	d.inside[key].Add(-1)
	if err := le.Unlock(context.Background()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
		d.t.Errorf("Unlock: %v", err)
	}
	if d.left.Add(-1) == 0 {
		close(d.allDone)
	}
}

// Jobs of three processes on a few keys: some wait, some park at once, some after a while, processes crash while they hold,
// or with what they parked. Nobody is let in who should not be, each job is done once, and nothing is left.
func TestStress_parked(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		for _, limit := range []int{1, 2} {
			t.Run(fmt.Sprint("N=", limit), func(t *testing.T) {
				t.Parallel()
				d := newDepot(t, limit, 4/limit, 200)
				half := d.left.Load() / 2
				var wg sync.WaitGroup
				for range 3 {
					l := newCaller(t, s.Client(t), d.call)
					for i := range 4 {
						redistest.Go(&wg, func() {
							for {
								select {
								case <-d.allDone:
									return
								case job := <-d.pending:
									switch i {
									case 0:
										d.run(l, job, nil, false)
									case 1:
										d.run(l, job, parkNow, false)
									default:
										yield := make(chan struct{})
										timer := time.AfterFunc(rand.N(3*time.Millisecond), func() { close(yield) })
										d.run(l, job, yield, false)
										timer.Stop()
									}
								}
							}
						})
					}
				}
				redistest.Go(&wg, func() { // processes that crash
					for range 6 {
						l := insider.New(s.Client(t), lock.Options{TTL: 300 * time.Millisecond}, d.call, nil, nil)
						for n := range 4 { // some park, the last one crashes
							select {
							case job := <-d.pending:
								d.run(l, job, parkNow, n == 3 && d.left.Load() > half)
							case <-d.allDone:
							}
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
				}, "all jobs done; %s left", stringer(func() string { return fmt.Sprint(d.left.Load()) }))
				if t.Failed() {
					t.FailNow()
				}
				wg.Wait()
				d.mu.Lock()
				defer d.mu.Unlock()
				if slices.ContainsFunc(d.runs, func(n int) bool { return n != 1 }) || d.trips.Load() == 0 {
					t.Errorf("jobs were done %v times, and %d called", d.runs, d.trips.Load())
				}
				for _, key := range d.keys {
					free(t, newLocker(t, s.Client(t)).Semaphore(key, d.limit))
				}
			})
		}
	})
}
