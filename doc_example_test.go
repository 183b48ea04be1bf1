package automutex_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// A worker whose tasks for one transaction take turns.
func Example() {
	redisOpt := asynq.RedisClientOpt{Addr: "localhost:6379"}
	guard, err := automutex.NewFromConnOpt(redisOpt, automutex.Config{
		Rules: []automutex.Rule{{Task: "itunes:verify", On: []string{"transaction_id"}}},
	})
	if err != nil {
		panic(err)
	}
	mux := asynq.NewServeMux()
	mux.HandleFunc("itunes:verify", func(ctx context.Context, t *asynq.Task) error {
		return nil // alone with its transaction
	})
	server := asynq.NewServer(redisOpt, guard.ServerConfig(asynq.Config{Concurrency: 10}))
	if err := guard.Run(server, mux); err != nil { // until SIGTERM or Ctrl-C
		panic(err)
	}
}

// Each mistake in a Config says where it is.
func ExampleFieldError() {
	_, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{
		{Task: "mail", On: []string{"to", "items[0]"}},
	}})
	var mistake *automutex.FieldError
	if errors.As(err, &mistake) {
		fmt.Println(mistake.RuleName, mistake.Field, mistake.Element)
		fmt.Println(mistake.Err)
	}
	// Output:
	// mail On 1
	// "items[0]" has a "[", as other notations have; write names and indexes with a dot between, as in "items.0.id", one path for each field, and \[ for one in a name
}

// The keys of a task, without Redis.
func ExampleKeyMaker_Keys() {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{
		{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3},
	}})
	if err != nil {
		panic(err)
	}
	task := asynq.NewTask("report:daily", []byte(`{"tenant": {"id": 7}}`))
	fmt.Println(maker.Keys(context.Background(), task))
	// Output: [automutex:{report|7}] <nil>
}

// A function decides about tasks that find their lock taken.
func ExampleAfterFailure() {
	answer := meet(automutex.Rule{
		Task: "cache:warm", On: []string{"id"},
		Busy: automutex.AfterFailure(func(_ context.Context, task *asynq.Task, busy *automutex.BusyError) error {
			fmt.Printf("%s: %s is %s\n", task.Type(), busy.Key, busy.Reason)
			return nil // another task warms the cache: this one is done
		}),
	})
	fmt.Println(answer)
	// Output:
	// cache:warm: automutex:{cache:warm|7} is held
	// <nil>
}

// exampleRedis is a Redis for one example.
func exampleRedis() (rdb *redis.Client, stop func()) {
	s, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: s.Addr()})
	return rdb, func() { _ = rdb.Close(); s.Close() }
}

// meet has a task find its key taken under a rule, and returns what asynq is answered.
func meet(rule automutex.Rule) error {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{rule}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
	task := asynq.NewTask(rule.Task, []byte(`{"id": 7}`))
	inside, leave := make(chan struct{}), make(chan struct{})
	first := guard.Middleware(asynq.HandlerFunc(func(context.Context,
		*asynq.Task) error {
		close(inside)
		<-leave
		return nil
	}))
	done := make(chan error)
	go func() { done <- first.ProcessTask(context.Background(), task) }()
	<-inside
	second := guard.Middleware(asynq.HandlerFunc(func(context.Context,
		*asynq.Task) error {
		fmt.Println("it runs")
		return nil
	}))
	answer := second.ProcessTask(context.Background(), task)
	close(leave)
	<-done
	return answer
}

// One task of an order at a time; two orders at once.
func ExampleRule() {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{
		{Task: "order:pay", On: []string{"order.id"}, TTL: 30 * time.Second},
	}})
	if err != nil {
		panic(err)
	}
	for _, payload := range []string{`{"order": {"id": 7}}`, `{"order": {"id": "7"}}`, `{"order": {"id": 8}}`,
		`{"order": {}}`} {
		keys, err := maker.Keys(context.Background(), asynq.NewTask("order:pay", []byte(payload)))
		fmt.Println(keys, err != nil)
	}
	// Output:
	// [automutex:{order:pay|7}] false
	// [automutex:{order:pay|7}] false
	// [automutex:{order:pay|8}] false
	// [] true
}

// The second task of a key ends as done, without running.
func ExampleSkip() {
	fmt.Println(meet(automutex.Rule{Task: "cache:warm", On: []string{"id"}, Busy: automutex.Skip}))
	// Output: <nil>
}

// Tasks of a key wait for their turn in their workers, up to a minute each.
func ExampleRule_wait() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "balance", On: []string{"account"}, Wait: time.Minute, Busy: automutex.Retry},
	}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
	balance := 0
	handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { balance++; return nil }))
	var workers sync.WaitGroup
	for range 5 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			if err := handler.ProcessTask(context.Background(), asynq.NewTask("balance", []byte(`{"account": 7}`))); err != nil {
				fmt.Println(err)
			}
		}()
	}
	workers.Wait()
	fmt.Println(balance)
	// Output: 5
}

// Tasks run at once all the same. Use it to measure contention before you enforce a rule.
func ExampleAllow() {
	fmt.Println(meet(automutex.Rule{Task: "report", On: []string{"id"}, Busy: automutex.Allow}))
	// Output:
	// it runs
	// <nil>
}

// The newest task of a document wins: an older one that runs is told to stop by its context.
func ExampleReplace() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "render", On: []string{"document"}, Busy: automutex.Replace},
	}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		return context.Cause(ctx) // nil unless a newer task came
	}))
	fmt.Println(handler.ProcessTask(context.Background(), asynq.NewTask("render", []byte(`{"document": 7}`))))
	// Output: <nil>
}

// An upstream has answered 429: no task of this key starts for a minute, in any process.
func ExampleCloseGate() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "sync", On: []string{"tenant"}, Busy: automutex.Skip},
	}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		fmt.Println("called the upstream")
		return automutex.CloseGate(ctx, time.Minute)
	}))
	for range 2 {
		if err := handler.ProcessTask(context.Background(), asynq.NewTask("sync", []byte(`{"tenant": "acme"}`))); err != nil {
			fmt.Println("back to asynq:", errors.Is(err, lock.ErrBusy))
		}
	}
	// Output:
	// called the upstream
	// back to asynq: true
}

// An HTTP handler takes the lock of a report's tenant, as the tasks of the rule do.
func ExampleGuard_Lock() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "report:", Name: "report", Scope: "report", On: []string{"tenant.id"}},
	}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
	serve := func(w http.ResponseWriter, r *http.Request) {
		lease, err := guard.Lock(r.Context(), "report", r.FormValue("tenant"))
		if errors.Is(err, lock.ErrBusy) {
			http.Error(w, "a report of the tenant is at work", http.StatusConflict)
			return
		} else if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		defer lease.Unlock(r.Context())
		fmt.Fprint(w, "alone with ", r.FormValue("tenant"))
	}
	w := httptest.NewRecorder()
	serve(w, httptest.NewRequest(http.MethodGet, "/?tenant=acme", nil))
	fmt.Println(w.Code, w.Body)
	_, err = guard.Lock(context.Background(), "repord", "acme")
	fmt.Println(err)
	// Output:
	// 200 alone with acme
	// automutex: Lock: no rule has the name "repord"; did you mean "report"?
}

// Each write carries the fence of its lease, so that the receiver can refuse one that comes late.
func ExampleFence() {
	rdb, stop := exampleRedis()
	defer stop()
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "transfer", On: []string{"account"}, Fence: true},
	}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
	last := int64(0)
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		fence, err := automutex.Fence(ctx)
		fmt.Println(fence > last, err)
		last = fence
		return err
	}))
	for range 2 {
		if err := handler.ProcessTask(context.Background(), asynq.NewTask("transfer", []byte(`{"account": 7}`))); err != nil {
			panic(err)
		}
	}
	// Output:
	// true <nil>
	// true <nil>
}

// The tasks of a repository run in the order in which they were enqueued, through failures too. Producers
// and workers share the Config.
func ExampleNewClient() {
	rdb, stop := exampleRedis()
	defer stop()
	cfg := automutex.Config{Rules: []automutex.Rule{{Task: "push", On: []string{"repository"}, InOrder: true}}}
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
	if err != nil {
		panic(err)
	}
	info, err := client.Enqueue(asynq.NewTask("push", []byte(`{"repository": "octo/hello"}`)), asynq.MaxRetry(5))
	if err != nil {
		panic(err)
	}
	fmt.Println(info.Queue, info.State)
	// Output: default pending
}

// A code that is worth sending for a minute: a worker that comes to the task later ends it as done, unsent.
func ExampleStartBy() {
	rdb, stop := exampleRedis()
	defer stop()
	cfg := automutex.Config{Rules: []automutex.Rule{{Task: "code", On: []string{"user"}, Late: automutex.Skip}}}
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
	if err != nil {
		panic(err)
	}
	expires := automutex.StartBy(time.Now().Add(time.Minute))
	info, err := client.Enqueue(asynq.NewTask("code", []byte(`{"user": 7}`)), expires)
	if err != nil {
		panic(err)
	}
	_, err = client.Enqueue(asynq.NewTask("mail", nil), expires) // no rule would look at the time
	fmt.Println(info.State, err != nil)
	// Output: pending true
}

// Keys of a rule without the values.
func ExampleConfig_hashKeys() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"}) // is not asked here
	defer rdb.Close()
	cfg := automutex.Config{
		Rules:    []automutex.Rule{{Task: "mail:send", On: []string{"to"}}},
		HashKeys: "an example, and so no secret",
	}
	guard, err := automutex.New(rdb, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer guard.Close(context.Background())
	keys, err := guard.Keys(context.Background(), asynq.NewTask("mail:send", []byte(`{"to": "mona@example.com"}`)))
	fmt.Println(keys, err)
	// Output: [automutex:{mail:send|~df7132c7f1642c3cb428f353ac7a95113758bdc977955dd7a6fb6d85ec5f27a4}] <nil>
}
