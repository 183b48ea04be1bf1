package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Several rules on one task.

// transfers are the rules of a transfer between two accounts.
func transfers(wait time.Duration, busy automutex.Policy) []automutex.Rule {
	return []automutex.Rule{
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"from"}, Wait: wait, Busy: busy},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}, Wait: wait, Busy: busy},
	}
}

type transfer struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Many transfers in all directions, some from an account to itself: never two
// at one account, and none waits for another that waits for it.
func TestSeveral_transfersUnderLoad(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const accounts, tasks, workers = 5, 200, 10
		var mu sync.Mutex
		busy, done := [accounts]int{}, 0
		move := func(at transfer, by int) {
			mu.Lock()
			defer mu.Unlock()
			for _, account := range slices.Compact([]int{at.From, at.To}) {
				if busy[account] += by; busy[account] > 1 {
					t.Errorf("%d transfers at account %d", busy[account], account)
				}
			}
		}
		r := start(t, s, setup{
			workers: workers,
			served:  comingBack, // when all workers wait, the newest wait ends, and its task returns
			rules:   transfers(time.Minute, automutex.Retry),
			handler: func(_ context.Context, task *asynq.Task) error {
				var at transfer
				if err := json.Unmarshal(task.Payload(), &at); err != nil {
					return err
				}
				move(at, 1)
				<-time.After(time.Millisecond) // the work
				move(at, -1)
				mu.Lock()
				done++
				mu.Unlock()
				return nil
			},
		})
		random := rand.New(rand.NewPCG(1, 2))
		var ids []string
		for range tasks {
			ids = append(ids, r.enqueue("transfer", transfer{random.IntN(accounts), random.IntN(accounts)}))
		}
		for _, id := range ids {
			r.await(id, asynq.TaskStateCompleted)
		}
		if done != tasks {
			t.Errorf("%d transfers are done, of %d", done, tasks)
		}
		if events := r.seen.list(automutex.EventLost); len(events) > 0 {
			t.Errorf("%d events, such as %v", len(events), events[0])
		}
		for account := range accounts {
			if key := string(rune('0' + account)); r.locked("account", key) {
				t.Errorf("account %s stayed taken", key)
			}
		}
	})
}

// from = to: one lock, found under both names.
func TestSeveral_equalKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: transfers(0, automutex.Retry)})
		id := r.enqueue("transfer", transfer{3, 3}, asynq.MaxRetry(0))
		run := r.stage.next(t)
		from, ok := automutex.LeaseOf(run.ctx, "from")
		to, ok2 := automutex.LeaseOf(run.ctx, "to")
		innermost, ok3 := automutex.Lease(run.ctx)
		if !ok || !ok2 || !ok3 || from != to || from != innermost {
			t.Errorf("got %v %v, %v %v, %v", from, ok, to, ok2, innermost)
		}
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		if kinds := r.seen.kindsOf(id); !slices.Equal(kinds, []automutex.EventKind{automutex.EventAcquired, automutex.EventReleased}) {
			t.Errorf("events %v", kinds)
		}
	})
}

// The rule that is busy names itself, and gives back what came before it. No
// cooldown comes of a task that did not run.
func TestSeveral_busyInTheMiddle(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "work", Name: "first", Scope: "a", Cooldown: time.Hour, Busy: automutex.Retry},
			{Task: "work", Name: "second", Scope: "b", Busy: automutex.RetryIn(time.Minute)},
			{Task: "work", Name: "third", Scope: "c", Busy: automutex.Skip},
		}})
		lease := r.take("b")
		id := r.enqueue("work", nil)
		info := r.awaitRetried(id, 0)
		if !strings.Contains(info.LastErr, `"second"`) {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if event := r.awaitEvent(automutex.EventRetried, id); event.Rule != "second" || event.Delay != time.Minute {
			t.Errorf("got %+v", event)
		}
		if r.locked("a") || r.locked("c") {
			t.Error("a key stayed taken")
		}
		r.stage.none(t)
		r.free(lease)
		r.rerun(id)
		run := r.stage.next(t)
		if !r.locked("a") || !r.locked("b") || !r.locked("c") {
			t.Error("it runs without all its locks")
		}
		third, _ := automutex.LeaseOf(run.ctx, "third")
		if innermost, ok := automutex.Lease(run.ctx); !ok || innermost != third {
			t.Error("Lease is not the one taken last")
		}
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		var released []string
		for _, event := range r.seen.list(automutex.EventReleased) {
			released = append(released, event.Rule)
		}
		if want := []string{"first", "third", "second", "first"}; !slices.Equal(released, want) {
			t.Errorf("released %v, want %v", released, want)
		}
	})
}

// The key of a lease is deleted while its handler runs, which is found out at
// the end if not before.
func TestSeveral_keyDeleted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: transfers(0, automutex.Retry)})
		id := r.enqueue("transfer", transfer{1, 2})
		run := r.stage.next(t)
		redistest.Must(t, r.rdb.Del(t.Context(), r.lockOf("account", "2").Key()).Err())
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		event := r.awaitEvent(automutex.EventLost, id)
		if event.Rule != "to" || !errors.Is(event.Err, lock.ErrLost) || !strings.Contains(r.log.Text(0), event.Key) {
			t.Errorf("got %+v", event)
		}
	})
}

// A handler that unlocks its lease itself is nothing to tell of.
func TestSeveral_unlockedByTheHandler(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: transfers(0, automutex.Retry)})
		id := r.enqueue("transfer", transfer{1, 2})
		run := r.stage.next(t)
		lease, _ := automutex.LeaseOf(run.ctx, "to")
		if err := lease.Unlock(run.ctx); err != nil {
			t.Error(err)
		}
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		if events := r.seen.list(automutex.EventLost, automutex.EventBackendError); len(events) > 0 {
			t.Errorf("events %v", events)
		}
	})
}
