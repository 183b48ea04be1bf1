package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/mark"
	"github.com/automutex/automutex/internal/redistest"
)

// Many producers replace the task of one key at once. Each call is answered within its wait, and a task that
// was accepted runs, or a call that was not over before its own has put another one in its place. At no moment
// has a key two live tasks under UntilDone.
func TestSupersede_manyProducersOfOneKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = own(t, s)
		for _, until := range []Until{UntilDone, UntilStart} {
			for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
				for _, workers := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, workers %v", until, duplicate, workers), func(t *testing.T) {
						t.Parallel()
						rule := Rule{Task: "crowd", On: []string{"id"}, Until: until, Duplicate: duplicate}
						if duplicate != Replace {
							rule.MaxPostpone = time.Hour // a task that is due is superseded no more
						}
						crowd(t, s, rule, workers)
					})
				}
			}
		}
	})
}

func crowd(t *testing.T, s *redistest.Server, rule Rule, workers bool) {
	producers, each := 8, 5
	if s.Kind() == redistest.KindReal && redistest.All() {
		producers, each = 32, 10
	}
	r := start(t, s, rule)
	r.patience, r.workers, r.retryIn = longest, 4, 0
	var mu sync.Mutex // guards all below
	ran, tried := map[string]bool{}, map[string]bool{}
	work := func() {
		r.serve(func(_ context.Context, task *asynq.Task) error {
			mu.Lock()
			defer mu.Unlock()
			text := textOf(task.Payload())
			if !tried[text] {
				tried[text] = true
				return errors.New("fails the first time")
			}
			ran[text] = true
			return nil
		}, r.guard(automutex.Rule{Task: "crowd", On: []string{"id"}, Busy: automutex.Park}))
	}
	if workers {
		work()
	}
	type call struct {
		text       string
		began, end time.Time
	}
	var accepted []call
	var calls, watcher sync.WaitGroup
	over := make(chan struct{})
	if rule.Until == UntilDone && s.Kind() != redistest.KindCluster { // there the claim is elsewhere
		redistest.Go(&watcher, func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
					r.watch()
				}
			}
		})
	}
	for p := range producers {
		redistest.Go(&calls, func() {
			for i := range each {
				text := fmt.Sprintf("%d.%d", p, i)
				began := time.Now()
				_, err := r.Enqueue(task("crowd", "7", text))
				end := time.Now()
				mu.Lock()
				switch {
				case err == nil:
					accepted = append(accepted, call{text, began, end})
				case errors.Is(err, asynq.ErrDuplicateTask) && workers: // on a busy machine also a task that a worker has had for pickUpTime
				case errors.Is(err, ErrEnqueueUnderWay) && end.Sub(began) >= r.patience:
				default:
					t.Errorf("%s after %s: %v", text, end.Sub(began).Round(time.Millisecond), err)
				}
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	close(over)
	watcher.Wait()
	if !workers {
		if there := r.tasks(r.queue, "crowd", live...); len(there) != 1 {
			t.Errorf("%d tasks are there: %q", len(there), texts(there))
		}
		work()
	}
	redistest.Eventually(t, longest, func() bool {
		q, err := r.inspector.GetQueueInfo(r.queue) // all at one moment
		return err == nil && q.Pending+q.Active+q.Scheduled+q.Retry == 0
	}, "the tasks being done")
	mu.Lock()
	defer mu.Unlock()
	var last time.Time // when the latest call returned whose task ran
	for _, c := range accepted {
		if ran[c.text] && c.end.After(last) {
			last = c.end
		}
	}
	for _, c := range accepted {
		if !ran[c.text] && last.Before(c.began) {
			t.Errorf("%s was accepted and never ran, and no later one did", c.text)
		}
		if tried[c.text] && !ran[c.text] {
			t.Errorf("%s was accepted, failed, and was never run again", c.text)
		}
	}
	t.Logf("%d of %d accepted, %d ran", len(accepted), producers*each, len(ran))
}

// watch looks at the tasks of the queue and at their claim at one moment. One at most is live, apart from those that the claim
// calls newer or stale, which do not begin as things stand, and those in a worker that do not have the claim.
func (r *rig) watch() {
	q := "asynq:{" + r.queue + "}:"
	found, err := r.rdb.Eval(context.Background(), `
local found = {redis.call('GET', KEYS[4]) or ''}
local function add(ids)
  for _, id in ipairs(ids) do
    found[#found + 1] = id
  end -- of one list
end
add(redis.call('LRANGE', KEYS[1], 0, -1))
add(redis.call('ZRANGE', KEYS[2], 0, -1))
add(redis.call('ZRANGE', KEYS[3], 0, -1))
return found`, []string{q + "pending", q + "scheduled", q + "retry", r.claimKey("crowd")}).StringSlice()
	if err != nil {
		r.t.Errorf("watch: %v", err)
		return
	}
	words := append(strings.SplitN(found[0], " ", 7), make([]string, 6)...)
	begun := words[2] == string(mark.Begun)
	live := slices.DeleteFunc(found[1:], func(id string) bool {
		name := id[strings.LastIndexByte(id, ':')+1:]
		return words[3] == name || strings.Contains(words[5], ","+name+",") || begun && strings.HasSuffix(words[6], name)
	})
	if len(live) > 1 || begun && len(live) > 0 {
		r.t.Errorf("at one moment there are %q, and the claim is %q", live, found[0])
	}
}
