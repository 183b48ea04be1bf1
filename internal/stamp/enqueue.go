package stamp

import (
	"context"
	"maps"
	"math"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Enqueueing is a task that is about to be enqueued, with its options.
type Enqueueing struct {
	Task *asynq.Task
	Info *asynq.TaskInfo // what asynq makes of the task and its options

	IsUnique bool         // the task has asynq.Unique
	unique   asynq.Option // that of the call; nil: none
}

// IsBaked reports whether the task has asynq.Unique from asynq.NewTask: then nothing tells for how long.
func (e *Enqueueing) IsBaked() bool { return e.IsUnique && e.unique == nil }

// Compose returns what asynq makes of the task and its options: those of the call, and those given to asynq.NewTask,
// which nothing else tells. It enqueues the task with a client that sends nothing. The error is asynq's.
func Compose(ctx context.Context, task *asynq.Task, opts []asynq.Option) (*Enqueueing, error) {
	dry := &dryRedis{}
	info, err := asynq.NewClientFromRedisClient(dry).EnqueueContext(ctx, task, opts...)
	if err != nil {
		return nil, err
	}
	e := &Enqueueing{Task: task, Info: info, IsUnique: dry.unique}
	for _, opt := range opts {
		if opt != nil && opt.Type() == asynq.UniqueOpt {
			e.unique = opt
		}
	}
	return e, nil
}

// Enqueue enqueues the task with the stamp in its header, and the reserved attempt.
func (e *Enqueueing) Enqueue(ctx context.Context, client *asynq.Client, s Stamp) (*asynq.TaskInfo, error) {
	info := e.Info
	headers := maps.Clone(e.Task.Headers())
	if headers == nil {
		headers = make(map[string]string, 1)
	}
	headers[Header] = s.Text(e.Task)
	maxRetry := info.MaxRetry
	if maxRetry < math.MaxInt32 {
		maxRetry++
	}
	opts := []asynq.Option{ // their zero values are asynq's
		asynq.Queue(info.Queue), asynq.TaskID(info.ID), asynq.MaxRetry(maxRetry), asynq.Timeout(info.Timeout),
		asynq.Deadline(info.Deadline), asynq.Retention(info.Retention),
	}
	if info.Group != "" {
		opts = append(opts, asynq.Group(info.Group))
	}
	if info.State == asynq.TaskStateScheduled {
		opts = append(opts, asynq.ProcessAt(info.NextProcessAt))
	}
	if e.unique != nil {
		opts = append(opts, e.unique)
	}
	return client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(e.Task.Type(), e.Task.Payload(), headers), opts...)
}

// dryRedis answers the commands with which asynq enqueues one task, as Redis does for a new one. asynq calls no others.
type dryRedis struct {
	redis.UniversalClient

	unique bool // the task has asynq.Unique
}

// SAdd adds a queue.
func (*dryRedis) SAdd(context.Context, string, ...any) *redis.IntCmd {
	return redis.NewIntResult(1, nil)
}

// EvalSha runs the script that enqueues, schedules or groups a task.
func (d *dryRedis) EvalSha(_ context.Context, _ string, keys []string, _ ...any) *redis.Cmd {
	for _, key := range keys {
		_, after, _ := strings.Cut(key, "}:") // asynq:{<queue>}:unique:...
		d.unique = d.unique || strings.HasPrefix(after, "unique:")
	}
	return redis.NewCmdResult(int64(1), nil)
}
