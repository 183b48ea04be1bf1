package unique

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// Result is the result of one task of [Client.EnqueueAll], as [Client.EnqueueContext]
// returns it.
type Result struct {
	Info *asynq.TaskInfo
	Err  error
}

// maxConcurrent is how many tasks of one EnqueueAll are enqueued at a time.
const maxConcurrent = 16

// EnqueueAll enqueues many tasks, up to 16 at a time, and returns a result for each, in the
// order of tasks. opts apply to all tasks. Tasks with the same key are enqueued in their
// order, so that under [Replace] and [Postpone] the last one wins. Tasks that the client runs in order are enqueued in their order, one at a time;
// so are all tasks if the client is neither an *asynq.Client nor an *automutex.Client, since it may run them in order. Other
// tasks without a rule are enqueued in any order. An error of one task does not stop the others. When ctx ends, tasks
// that are not under way fail with its error.
func (c *Client) EnqueueAll(ctx context.Context, tasks []*asynq.Task, opts ...asynq.Option) []Result {
	results := make([]Result, len(tasks))
	lanes := make([][]func(), maxConcurrent)
	for i, task := range tasks {
		lane, enqueue := c.plan(ctx, i, task, opts)
		if task != nil && c.mayOrder(task.Type()) {
			lane = 0
		}
		lanes[lane] = append(lanes[lane], func() {
			if err := ctx.Err(); err != nil {
				results[i].Err = err
				return
			}
			results[i].Info, results[i].Err = enqueue()
		})
	}
	// A goroutine for each lane that has tasks: it ends with the last of them, and
	// each writes results of its own.
	var running sync.WaitGroup
	for _, lane := range lanes {
		if len(lane) == 0 {
			continue
		}
		running.Add(1)
		go func() {
			defer running.Done()
			for _, enqueue := range lane {
				enqueue()
			}
		}()
	}
	running.Wait()
	return results
}

// mayOrder reports whether the client may run tasks of that type in order.
func (c *Client) mayOrder(taskType string) bool {
	switch client := c.enqueuer.(type) {
	case *asynq.Client:
		return false
	case *automutex.Client:
		_, ordered := client.Orders(taskType)[taskType]
		return ordered
	}
	return true
}

// laneSeed spreads keys over lanes; one key, one lane.
var laneSeed = maphash.MakeSeed()

// plan gives the lane of the i-th task, and what enqueues it.
func (c *Client) plan(ctx context.Context, i int, task *asynq.Task, opts []asynq.Option) (lane int, enqueue func() (*asynq.TaskInfo, error)) {
	lane = i % maxConcurrent
	if task == nil {
		return lane, func() (*asynq.TaskInfo, error) { return nil, errNilTask }
	}
	r, _ := c.rules.Find(task.Type())
	if r == nil {
		return lane, func() (*asynq.TaskInfo, error) { return c.enqueuer.EnqueueContext(ctx, task, opts...) }
	}
	key, err := c.key(ctx, r, task, opts)
	if err != nil {
		return lane, func() (*asynq.TaskInfo, error) { return nil, err }
	}
	if key == "" { // nothing to be unique by
		return lane, func() (*asynq.TaskInfo, error) {
			return c.enqueuer.EnqueueContext(ctx, task, slices.Concat(opts, []asynq.Option{asynq.Queue(r.Queue)})...)
		}
	}
	lane = int(maphash.String(laneSeed, key) % maxConcurrent)
	return lane, func() (*asynq.TaskInfo, error) { return c.enqueueOnce(ctx, r, key, task, opts) }
}

var errNilTask = errors.New("unique: the task is nil: pass one that asynq.NewTask made")
