package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A task of three hot keys gives what it holds back each time that it parks on the next one, and yet it does not
// starve: while it waits, no more than three times as many tasks start as while a task of one of those keys waits.
func TestPark_taskOfThreeHotKeys(t *testing.T) {
	s := redistest.StartReal(t)
	key := func(n int) automutex.KeyFunc {
		return func(_ context.Context, t *asynq.Task) ([]string, error) {
			return []string{string(t.Payload()[n : n+1])}, nil
		}
	}
	var rules []automutex.Rule
	for n := range 3 {
		rules = append(rules, automutex.Rule{Task: "wide", Name: fmt.Sprint("wide", n), Scope: "account", Busy: automutex.Park, Key: key(n)})
	}
	for _, one := range []string{"single", "probe"} {
		rules = append(rules, automutex.Rule{Task: one, Scope: "account", Busy: automutex.Park, Key: key(0)})
	}
	var r *rig
	var starts atomic.Int64 // of single tasks
	var over atomic.Bool
	measured := make(chan int64, 4)
	var since atomic.Int64
	r = start(t, s, setup{rules: rules, workers: 4, handler: func(_ context.Context, task *asynq.Task) error {
		if task.Type() != "single" {
			n := starts.Load() - since.Load()
			if task.Type() == "wide" {
				n = -n - 1
			}
			measured <- n
			return nil
		}
		starts.Add(1)
		time.Sleep(5 * time.Millisecond) // the work, in which others come
		if !over.Load() {
			r.enqueue("single", string(task.Payload())) // so the line is always as long
		}
		return nil
	}})
	defer over.Store(true)
	var leases []*lock.Lease
	for n := range 3 {
		leases = append(leases, r.hold("account", fmt.Sprint(n)))
		for range 20 {
			r.enqueue("single", fmt.Sprint(n))
		}
	}
	for n := range 3 {
		redistest.Eventually(t, patience, func() bool {
			info := r.stored("account", fmt.Sprint(n))
			return info.Waiting+info.Parked == 20
		}, "all of key %d being in line", n)
	}
	for _, lease := range leases {
		r.free(lease)
	}
	var wides, singles []int64
	for range 9 {
		since.Store(starts.Load())
		r.enqueue("wide", "012")
		for n := range 3 {
			r.enqueue("probe", fmt.Sprint(n))
		}
		for range 4 {
			select {
			case n := <-measured:
				if n < 0 {
					wides = append(wides, -n-1)
				} else {
					singles = append(singles, n)
				}
			case <-time.After(patience):
				t.Fatalf("a task waits for longer than %s: %v, %v", patience, wides, singles)
			}
		}
	}
	slices.Sort(wides)
	slices.Sort(singles)
	t.Logf("other tasks that start meanwhile: %v for three keys, %v for one", wides, singles)
	if wide, single := wides[len(wides)/2], singles[len(singles)/2]; wide > 3*single+20 {
		t.Errorf("while a task of three keys waits, %d others start, and %d while one of a single key does", wide, single)
	}
}
