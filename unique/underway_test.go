package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// answered is what a call of Enqueue gave.
type answered struct {
	info *asynq.TaskInfo
	err  error
}

// heldEnqueue makes a producer whose enqueue stands still, with its claim taken, until
// goOn is closed; then the enqueue fails with fails, or is done. begun is closed when it
// stands still.
func (r *rig) heldEnqueue(rule Rule, goOn <-chan struct{}, fails error) (c *Client, begun <-chan struct{}) {
	there := make(chan struct{})
	hook := &redistest.FailHook{}
	first := true
	hook.Before(func(cmd redis.Cmder) error {
		if !isEnqueue(cmd, r.queue) {
			return nil
		}
		if first {
			first = false
			close(there)
			<-goOn
		}
		return fails
	})
	rdb := r.s.Client(r.t)
	rdb.AddHook(hook)
	return r.producer(rdb, rule), there
}

// While the enqueue of another producer is under way its task is no duplicate yet: a
// call waits for what becomes of it.
func TestClaim_waitsForTheEnqueueOfAnotherProducer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilStart, For(time.Hour)} {
			for _, duplicate := range []Duplicate{Reject, Join} {
				for _, fails := range []error{nil, redistest.ReplyError("OOM command not allowed")} {
					rule := Rule{Task: "reindex", On: []string{"id"}, Until: until, Duplicate: duplicate}
					r := start(t, s, rule)
					r.patience = longest
					where := fmt.Sprintf("%s, %s, the other one fails with %v", until, duplicate, fails)
					goOn := make(chan struct{})
					first, begun := r.heldEnqueue(rule, goOn, fails)
					one, two := make(chan answered, 1), make(chan answered, 1)
					enqueue := func(c *Client, text string, to chan<- answered) { // ends with the call, which is bounded
						info, err := c.Enqueue(task("reindex", "7", text))
						to <- answered{info, err}
					}
					go enqueue(first, "first", one)
					<-begun
					go enqueue(r.Client, "second", two)
					select {
					case got := <-two:
						t.Errorf("%s: it did not wait: %v, %v", where, got.info, got.err)
						two <- got
					case <-time.After(50 * time.Millisecond): // it waits, or is slow: then nothing is shown
					}
					close(goOn)
					a, b := <-one, <-two
					there := texts(r.tasks(r.queue, "reindex"))
					switch {
					case fails != nil && (a.err == nil || b.err != nil || !slices.Equal(there, []string{"second"})):
						t.Errorf("%s: %v, %v; there are %q", where, a.err, b.err, there)
					case fails != nil:
					case a.err != nil || !slices.Equal(there, []string{"first"}):
						t.Errorf("%s: %v; there are %q", where, a.err, there)
					case duplicate == Reject && !errors.Is(b.err, asynq.ErrDuplicateTask), duplicate == Join && (b.err != nil || b.info.ID != a.info.ID):
						t.Errorf("%s: answered %v, %v", where, b.info, b.err)
					}
				}
			}
		}
	})
}

// The wait for another producer is bounded, by a time and by the context; what is
// answered then is not that the task is a duplicate.
func TestClaim_doesNotWaitForEverForTheEnqueueOfAnotherProducer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart, Duplicate: Join}
		r := start(t, s, rule)
		goOn := make(chan struct{})
		first, begun := r.heldEnqueue(rule, goOn, nil)
		one := make(chan answered, 1)
		go func() { // ends with the call, when goOn is closed
			info, err := first.EnqueueContext(t.Context(), task("reindex", "7", "first"))
			one <- answered{info, err}
		}()
		<-begun
		r.patience = 20 * time.Millisecond
		if info, err := r.Enqueue(task("reindex", "7", "second")); err == nil || errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("answered %v, %v", info, err)
		}
		r.patience = longest
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if info, err := r.EnqueueContext(ctx, task("reindex", "7", "third")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("answered %v, %v", info, err)
		}
		close(goOn)
		<-one
	})
}
