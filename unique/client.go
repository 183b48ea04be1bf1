package unique

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/lock"
)

var _ automutex.Enqueuer = (*Client)(nil)

// Client enqueues tasks as an asynq.Client does, and tasks with a [Rule] only once for their key. Make a Client with
// [New]. It has nothing to close, and closes nothing that it was given. Safe for concurrent use.
type Client struct {
	enqueuer  automutex.Enqueuer
	inspector *asynq.Inspector
	rdb       redis.UniversalClient // often on asynq's Redis; nil: of another type
	engine    *engine.Engine        // claims, and the lock around what takes several steps
	keys      *automutex.KeyMaker
	rules     tasktype.Map[*rule]

	grace     time.Duration // how long an enqueue may be under way; see enqueueTimeout
	changeTTL time.Duration // of the lock around the deletion of an ended task
	patience  time.Duration // how long a call waits for another producer

	enqueued sync.Map     // the queues that it has enqueued a task in
	looks    atomic.Int32 // how often it looked whether rdb is on asynq's Redis
	shared   atomic.Bool  // rdb is
}

// DefaultWait is how long a call waits for another producer if [Config].Wait is 0.
const DefaultWait = 5 * time.Second

const (
	// enqueueTimeout bounds what is done between a claim and the answer to its enqueue, on top of the caller's own
	// context.
	enqueueTimeout = 5 * time.Second

	// grace is how old a claim must be, or what was announced in it, before the absence of its task means that there will
	// be none, if nobody has confirmed it. go-redis begins no attempt when enqueueTimeout is over, and ends one with its
	// own timeouts (dial 5 s, write 3 s by default).
	grace = 15 * time.Second

	// claimLife is how long a claim lasts that nobody ends: only garbage is collected. keptLife is that of a claim that
	// stays when its task is archived: asynq keeps archived tasks for 90 days.
	claimLife = claims.Kept
	keptLife  = 100 * 24 * time.Hour

	// changeTTL is how long the lock around the deletion of an ended task stays taken after its producer died; it is
	// renewed meanwhile. DefaultWait is longer, so that the next one waits that out.
	changeTTL = 2 * time.Second

	// pickUpTime is how long a task may be with a worker whose Guard has not said what it does with it. After that time
	// the worker has no Guard.
	pickUpTime = time.Second

	// tries is how often a call begins again at once because the task in its way changed while it was looked at.
	tries = 5
)

// New makes a Client. client enqueues the tasks: an *asynq.Client, or what takes the same options. inspector is
// asynq's. Both are on asynq's Redis. rdb is a client on the Redis of the workers' Guard, which may be another one; of
// an asynq.RedisConnOpt it is opt.MakeRedisClient().(redis.UniversalClient). New does no I/O. The error joins all
// mistakes. Each mistake in cfg is an *automutex.FieldError, which names the rule and the field. For tasks that an
// *automutex.Client runs in order, New refuses Replace and Postpone, and HoldKey without KeepArchived; if that Client
// is in a wrapper, EnqueueContext does.
func New(client automutex.Enqueuer, inspector *asynq.Inspector, rdb lock.Client, cfg Config) (*Client, error) {
	var problems []error
	if client == nil || client == automutex.Enqueuer((*asynq.Client)(nil)) ||
		client == automutex.Enqueuer((*automutex.Client)(nil)) {
		problems = append(problems, errors.New("unique: the client is nil: pass the one that tasks are enqueued with"))
	}
	if inspector == nil {
		problems = append(problems, errors.New("unique: the asynq.Inspector is nil: pass one on the Redis of the client "+
			"that enqueues"))
	}
	if err := engine.CheckClient(rdb); err != nil {
		problems = append(problems, fmt.Errorf("unique: %w", err))
	}
	rules, mistakes := compile(cfg.Rules)
	for _, mistake := range mistakes {
		problems = append(problems, fmt.Errorf("unique: %w", mistake))
	}
	var tasks tasktype.Map[*rule]
	types := make([]string, len(rules))
	for i, r := range rules {
		tasks.Add(r.Task, r)
		types[i] = r.Task
	}
	if ordering, ok := client.(*automutex.Client); ok && len(problems) == 0 {
		// The longer one of two rules for a type is a type that both are for.
		refused := map[*rule]bool{}
		for taskType, onArchive := range ordering.Orders(types...) {
			if r, found := tasks.Find(taskType); found && !refused[r] {
				if err := r.fitsOrder(onArchive == automutex.HoldKey); err != nil {
					problems, refused[r] = append(problems, err), true
				}
			}
		}
	}
	keys, err := automutex.NewKeyMaker(automutex.Config{Rules: keyRules(rules), Prefix: cfg.Prefix, HashKeys: cfg.HashKeys,
		Decode: cfg.Decode})
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, wrapped := range joined.Unwrap() {
			if mistake := new(automutex.FieldError); errors.As(wrapped, &mistake) {
				problems = append(problems, fmt.Errorf("unique: %w", mistake))
			}
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c := &Client{
		enqueuer: client, inspector: inspector, rules: tasks, keys: keys,
		engine: engine.New(engine.Options{Client: rdb, Prefix: cfg.Prefix}),
		grace:  grace, changeTTL: changeTTL, patience: max(cmp.Or(cfg.Wait, DefaultWait), 0),
	}
	c.rdb, _ = rdb.(redis.UniversalClient)
	return c, nil
}

// Enqueue is [Client.EnqueueContext] with context.Background().
func (c *Client) Enqueue(task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueContext(context.Background(), task, opts...)
}

// EnqueueContext enqueues a task as asynq.Client does, unless another task blocks its key: then the rule's Duplicate
// decides. A task that no rule matches is enqueued by asynq alone.
//
// For a task with a rule the options asynq.TaskID and asynq.Unique are refused, and so is an asynq.Queue that is not
// the rule's. In the task itself TaskID and Queue have no effect; Unique has asynq refuse equal tasks too, with its own
// asynq.ErrDuplicateTask.
//
// A [*DuplicateError] means that another task blocks the key; the call has enqueued nothing. (Only if Redis' reply to
// its own enqueue was lost, and go-redis has sent that again, that task is the call's own.) [ErrEnqueueUnderWay] means
// that other producers were enqueuing the task that blocks the key, or replacing it, for all of [Config].Wait. An
// *automutex.KeyError means that no key can be made from the task. Other errors say that the asynq.Inspector looks at
// another Redis or database than the client, or that asynq has lost the task in the way from its lists. With all these
// nothing was enqueued. After any other error the task was enqueued once or not at all, since Redis' reply may be lost.
// The next call for the key finds out which.
//
// ctx bounds the round trips to Redis, except those of asynq's Inspector, which takes no context. The Inspector is used
// when there is a duplicate.
func (c *Client) EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil {
		return nil, errNilTask
	}
	r, _ := c.rules.Find(task.Type())
	if r == nil {
		return c.enqueuer.EnqueueContext(ctx, task, opts...)
	}
	key, err := c.key(ctx, r, task, opts)
	if err != nil {
		return nil, err
	}
	if key == "" { // nothing to be unique by
		return c.enqueuer.EnqueueContext(ctx, task, slices.Concat(opts, []asynq.Option{asynq.Queue(r.Queue)})...)
	}
	req := &request{client: c, rule: r, key: key, id: newID(r, key), task: task, opts: opts}
	info, err := req.run(ctx)
	if err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
		return nil, fmt.Errorf("unique: %s: key %q: %w", r.where(), key, err)
	}
	return info, err
}

var errNilTask = errors.New("unique: the task is nil: pass one that asynq.NewTask made")

// key is the key of a task that the rule matches, once its options are fit; empty: it has none.
func (c *Client) key(ctx context.Context, r *rule, task *asynq.Task, opts []asynq.Option) (string, error) {
	if err := r.checkOptions(opts); err != nil {
		return "", err
	}
	keys, err := c.keys.Keys(ctx, task)
	if err != nil {
		return "", fmt.Errorf("unique: %s: %w", r.where(), err)
	}
	if len(keys) == 0 {
		return "", nil // its Key, or Config.Decode, answered NoLock, or it lacks a field of an Optional rule
	}
	return keys[0], nil // one rule for each Task, so one key
}

// ErrEnqueueUnderWay is what a call fails with if other producers were enqueuing the task that blocks the key, or
// replacing it, for all of [Config].Wait. Nothing was enqueued, and it is not known yet whether there will be a
// duplicate, so it is not asynq.ErrDuplicateTask. Try again.
var ErrEnqueueUnderWay = errors.New("another producer's enqueue for this key is under way")

// lostError says that asynq has a task that is in none of its lists: somebody has removed those by hand.
func lostError(queue, id string) error {
	return fmt.Errorf("asynq has lost task %q of queue %q from its lists, so the task never runs, and blocks the key: "+
		"delete it with redis-cli DEL 'asynq:{%s}:t:%s'", id, queue, queue, id)
}

// DuplicateError says that a task was not enqueued, and which other task blocks its key. It Is asynq.ErrDuplicateTask.
// The call has enqueued and changed nothing. A DuplicateError is immutable.
type DuplicateError struct {
	Rule      string          // the Task of the rule
	Key       string          // the key, as automutex.Guard.Keys returns it
	ID, Queue string          // the task that blocks the key, for asynq's Inspector
	State     asynq.TaskState // of that task; asynq.TaskStateCompleted if Gone is true
	// Gone is true if asynq does not have that task any more, and it blocks the key all the same: the time of [For] is not
	// over.
	Gone bool
}

// Error names the rule, the key, and the task that blocks the key.
func (e *DuplicateError) Error() string {
	var b strings.Builder
	state := "gone from asynq"
	if !e.Gone {
		state = e.State.String()
	}
	fmt.Fprintf(&b, "unique: rule %q: key %q: task %q in queue %q is in the way: it is %s", e.Rule, e.Key, e.ID, e.Queue,
		state)
	if e.State == asynq.TaskStateArchived || e.State == asynq.TaskStateCompleted {
		b.WriteString("; it is in the way until asynq drops it, or until the window of For has passed")
	}
	return b.String()
}

// Unwrap returns asynq.ErrDuplicateTask.
func (e *DuplicateError) Unwrap() error { return asynq.ErrDuplicateTask }

// Result is the result of one task of [Client.EnqueueAll], as [Client.EnqueueContext] returns it.
type Result struct {
	Info *asynq.TaskInfo
	Err  error
}

// EnqueueAll enqueues tasks one after the other, and returns a result for each. opts apply to all tasks. An error of
// one task does not stop the others. When ctx ends, tasks that are not under way fail with its error.
func (c *Client) EnqueueAll(ctx context.Context, tasks []*asynq.Task, opts ...asynq.Option) []Result {
	results := make([]Result, len(tasks))
	for i, task := range tasks {
		if results[i].Err = ctx.Err(); results[i].Err == nil {
			results[i].Info, results[i].Err = c.EnqueueContext(ctx, task, opts...)
		}
	}
	return results
}
