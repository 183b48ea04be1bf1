package stamp

import (
	"context"
	"maps"
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

// Compose returns what asynq makes of the task and its options, also those given to asynq.NewTask, which nothing else
// tells: it enqueues the task with a client that sends nothing. The error is asynq's.
func Compose(ctx context.Context, task *asynq.Task, opts []asynq.Option) (*Enqueueing, error) {
	call := &dryCall{Context: ctx}
	info, err := dry.EnqueueContext(call, task, opts...)
	if err != nil {
		return nil, err
	}
	e := &Enqueueing{Task: task, Info: info, IsUnique: call.unique}
	for _, opt := range opts {
		if opt != nil && opt.Type() == asynq.UniqueOpt {
			e.unique = opt
		}
	}
	return e, nil
}

// Enqueue enqueues the task with the stamp in its header.
func (e *Enqueueing) Enqueue(ctx context.Context, client *asynq.Client, s Stamp) (*asynq.TaskInfo, error) {
	info := e.Info
	headers := maps.Clone(e.Task.Headers())
	if headers == nil {
		headers = make(map[string]string, 1)
	}
	headers[Header] = s.Text(e.Task)
	opts := []asynq.Option{ // their zero values are asynq's
		asynq.Queue(info.Queue), asynq.TaskID(info.ID), asynq.MaxRetry(s.Told()), asynq.Timeout(info.Timeout),
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

var dry = asynq.NewClientFromRedisClient(dryRedis{})

type dryCall struct {
	context.Context

	unique bool // the task has asynq.Unique
}

// dryRedis answers what asynq sends to enqueue one task, as Redis for a new one.
type dryRedis struct{ redis.UniversalClient }

func (dryRedis) SAdd(context.Context, string, ...any) *redis.IntCmd {
	return redis.NewIntResult(1, nil)
}

func (dryRedis) EvalSha(ctx context.Context, _ string, keys []string, _ ...any) *redis.Cmd {
	call := ctx.(*dryCall) //nolint:forcetypeassert // asynq passes on that of EnqueueContext
	for _, key := range keys {
		_, after, _ := strings.Cut(key, "}:") // asynq:{<queue>}:unique:...
		call.unique = call.unique || strings.HasPrefix(after, "unique:")
	}
	return redis.NewCmdResult(int64(1), nil)
}
