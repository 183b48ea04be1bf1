package unique

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/lock"
)

// Client enqueues tasks as an asynq.Client does, and tasks with a [Rule] only once for their
// key. Make a Client with [New]. It has nothing to close, and closes nothing that it was
// given. Safe for concurrent use.
type Client struct {
	asynq     *asynq.Client
	inspector *asynq.Inspector
	locker    *lock.Locker // claims, and the lock around what takes several steps
	keys      *automutex.KeyMaker
	rules     tasktype.Map[*rule]

	grace     time.Duration // how long an enqueue may be under way; see enqueueTimeout
	changeTTL time.Duration // of the lock around several steps
	patience  time.Duration // how long a call waits for another producer

	self  string        // this Client, random
	count atomic.Uint64 // one for each ID it made

	// underway are the IDs of claims whose enqueue has not returned. What this
	// Client made and is not in here was enqueued, if it ever was: no need to
	// wait for the grace. mu guards it and is held for moments.
	mu       sync.Mutex
	underway map[string]struct{}
}

const (
	// enqueueTimeout bounds what is done between a claim and the answer to its
	// enqueue, on top of the caller's own context.
	enqueueTimeout = 5 * time.Second

	// grace is how old a claim must be before the absence of its task means that
	// there will be none. go-redis begins no attempt when enqueueTimeout is over,
	// and ends one with its own timeouts (dial 5 s, write 3 s by default).
	grace = 15 * time.Second

	// claimLife is how long a claim lasts that nobody ends. It only collects
	// garbage: what a claim stands for is its task, and a claim outlives its task
	// in no other way than by a crash.
	claimLife = 30 * 24 * time.Hour

	// changeTTL is how long the lock around several steps stays taken after its
	// producer died; it is renewed meanwhile. patience is longer, so that the next
	// one waits that out, and so is what it takes go-redis by default to notice that
	// a reply is lost, and to enqueue again.
	changeTTL = 2 * time.Second
	patience  = 5 * time.Second

	// tries bounds how often a call begins again because the task in its way
	// changed while it was looked at.
	tries = 20
)

// New makes a Client. client and inspector are asynq's, both on asynq's Redis. rdb is a client
// on the Redis of the workers' Guard, which may be another one. New does no I/O. The error
// joins all mistakes. Each mistake in cfg is an *automutex.FieldError, which names the rule
// and the field.
func New(client *asynq.Client, inspector *asynq.Inspector, rdb lock.Client, cfg Config) (*Client, error) {
	var problems []error
	if client == nil {
		problems = append(problems, errors.New("unique: the asynq.Client is nil: pass the one that tasks are enqueued with"))
	}
	if inspector == nil {
		problems = append(problems, errors.New("unique: the asynq.Inspector is nil: pass one on the Redis of the asynq.Client"))
	}
	if err := inner.CheckClient(rdb); err != nil {
		problems = append(problems, fmt.Errorf("unique: %w", err))
	}
	rules, mistakes := compile(cfg.Rules)
	for _, mistake := range mistakes {
		problems = append(problems, fmt.Errorf("unique: %w", mistake))
	}
	keys, err := automutex.NewKeyMaker(automutex.Config{Rules: keyRules(rules), Prefix: cfg.Prefix, HashKeys: cfg.HashKeys, Decode: cfg.Decode})
	for _, mistake := range fieldErrorsIn(err) {
		problems = append(problems, fmt.Errorf("unique: %w", mistake))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c := &Client{
		asynq:     client,
		inspector: inspector,
		locker:    lock.New(rdb, lock.Options{Prefix: cfg.Prefix}),
		keys:      keys,
		grace:     grace,
		changeTTL: changeTTL,
		patience:  patience,
		self:      strings.ToLower(rand.Text()[:10]),
		underway:  map[string]struct{}{},
	}
	for _, r := range rules {
		c.rules.Add(r.Task, r)
	}
	return c, nil
}

// fieldErrorsIn returns the errors that automutex.NewKeyMaker has joined.
func fieldErrorsIn(err error) (all []*automutex.FieldError) {
	joined, _ := err.(interface{ Unwrap() []error })
	if joined == nil {
		return nil
	}
	for _, err := range joined.Unwrap() {
		var mistake *automutex.FieldError
		if errors.As(err, &mistake) {
			all = append(all, mistake)
		}
	}
	return all
}

// Enqueue is [Client.EnqueueContext] with context.Background().
func (c *Client) Enqueue(task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueContext(context.Background(), task, opts...)
}

// EnqueueContext enqueues a task as asynq.Client does, unless another task blocks its key:
// then the rule's Duplicate decides. A task that no rule matches is enqueued by asynq alone.
//
// For a task with a rule the options asynq.TaskID and asynq.Unique are refused, and so is an
// asynq.Queue that is not the rule's. (EnqueueContext cannot see options in the task itself.
// There TaskID and Queue have no effect, and Unique applies in addition to the rule.)
//
// A [*DuplicateError] means that another task blocks the key; nothing was enqueued, unless its
// field Alike is true. An *automutex.KeyError means that no key can be made from the task;
// nothing was enqueued. After any other error the task was enqueued once or not at all, since
// Redis' reply may be lost. The next call for the key finds out which.
//
// ctx bounds the round trips to Redis, except those of asynq's Inspector, which takes no
// context. The Inspector is used when there is a duplicate.
func (c *Client) EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	_, enqueue := c.plan(ctx, 0, task, opts)
	return enqueue()
}

// key is the key of a task that the rule matches, once its options are fit; empty
// when the rule's Key, or Config.Decode, answers automutex.NoLock.
func (c *Client) key(ctx context.Context, r *rule, task *asynq.Task, opts []asynq.Option) (string, error) {
	if err := r.checkOptions(opts); err != nil {
		return "", err
	}
	keys, err := c.keys.Keys(ctx, task)
	if err != nil {
		return "", fmt.Errorf("unique: %s: %w", r.where(), err)
	}
	if len(keys) == 0 {
		return "", nil // its Key, or Config.Decode, answered NoLock
	}
	return keys[0], nil // one rule for each Task, so one key
}

func (c *Client) enqueueOnce(ctx context.Context, r *rule, key string, task *asynq.Task, opts []asynq.Option) (*asynq.TaskInfo, error) {
	req := &request{client: c, rule: r, key: key, task: task, opts: opts}
	var info *asynq.TaskInfo
	var err error
	switch {
	case r.Duplicate.supersedes():
		info, err = req.supersede(ctx)
	case r.Until.kind == untilDone:
		info, err = req.enqueueByID(ctx)
	default:
		info, err = req.byClaim(ctx)
	}
	if err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
		return nil, fmt.Errorf("unique: %s: key %q: %w", r.where(), key, err)
	}
	return info, err
}

// newID makes the ID of a task that has a claim.
func (req *request) newID() string {
	nonce := req.client.self + "." + strconv.FormatUint(req.client.count.Add(1), 36) + ".0"
	if req.rule.Until.kind == untilStart {
		return claim.ID(req.key, nonce)
	}
	return req.key + ":for:" + nonce
}

// begin and end say that the enqueue of a claim's task is under way.
func (c *Client) begin(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underway[id] = struct{}{}
}

func (c *Client) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.underway, id)
}

// settled tells whether this Client made the ID, and its enqueue has returned:
// a task that is not there by then will not come.
func (c *Client) settled(id string) bool {
	if !strings.Contains(id, ":"+c.self+".") {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, under := c.underway[id]
	return !under
}
