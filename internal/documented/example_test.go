package documented

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

// What the snippets of the README and the guides use.
var (
	rdb      redis.UniversalClient
	redisOpt = asynq.RedisClientOpt{Addr: "localhost:6379"}
	locker   *lock.Locker
	store    saver
)

type saver struct{}

func (saver) Save(context.Context, []byte, int64) error { return nil }

// The line at the top of the README.
var headline = automutex.Rule{Task: "itunes:verify", On: []string{"transaction_id"}}

func enter(ctx context.Context) error { return ctx.Err() }

// repair calls f while no report of the tenant runs.
func repair(
	ctx context.Context, guard *automutex.Guard, locker *lock.Locker, tenant string, f func() error,
) (err error) {
	report := locker.Semaphore("report", 3, lock.Parts(tenant)) // the rule's Scope and Limit, and the value of On
	controls := guard.Controls()
	if err := controls.Pause(ctx, report.Key(), time.Time{}, "its data is repaired"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, controls.Resume(context.WithoutCancel(ctx), report.Key())) }()

	// Until every process obeys, reports may begin. Reports that run go on.
	for wait := lock.ControlDelay; ; wait = time.Second {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch holders, err := report.Holders(ctx); {
		case err != nil:
			return err
		case len(holders) == 0:
			return f()
		}
	}
}

func shutdown(ctx context.Context, guard *automutex.Guard, srv *asynq.Server) error {
	go guard.Close(ctx) // waiters end, running handlers keep their leases
	srv.Shutdown()
	return nil
}

func enqueue(client *asynq.Client) error {
	_, err := client.Enqueue(asynq.NewTask("itunes:verify", []byte(`{"transaction_id": 70000123}`)))
	return err
}

func moreRules() []automutex.Rule {
	rules := []automutex.Rule{
		// A mutex per transaction.
		{Task: "itunes:verify", On: []string{"transaction_id"}},

		// At most three reports of a tenant at once, whatever the kind of report.
		{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3},

		// The newest edit wins: an older run of it is stopped.
		{Task: "search:index", On: []string{"document_id"}, Busy: automutex.Replace},

		// Doubled schedulers: one successful run in ten minutes.
		{Task: "cron:digest", Cooldown: 10 * time.Minute, Busy: automutex.Skip},

		// A transfer locks both accounts, in an order that cannot deadlock.
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"from"}},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}},
	}
	return rules
}

func verify(ctx context.Context, t *asynq.Task) error {
	// ctx ends with cause lock.ErrLost if the lease is lost.
	fence, err := automutex.Fence(ctx) // grows from run to run of the same key; the rule has Fence: true
	if err != nil {
		return err // the rule has no Fence, or this is no guarded handler
	}
	return store.Save(ctx, t.Payload(), fence)
}

func plainLock(ctx context.Context) error {
	locker := lock.New(rdb, lock.Options{})
	defer locker.Close()

	if err := locker.Mutex("room:123").Do(ctx, func(ctx context.Context) error {
		return enter(ctx) // ctx ends if the lock is lost
	}); err != nil {
		return err
	}

	lease, err := locker.Semaphore("gpu", 4).TryLock(ctx)
	if errors.Is(err, lock.ErrBusy) {
		return nil // four at work already
	}
	return errors.Join(err, lease.Unlock(ctx))
}

func limitedRules() []automutex.Rule {
	limited := []automutex.Rule{
		// Ten a second for each tenant, evenly spread, and at most 20 at once.
		{Task: "mail:send", Scope: "mail", On: []string{"tenant.id"},
			Limit: 20, Rate: automutex.Rate{Starts: 10, Per: time.Second}},
		// The rate of the tenant's plan; a task counts for as many starts as it has tokens.
		{Task: "llm:ask", Scope: "llm", On: []string{"tenant.id"},
			Limit: automutex.Unlimited, RateOf: planOf, Cost: tokensOf},
	}
	return limited
}

func codeRules() []automutex.Rule {
	codes := []automutex.Rule{
		{Task: "mail:code", On: []string{"user_id"},
			StartWithin: 30 * time.Second, Late: automutex.Skip},
	}
	return codes
}

func planOf(context.Context, *asynq.Task) (automutex.Rate, error) { return automutex.Rate{}, nil }
func tokensOf(context.Context, *asynq.Task) (int, error)          { return 1, nil }

// upstream is some API that says when to come back.
var upstream pusher

type pusher struct{}

func (pusher) Push(context.Context, []byte) (wait time.Duration, err error) { return 0, nil }

func inOrder(ctx context.Context, task *asynq.Task) error {
	cfg := automutex.Config{Rules: []automutex.Rule{
		{Task: "order:", Scope: "order", On: []string{"order_id"}, InOrder: true},
	}}
	guard, err := automutex.New(rdb, cfg) // in workers, as ever
	if err != nil {
		return err
	}
	producer, err := automutex.NewClient(rdb, client, cfg) // in producers
	if err != nil {
		return err
	}
	info, err := producer.EnqueueContext(ctx, task)
	_, _ = guard, info
	return err
}

var _ = inOrder

// What the section on unique speaks of.
var (
	client    *asynq.Client
	inspector *asynq.Inspector
	payload   []byte
)

func enqueueOnce() error {
	tasks, err := unique.New(client, inspector, rdb, unique.Config{Rules: uniqueRules()})
	if err != nil {
		return err
	}
	info, err := tasks.Enqueue(asynq.NewTask("itunes:verify", payload), asynq.MaxRetry(3))
	if errors.Is(err, asynq.ErrDuplicateTask) {
		return nil // one is under way; a *unique.DuplicateError says which
	}
	_ = info
	return err
}

func uniqueRules() []unique.Rule {
	once := []unique.Rule{
		{Task: "itunes:verify", On: []string{"transaction_id"}},

		// Debounce: five seconds after the last call, a minute after the first at the latest.
		{Task: "autosave", On: []string{"draft_id"}, Until: unique.UntilStart,
			Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute},
	}
	return once
}

// The code after the change, in docs/migrating.md under "From hand-written locks".

var post = func(context.Context, string) error { return nil }

func deliver(ctx context.Context, t *asynq.Task) error {
	var p struct {
		EndpointID string `json:"endpoint_id"`
	}
	if err := json.Unmarshal(t.Payload(), &p); err != nil {
		return fmt.Errorf("payload: %w: %w", err, asynq.SkipRetry)
	}
	return post(ctx, p.EndpointID) // ctx ends if the lock is lost
}

func deliveries(rdb redis.UniversalClient) (*automutex.Guard, error) {
	return automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "webhook:deliver", On: []string{"endpoint_id"}, Busy: automutex.Retry, Wait: 5 * time.Second},
	}})
}

func documents(rdb redis.UniversalClient) (*automutex.Guard, error) {
	return automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "document:index", Scope: "document", On: []string{"document_id"}},
		{Task: "document:index", Scope: "tenant", On: []string{"tenant_id"}, Limit: 3},
	}})
}
