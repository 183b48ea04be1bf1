package automutex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// Client enqueues tasks for the workers of a [Guard] with the same [Config]. Safe for concurrent use; it needs no
// Close.
//
// A task that no rule matches goes to asynq unchanged. For every other task the Client does four things:
//
//   - It gives the task the next place in the order of its key if a rule says [Rule].InOrder.
//   - It parks the task at once if others are parked for its key: asynq has it as scheduled until its turn. So for
//     a task that is due now, without asynq.Unique, Deadline and Group, that package unique does not replace, and whose
//     first key is under [Park]. Without a key, or a reply within 1 s, the task is enqueued as it is.
//   - It says when the task was due, for [Rule].StartWithin, and its [StartBy].
//   - It reserves an attempt, so that no task waits in its worker since asynq would archive it: asynq is told one retry
//     more, as asynq.GetMaxRetry shows, and the Guard has the task archived when its handler has failed, or panicked
//     (no asynq.PanicError then), as often as the caller asked for, by which [LastAttempt] goes. If the last run did
//     not return, the task may run once more; an ordered one is then archived unrun. One of which [Fail] or
//     [AfterFailure] spends an attempt gets one more. A Guard with a rule for the task must run it.
type Client struct {
	rules  *ruleSet
	prefix string
	asynq  *asynq.Client
	engine *engine.Engine // nil if no rule parks; it grants no lock, and so has no goroutine
	tasks  *blocked.Tasks // nil if no rule is InOrder
	log    *slog.Logger
	told   sync.Once // the log says that the Inspector sees no task

	stampDeadline time.Duration

	parkAgain atomic.Int64 // when Redis is asked again (ns since 1970): each enqueueing would wait
}

// stampDeadline is when others may look whether a stamped task was enqueued. An Enqueue that takes more than half of it
// confirms its place before it returns.
const stampDeadline = 10 * time.Second

// NewClient makes a Client that enqueues through client. cfg is the workers' own: its Rules, Prefix, HashKeys and
// Decode make the same keys. rdb is the workers' Redis for locks; it is only used for rules that park. For those with
// InOrder cfg.Inspector, or one made from rdb, looks at asynq's tasks. NewClient does no I/O. The error joins all
// mistakes; each one in cfg is a [*FieldError].
func NewClient(rdb lock.Client, client *asynq.Client, cfg Config) (*Client, error) {
	unfit, none, blind := engine.CheckClient(rdb), error(nil), error(nil)
	if client == nil {
		none = errors.New("automutex: the asynq.Client is nil: pass the one that tasks are enqueued with")
	}
	rules, wrong := compile(cfg)
	var tasks *blocked.Tasks
	if i := slices.IndexFunc(cfg.Rules, func(r Rule) bool { return r.InOrder }); i >= 0 {
		tasks, blind = tasksFor(rdb, cfg,
			fmt.Sprintf("InOrder of Rules[%d]; give one, or a redis.UniversalClient as the client", i))
	}
	if unfit != nil {
		unfit, blind = fmt.Errorf("automutex: %w", unfit), nil
	}
	if err := errors.Join(unfit, none, wrong, blind); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	c := &Client{
		rules: rules, prefix: cfg.Prefix, asynq: client, tasks: tasks,
		log: cfg.Logger, stampDeadline: stampDeadline,
	}
	if rules.parks { // each with InOrder does
		c.engine = engine.New(engine.Options{Client: rdb, Prefix: cfg.Prefix, Log: c.log})
	}
	return c, nil
}

// Enqueue is [Client.EnqueueContext] with context.Background().
func (c *Client) Enqueue(task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueContext(context.Background(), task, opts...)
}

// EnqueueContext enqueues the task as [asynq.Client.EnqueueContext] does. Under [Rule].InOrder it runs after all tasks
// of its key whose enqueueing returned before this one began.
//
// With an error the task is not enqueued, but for that of asynq for a task that is not in order, and a [*EnqueueError]
// with Unknown set.
//
// A [*FullError] says that Rule.MaxQueued tasks of the key are not done, a [*KeyError] that no key can be made, and
// [asynq.ErrTaskIDConflict] that asynq has another task with that ID. An error that Is [lock.ErrBackend] means that
// Redis could not be asked for a place.
func (c *Client) EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil || c.rules.match(task.Type()) == nil { // asynq refuses nil
		if task != nil && !startByIn(opts).IsZero() {
			return nil, refuseStartBy(task, "no rule matches it: give its type a rule, or leave StartBy out")
		}
		return c.asynq.EnqueueContext(ctx, task, opts...)
	}
	composed, err := stamp.Compose(ctx, task, opts)
	if err != nil {
		return nil, err
	}
	e := &enqueueing{composed, c, tasknote.Of(composed.Info.Queue, composed.Info.ID)}
	s := stamp.New(e.note, e.Info.MaxRetry)
	if s.Due, s.By, err = e.startTimes(opts); err != nil {
		return nil, err
	}
	var t *target
	if rule := ordered(c.rules.match(task.Type())); rule != nil { // no function of the task's other rules is called
		if t, err = c.firstTarget(ctx, task, []*compiledRule{rule}); err != nil {
			return nil, err
		}
	}
	switch {
	case t == nil && e.IsBaked():
		return c.asynq.EnqueueContext(ctx, task, opts...) // its uniqueness cannot be read, so no attempt is reserved
	case t == nil:
		s.Key = e.park(ctx, s)
		return e.Enqueue(ctx, c.asynq, s)
	}
	if err := e.checkOrdered(t.rule); err != nil {
		return nil, err
	}
	if fits := inside.OnceIn(ctx); fits != nil {
		if err := fits(t.rule.OnArchive == HoldKey); err != nil {
			return nil, err
		}
	}
	return e.enqueueInOrder(ctx, t, s)
}

// Orders returns which of the task types, and of the Tasks of the Client's rules, a rule with [Rule].InOrder is for,
// and that rule's OnArchive.
func (c *Client) Orders(taskTypes ...string) map[string]OnArchive {
	all := map[string]OnArchive{}
	for _, rule := range c.rules.rules {
		taskTypes = append(slices.Clip(taskTypes), rule.Task)
	}
	for _, taskType := range taskTypes {
		if rule := ordered(c.rules.match(taskType)); rule != nil {
			all[taskType] = rule.OnArchive
		}
	}
	return all
}

// park parks the task if others are parked for its key, which it returns; else empty, also after what failed.
func (e *enqueueing) park(ctx context.Context, s stamp.Stamp) (key string) {
	c, fits, rules := e.client, inside.OnceIn(ctx), e.client.rules.match(e.Task.Type())
	if c.engine == nil || time.Now().UnixNano() < c.parkAgain.Load() || e.Info.State != asynq.TaskStatePending ||
		e.IsUnique || !e.Info.Deadline.IsZero() || fits != nil && fits(false) != nil {
		return ""
	}
	t, err := c.firstTarget(ctx, e.Task, rules) // a worker says what fails
	if err != nil || t == nil || t.rule.Busy != Park || t.rule.InOrder {
		return ""
	}
	bound, cancel := context.WithTimeout(ctx, time.Second) // it only saves work
	defer cancel()
	place, err := c.engine.Enlist(bound, t.key, e.note)
	switch {
	case ctx.Err() != nil:
		return ""
	case err != nil:
		c.parkAgain.Store(time.Now().Add(5 * time.Second).UnixNano())
		c.log.Debug("automutex: no look at parked tasks for 5 s", "key", t.key, "task", e.note, "error", err)
		fallthrough
	case place == 0:
		return ""
	}
	at := time.Now().Add(decide.Delay(decide.AtTurn, (&BusyError{Place: int(place) - 1}).turnIn()))
	for _, rule := range rules {
		if by := s.StartBy(rule.StartWithin); !by.IsZero() && by.Before(at) {
			at = by
		}
	}
	e.Info.State, e.Info.NextProcessAt = asynq.TaskStateScheduled, at
	return t.key
}

// firstTarget is nil if the task needs no lock of those rules.
func (c *Client) firstTarget(ctx context.Context, task *asynq.Task, rules []*compiledRule) (first *target, err error) {
	targets := c.rules.targetsNeeded(ctx, nil, task, c.prefix, rules, func(_ *compiledRule, failed error) { err = failed })
	if len(targets) > 0 {
		first = &targets[0]
	}
	return first, err
}

type enqueueing struct {
	*stamp.Enqueueing

	client *Client
	note   string
}

func (e *enqueueing) checkOrdered(rule *compiledRule) error {
	refuse := func(option, why string) error {
		return fmt.Errorf("automutex: rule %q is InOrder, and task %q has the option asynq.%s: %s; the task is not "+
			"enqueued: leave the option out", rule.Name, e.Task.Type(), option, why)
	}
	switch {
	case e.Info.State == asynq.TaskStateScheduled:
		return refuse("ProcessAt, or ProcessIn", "a task that runs later has no place among those that run now")
	case e.Info.Group != "":
		return refuse("Group", "asynq makes one task of a group")
	case !e.Info.Deadline.IsZero():
		return refuse("Deadline", "asynq fails an overdue task before it comes to a worker, also while earlier tasks keep "+
			"it waiting; use asynq.Timeout")
	case e.IsUnique:
		return refuse("Unique", "asynq frees the task's uniqueness by time; use package unique on top of this Client")
	}
	return nil
}

// docs/architecture.md has the steps.
func (e *enqueueing) enqueueInOrder(ctx context.Context, t *target, s stamp.Stamp) (*asynq.TaskInfo, error) {
	c := e.client
	key := engine.Ref{Key: t.key, Ordered: true} // with no slot: who does not know the controls grants none
	s.Key, s.Nonce = t.key, stamp.NewNonce()
	began := time.Now()
	ticket, err := e.takePlace(ctx, key, t, s.Nonce)
	if err != nil {
		return nil, err
	}
	s.Ticket = ticket
	item := engine.OrderItem{Nonce: s.Nonce, Ticket: ticket, Note: e.note}
	info, err := e.Enqueue(ctx, c.asynq, s)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		info, err = e.resolveConflict(ctx, key, item, t, err)
	} else if err != nil {
		// The stamp stays: what was sent may land. If it does not, the first task that it keeps waiting finds out.
		err = e.unknown(t, err)
	}
	if err != nil {
		return nil, err
	}
	if time.Since(began) > c.stampDeadline/2 {
		// Others may have taken the stamp for one whose producer died.
		if err := c.engine.Act(context.WithoutCancel(ctx), key, engine.ActConfirm, item, 0); err != nil {
			return nil, e.unknown(t, fmt.Errorf("it is enqueued, but its place could not be confirmed: %w", err))
		}
	}
	return info, nil
}

// If the key is full takePlace first looks for stamps whose task was never enqueued.
func (e *enqueueing) takePlace(ctx context.Context, key engine.Ref, t *target, nonce string) (int64, error) {
	c := e.client
	for looked := false; ; looked = true {
		ticket, queued, look, err := c.engine.Stamp(ctx, key, e.note, nonce, c.stampDeadline, t.rule.MaxQueued)
		switch {
		case err != nil:
			return 0, &EnqueueError{Rule: t.rule.Name, Key: t.key, Task: e.note, Err: err}
		case ticket > 0:
			return ticket, nil
		case looked || len(look) == 0:
			return 0, &FullError{Key: t.key, Queued: queued, Max: t.rule.MaxQueued}
		}
		for _, item := range look { // one that cannot be looked for counts
			seen, err := c.tasks.Look(ctx,
				blocked.OrderedKey{Engine: c.engine, Key: key, Holds: t.rule.OnArchive == HoldKey}, item)
			if !seen && errors.Is(err, asynq.ErrQueueNotFound) {
				c.told.Do(func() {
					c.log.Warn("automutex: Config.Inspector does not see the queue of a task in order, so a full key counts "+
						"tasks of producers that have died; "+inspectorHint, "key", key.Key, "task", item.Note)
				})
			}
			if err != nil {
				c.log.Debug("automutex: a place in order could not be looked for", "key", key.Key, "task", item.Note,
					"error", err)
			}
		}
	}
}

// resolveConflict: asynq has a task with that ID: this very one, if go-redis sent the command twice.
func (e *enqueueing) resolveConflict(
	ctx context.Context, key engine.Ref, item engine.OrderItem, t *target, conflict error,
) (*asynq.TaskInfo, error) {
	info, err := e.client.tasks.Inspector.GetTaskInfo(e.Info.Queue, e.Info.ID)
	switch {
	case err == nil:
		if s, ok := stamp.Of(info.Headers, e.note); ok && s.Nonce == item.Nonce {
			return info, nil
		}
	case !errors.Is(err, asynq.ErrTaskNotFound):
		return nil, e.unknown(t, errors.Join(conflict, err))
	}
	if err := e.client.engine.Act(context.WithoutCancel(ctx), key, engine.ActRefused, item, 0); err != nil {
		e.client.log.Debug("automutex: a place could not be given up; it is found to be empty", "key", t.key, "task", e.note,
			"error", err)
	}
	return nil, fmt.Errorf("automutex: rule %q: task %s: %w", t.rule.Name, e.note, conflict)
}

func (e *enqueueing) unknown(t *target, err error) error {
	return &EnqueueError{Rule: t.rule.Name, Key: t.key, Task: e.note, Unknown: true, Err: err}
}

// Enqueuer is an [*asynq.Client], a [*Client] or a [github.com/automutex/automutex/unique.Client].
type Enqueuer interface {
	// EnqueueContext enqueues the task with the options, and returns what asynq stores of it.
	EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error)
}

var _, _ Enqueuer = (*asynq.Client)(nil), (*Client)(nil)
