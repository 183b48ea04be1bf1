package documented

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
	"github.com/automutex/automutex/unique"
)

// What the snippets of the README and the guides use.
var (
	rdb      redis.UniversalClient
	redisOpt = asynq.RedisClientOpt{Addr: "localhost:6379"}
	locker   *lock.Locker
	store    saver
	rules    []automutex.Rule
)

type saver struct{}

func (saver) Save(context.Context, []byte, int64) error { return nil }

// The line at the top of the README.
var headline = automutex.Rule{Task: "itunes:verify", On: []string{"transaction_id"}}

func enter(ctx context.Context) error { return ctx.Err() }

type counter struct{}

func (counter) WithLabelValues(...string) counter { return counter{} }
func (counter) Inc()                              {}

var busyTotal counter

// repair calls f while no report of the tenant runs.
func repair(ctx context.Context, guard *automutex.Guard, locker *lock.Locker, tenant string, f func() error) (err error) {
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

func plans() automutex.Rule {
	perPlan := automutex.Rule{
		Task:       "report:monthly",
		On:         []string{"tenant.id"},
		LimitField: &automutex.LimitField{Path: "tenant.max", Default: 3, Most: 50}, // 3 where the field is missing, 50 at most
	}
	return perPlan
}

var _ = plans

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

func index(ctx context.Context, t *asynq.Task) error {
	for page := range pages(t) {
		// When a newer task has come, ctx ends with cause automutex.ErrReplaced, and
		// an error of this handler is no failure.
		if err := store.Save(ctx, page, 0); err != nil {
			return err
		}
	}
	return nil
}

func pages(t *asynq.Task) iter.Seq[[]byte] { return bytes.SplitSeq(t.Payload(), []byte("\f")) }

func watching() automutex.Config {
	cfg := automutex.Config{
		Rules: rules,
		Observe: func(ctx context.Context, e automutex.Event) {
			if e.Kind == automutex.EventBusy {
				busyTotal.WithLabelValues(e.Rule, e.Busy.Reason).Inc()
			}
		},
	}
	return cfg
}

func hashed() error {
	secret := os.Getenv("AUTOMUTEX_HASH_KEYS") // of openssl rand -hex 32
	if secret == "" {
		return errors.New("AUTOMUTEX_HASH_KEYS is not set: without it keys are readable, and others than everybody else's")
	}
	cfg := automutex.Config{
		Rules:    []automutex.Rule{{Task: "mail:send", On: []string{"to"}}},
		HashKeys: secret,
	}
	_, err := automutex.New(rdb, cfg)
	return err
}

func replicated(rules []automutex.Rule) error {
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, MinReplicas: 1})
	if err != nil {
		return err
	}
	return guard.Close(context.Background())
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

func parked() []automutex.Rule {
	rules := []automutex.Rule{
		{Task: "invoice:", Scope: "customer", On: []string{"customer_id"}, Busy: automutex.Park},
	}
	return rules
}

func pools(ctx context.Context, locker *lock.Locker) error {
	ports := pool.New(locker, "ports")
	_, err := ports.Put(ctx, "8001", "8002")
	if err != nil {
		return err
	}

	lease, err := ports.Take(ctx) // in line, first come, first served
	if err != nil {
		return err
	}
	fmt.Println(lease.Value()) // nobody else has it
	err = lease.Unlock(ctx)    // back into the pool; Consume takes it out for good
	return err
}

func fromFile(client *asynq.Client, inspector *asynq.Inspector) error {
	cfg, once, err := config.Load("automutex.yaml")
	if err != nil {
		return err // every mistake, each as file:line:column
	}
	guard, err := automutex.New(rdb, cfg) // in workers
	if err != nil {
		return err
	}
	tasks, err := unique.New(client, inspector, rdb, once) // in producers
	_, _ = guard, tasks
	return err
}

func doubledSchedulers() automutex.Rule {
	cron := automutex.Rule{
		Task:     "cron:digest",    // every quarter of an hour
		Cooldown: 10 * time.Minute, // longer than the schedulers are apart, shorter than a tick
		Busy:     automutex.Skip,
	}
	return cron
}

func limitedRules() []automutex.Rule {
	limited := []automutex.Rule{
		// Ten a second for each tenant, evenly spread, and at most 20 at once.
		{Task: "mail:send", Scope: "mail", On: []string{"tenant.id"},
			Limit: 20, Rate: automutex.Rate{Starts: 10, Per: time.Second}},
	}
	return limited
}

// upstream is some API that says when to come back.
var upstream pusher

type pusher struct{}

func (pusher) Push(context.Context, []byte) (wait time.Duration, err error) { return 0, nil }
