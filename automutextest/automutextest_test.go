package automutextest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// work is a task of the type that most rules here are for.
func work(payload string) *asynq.Task { return asynq.NewTask("work", []byte(payload)) }

const (
	one   = `{"id": 1}`
	two   = `{"id": 2}`
	noKey = `{}`
)

// turns is one rule for work, keyed on id, with changes.
func turns(change ...func(*automutex.Rule)) automutex.Config {
	rule := automutex.Rule{Task: "work", Name: "turns", On: []string{"id"}, Busy: automutex.Retry}
	for _, f := range change {
		f(&rule)
	}
	return automutex.Config{Rules: []automutex.Rule{rule}}
}

func busy(p automutex.Policy) func(*automutex.Rule) {
	return func(r *automutex.Rule) { r.Busy = p }
}

func returns(err error) asynq.HandlerFunc {
	return func(context.Context, *asynq.Task) error { return err }
}

func workers(n int) func(*asynq.Config) { return func(c *asynq.Config) { c.Concurrency = n } }

// run runs a task through the guard, outside of asynq.
func (g *Guard) run(task *asynq.Task) error {
	return g.Middleware(returns(nil)).ProcessTask(context.Background(), task)
}

// What no test can go on with fails it, and says why.
func TestBadInput(t *testing.T) {
	t.Parallel()
	fails(t, func(t testing.TB) {
		New(t, automutex.Config{Prefix: "{", Rules: []automutex.Rule{{Task: "a", Limit: -1}}})
	}, "Rules[0]", "Limit", "Prefix")
	for _, use := range []func(t testing.TB, g *Guard, task *asynq.Task){
		func(t testing.TB, g *Guard, task *asynq.Task) { Hold(t, g, task) },
		func(t testing.TB, g *Guard, task *asynq.Task) { CloseGate(t, g, task, time.Hour) },
		func(t testing.TB, g *Guard, task *asynq.Task) { ShareKey(t, g, work(one), task) },
		func(t testing.TB, g *Guard, task *asynq.Task) { ShareNoKey(t, g, work(two), task) },
	} {
		g := New(t, turns())
		fails(t, func(t testing.TB) { use(t, g, work(noKey)) }, `"id"`, "missing")
		fails(t, func(t testing.TB) { use(t, g, asynq.NewTask("other", nil)) }, "no rule", "unguarded")
	}
	g := New(t, turns())
	fails(t, func(t testing.TB) { ShareNoKey(t, g, work(one)) }, "two or more")
	fails(t, func(t testing.TB) { CloseGate(t, g, work(two), 0) }, "CloseGate")
	fails(t, func(t testing.TB) { Pause(t, g, "|one") }, "a target is a scope")
	server := Serve(t, g, g.Middleware(returns(nil)), func(c *asynq.Config) { c.Queues = map[string]int{"mail": 1} })
	fails(t, func(t testing.TB) { server.Enqueue(t, asynq.NewTask("", nil)) }, "Enqueue", "task typename cannot be empty")
	fails(t, func(t testing.TB) { server.Enqueue(t, work(one)) }, `does not serve the queue "default"`, "c.Queues")
	server.Enqueue(t, work(one), asynq.Queue("mail")).Becomes(t, Done)
}

func TestShare(t *testing.T) {
	t.Parallel()
	transfer := func(from, to string) *asynq.Task {
		return asynq.NewTask("transfer", []byte(`{"from": "`+from+`", "to": "`+to+`"}`))
	}
	g := New(t, automutex.Config{Rules: []automutex.Rule{
		{Task: "work", Name: "turns", On: []string{"id"}, Busy: automutex.Retry},
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"from"}},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}},
	}})
	ab, bc, cd := transfer("a", "b"), transfer("b", "c"), transfer("c", "d")
	ShareKey(t, g, work(one), work(`{"id": "1", "more": 2}`), work(`{"id": 1.0}`))
	ShareKey(t, g, ab, bc)
	ShareNoKey(t, g, work(one), work(two), ab)
	ShareNoKey(t, g, ab, cd)
	fails(t, func(t testing.TB) { ShareKey(t, g, ab, bc, cd) }, "share a key? false", "{account|a}", "{account|d}")
	fails(t, func(t testing.TB) { ShareNoKey(t, g, work(one), work(two), work(one)) }, "share a key? true", "{work|1}",
		`{\"id\": 1}`)
}

func TestHold(t *testing.T) {
	t.Parallel()
	events := 0
	cfg := turns(busy(automutex.Fail), func(r *automutex.Rule) { r.Cooldown = time.Hour })
	cfg.Observe = func(context.Context, automutex.Event) { events++ }
	g := New(t, cfg)
	release := Hold(t, g, work(one))
	var e *automutex.BusyError
	if err := g.run(work(one)); !errors.As(err, &e) || !strings.HasPrefix(e.Holder,
		"the Hold at automutextest_test.go:") || events != 1 {
		t.Fatalf("%v after %d events, want a busy key, and no event of the Hold", err, events)
	}
	redistest.Must(t, g.run(work(two)))
	fails(t, func(t testing.TB) { Hold(t, g, work(one)) }, "nothing to hold", "{work|1}",
		"held by the Hold at automutextest_test.go:")
	fails(t, func(t testing.TB) { CloseGate(t, g, work(one), time.Hour) }, "CloseGate", "held by the Hold at")
	release()
	release()
	if got := record(t, func(t testing.TB) { Hold(t, g, work(one)) }); got != "" { // its cleanup releases
		t.Fatal(got)
	}
	redistest.Must(t, g.run(work(one))) // neither busy nor cooling down
}

// Hold fills a lock with as many as its Limit lets, also beside a Rate, which does not count them.
func TestHold_limit(t *testing.T) {
	t.Parallel()
	hourly := automutex.Rate{Starts: 1, Per: time.Hour}
	for rate, change := range map[string]func(r *automutex.Rule){
		"none":  func(*automutex.Rule) {},
		"fixed": func(r *automutex.Rule) { r.Rate = hourly },
		"of the payload, with a cost": func(r *automutex.Rule) {
			r.RateOf = func(context.Context, *asynq.Task) (automutex.Rate, error) { return hourly, nil }
			r.Cost = func(context.Context, *asynq.Task) (int, error) { return 1, nil }
		},
	} {
		g := New(t, turns(busy(automutex.Fail), func(r *automutex.Rule) { r.Limit = 2 }, change))
		release := Hold(t, g, work(one))
		Hold(t, g, work(one))
		if err := g.run(work(one)); !errors.Is(err, automutex.ErrBusy) {
			t.Errorf("%s: both slots are held, and the lock is not busy: %v", rate, err)
		}
		release()
		if err := g.run(work(one)); err != nil {
			t.Errorf("%s: one of two slots is held, and the lock is busy: %v", rate, err)
		}
	}
}

// A closed gate, and a pause, keep the tasks of one key from starting, and nobody holds the key.
func TestCloseGate(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Skip)))
	server := Serve(t, g, g.Middleware(returns(nil)))
	resume := Pause(t, g, "work")
	task := server.Enqueue(t, work(two))
	task.Becomes(t, HandedBack)
	var e *automutex.BusyError
	if err := g.run(work(one)); !errors.As(err, &e) || e.Reason != automutex.ReasonPaused ||
		!strings.Contains(err.Error(), t.Name()) {
		t.Errorf("got %v, want who paused it", err)
	}
	resume()
	CloseGate(t, g, work(one), time.Hour)
	if err := g.run(work(one)); !errors.As(err, &e) || e.Reason != automutex.ReasonClosed || e.Holder != "" ||
		e.ExpiresIn < 50*time.Minute {
		t.Errorf("%v, want a closed gate", err)
	}
	task.Again(t)
	task.Becomes(t, Done)
}

// What becomes of a task whose key is held, by policy.
func TestBecomes_policies(t *testing.T) {
	t.Parallel()
	after := func(err error) automutex.Policy {
		return automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return err })
	}
	for name, c := range map[string]struct {
		rule func(*automutex.Rule)
		want Outcome
	}{
		"retry":    {busy(automutex.Retry), HandedBack},
		"retry in": {busy(automutex.RetryIn(time.Minute)), HandedBack},
		"park":     {busy(automutex.Park), HandedBack},
		"in line":  {busy(automutex.Park), Waiting},
		"skip":     {busy(automutex.Skip), Skipped},
		"archive":  {busy(automutex.Archive), Archived},
		"fail":     {busy(automutex.Fail), Failed},
		"allow":    {busy(automutex.Allow), Done},
		"after":    {busy(after(nil)), Skipped},
		"drop":     {busy(after(asynq.RevokeTask)), Dropped},
		"wait":     {func(r *automutex.Rule) { r.Wait = time.Minute }, Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := New(t, turns(c.rule))
			n := 1 // Park has none to wait in
			if c.want == Waiting {
				n = 2 // a wait never keeps the last one
			}
			server := Serve(t, g, g.Middleware(returns(nil)), workers(n))
			release := Hold(t, g, work(one))
			fails(t, func(t testing.TB) { Hold(t, g, work(one)) }, "nothing to hold") // at once, whatever the policy
			task := server.Enqueue(t, work(one))
			task.Becomes(t, c.want)
			if name == "in line" {
				g.patience = time.Hour // is not used up
				fails(t, func(t testing.TB) { task.Becomes(t, HandedBack) }, "is waiting", "under Park it is so")
			}
			release()
			switch {
			case c.want == Waiting || name == "park": // by itself
			case c.want == HandedBack || c.want == Failed:
				task.Again(t)
			default:
				return
			}
			task.Becomes(t, Done)
		})
	}
}

// A newer task ends an older one that runs.
func TestBecomes_replaced(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Replace)))
	began := make(chan struct{})
	server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if strings.Contains(string(task.Payload()), "newer") {
			return nil
		}
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	})))
	older := server.Enqueue(t, work(one))
	<-began
	newer := server.Enqueue(t, work(`{"id": 1, "is": "newer"}`))
	older.Becomes(t, Replaced)
	newer.Becomes(t, Done)
	server.Drain(t)
}

func TestBecomes_more(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	var broken atomic.Bool
	server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		if task.Type() == "failing" || broken.Load() {
			return errors.New("the handler's own")
		}
		return nil
	})))
	server.Enqueue(t, work(noKey)).Becomes(t, Archived)
	server.Enqueue(t, asynq.NewTask("no rule", nil), asynq.Retention(time.Hour)).Becomes(t, Done)

	failing := server.Enqueue(t, asynq.NewTask("failing", nil), asynq.MaxRetry(2))
	for range 2 {
		failing.Becomes(t, Failed)
		failing.Again(t)
	}
	failing.Becomes(t, Archived)

	// Handed back more than once, also when an attempt was spent before.
	broken.Store(true)
	task := server.Enqueue(t, work(one))
	task.Becomes(t, Failed)
	broken.Store(false)
	release := Hold(t, g, work(one))
	for range 2 {
		task.Again(t)
		task.Becomes(t, HandedBack)
	}
	// On its last attempt a task waits in its worker. With a Client's attempt in reserve it comes back.
	last := server.Enqueue(t, work(one), asynq.MaxRetry(0))
	last.Becomes(t, Waiting)
	info, err := server.Client().Enqueue(work(one), asynq.MaxRetry(0))
	redistest.Must(t, err)
	reserved := server.Follow(t, info)
	reserved.Becomes(t, HandedBack)
	release()
	last.Becomes(t, Done)
	server.Drain(t)
	reserved.Becomes(t, Done)

	later := server.Enqueue(t, work(two), asynq.ProcessIn(time.Hour))
	later.Again(t)
	later.Becomes(t, Done)
}

// A failure says what happened instead, and who holds the key.
func TestBecomes_fails(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	server := Serve(t, g, g.Middleware(returns(nil)))
	Hold(t, g, work(one))
	task := server.Enqueue(t, work(one))
	fails(t, func(t testing.TB) { task.Becomes(t, Done) },
		"to become done, but", task.info.ID, "is handed back", `rule "turns"`, "{work|1}",
		"held by the Hold at automutextest_test.go:")
	fails(t, func(t testing.TB) { server.Enqueue(t, work(two)).Becomes(t, Skipped) }, "to become skipped, but", "is done",
		"{work|2}")
	fails(t, func(t testing.TB) { server.Enqueue(t, work(noKey)).Becomes(t, Done) }, "is archived", `"id"`)
	fails(t, func(t testing.TB) { server.Enqueue(t, work(two), asynq.ProcessIn(time.Hour)).Becomes(t, Done) },
		"is scheduled")
	done := server.Enqueue(t, work(two))
	done.Becomes(t, Done)
	fails(t, func(t testing.TB) { done.Again(t) }, "does not keep the task for later", "is done")
	last := server.Enqueue(t, work(one), asynq.MaxRetry(0))
	last.Becomes(t, Waiting)
	other := New(t, turns())
	unguarded := Serve(t, other, returns(nil)) // a program that forgot the middleware
	Hold(t, other, work(one))
	fails(t, func(t testing.TB) { unguarded.Enqueue(t, work(one)).Becomes(t, HandedBack) }, "is done",
		"is guard.Middleware around the handler?")
	g.patience = 50 * time.Millisecond // what never settles ends with the patience
	fails(t, func(t testing.TB) { last.Becomes(t, Done) }, "is waiting", "held by the Hold at automutextest_test.go:")
	fails(t, func(t testing.TB) { server.Drain(t) }, "not drained within 50ms", task.info.ID, "{work|1}")
	g.patience = redistest.Patience
}

// A handler that does not end fails the test instead of hanging it.
func TestServe_handlerThatStays(t *testing.T) {
	t.Parallel()
	let, began, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	fails(t, func(t testing.TB) {
		g := New(t, turns())
		g.patience = 10 * time.Millisecond
		server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			defer close(ended)
			close(began)
			<-let
			return nil
		})))
		server.Enqueue(t, work(one))
		<-began
	}, "a handler still runs")
	close(let)
	<-ended
}

// The tasks of an ordered key run in the order of their Enqueue, also behind a Hold, and through a failure. Rules
// beside an ordered one can be held and closed, too.
func TestOrdered(t *testing.T) {
	t.Parallel()
	for n, first := range map[int]Outcome{10: Waiting, 1: HandedBack} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			cfg := turns()
			cfg.Rules = append(cfg.Rules, automutex.Rule{Task: "order", On: []string{"id"}, InOrder: true, MaxQueued: 3,
				OnArchive: automutex.Continue})
			g := New(t, cfg)
			order := func(n int) *asynq.Task { return asynq.NewTask("order", fmt.Appendf(nil, `{"id": 1, "n": %d}`, n)) }
			var mu sync.Mutex
			var ran []string
			server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
				mu.Lock()
				defer mu.Unlock()
				if ran = append(ran, string(task.Payload()[15:16])); len(ran) == 1 {
					return errors.New("once")
				}
				return nil
			})), workers(n))
			release := Hold(t, g, order(0))
			tasks := []*Task{server.Enqueue(t, order(1)), server.Enqueue(t, order(2)), server.Enqueue(t, order(3))}
			fails(t, func(t testing.TB) { server.Enqueue(t, order(4)) }, "Enqueue", "order")
			tasks[0].Becomes(t, first)
			release()
			tasks[0].Becomes(t, Failed)
			tasks[1].Becomes(t, HandedBack)
			tasks[0].Again(t)
			server.Drain(t)
			for _, task := range tasks {
				task.Becomes(t, Done)
			}
			if mu.Lock(); !slices.Equal(ran, []string{"1", "1", "2", "3"}) {
				t.Errorf("%q ran", ran)
			}
			mu.Unlock()
			CloseGate(t, g, work(one), time.Minute)
			CloseGate(t, g, order(0), time.Minute)
			server.Enqueue(t, work(one)).Becomes(t, HandedBack)
			server.Enqueue(t, order(4)).Becomes(t, HandedBack)
		})
	}
}

// A task that a Client parks behind others goes on by itself.
func TestBecomes_parkedByItsClient(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Park)))
	server := Serve(t, g, g.Middleware(returns(nil)), workers(1))
	release := Hold(t, g, work(one))
	server.Enqueue(t, work(one)).Becomes(t, HandedBack)
	info, err := server.Client().Enqueue(work(one))
	redistest.Must(t, err)
	if info.State != asynq.TaskStateScheduled {
		t.Fatalf("it is %s", info.State)
	}
	var wg sync.WaitGroup
	redistest.Go(&wg, release)
	server.Follow(t, info).Becomes(t, Done)
	wg.Wait()
}

// The Inspector of the program's Config is for another Redis, which is not there: nobody asks it, and a parked task
// runs.
func TestNew_inspector(t *testing.T) {
	t.Parallel()
	other := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer other.Close()
	cfg := turns(busy(automutex.Park))
	cfg.Inspector = asynq.NewInspectorFromRedisClient(other)
	g := New(t, cfg)
	server := Serve(t, g, g.Middleware(returns(nil)), workers(1))
	release := Hold(t, g, work(one))
	task := server.Enqueue(t, work(one))
	task.Becomes(t, HandedBack)
	release()
	task.Becomes(t, Done)
}

// everything is one group.
func everything(*asynq.Task) string { return "everything" }

func TestWatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule func(*automutex.Rule)
		wrap bool
		want []string // of the failure
	}{
		"in turns by retrying": {busy(automutex.Retry), true, nil},
		"in turns by waiting":  {func(r *automutex.Rule) { r.Wait = time.Minute }, true, nil},
		"in turns by parking":  {busy(automutex.Park), true, nil},
		"no middleware": {busy(automutex.Retry), false,
			[]string{`runs of "everything" at once, want at most 1`, "{work|1}", "without a lock", "guard.Middleware"}},
		"a field too many": {func(r *automutex.Rule) { r.On = []string{"id", "n"} }, true, []string{"at once", "{work|1|"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := New(t, turns(c.rule))
			var n atomic.Int32
			runs := Watch(t, g, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				n.Add(1)
				redistest.Eventually(t, redistest.Patience, func() bool { return c.want == nil || n.Load() > 1 }, "two")
				return nil
			}), everything)
			fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 1) }, "never ran")
			handler := asynq.Handler(runs)
			if c.wrap {
				handler = g.Middleware(runs)
			}
			server := Serve(t, g, handler)
			for i := range 10 {
				server.Enqueue(t, work(fmt.Sprintf(`{"id": 1, "n": %d}`, i)))
			}
			server.Drain(t)
			if c.want == nil {
				runs.AtMostAtOnce(t, 1)
			} else {
				fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 1) }, c.want...)
			}
			runs.AtMostAtOnce(t, 10)
		})
	}
}

// What becomes of a task within a task is not the outer one's outcome.
func TestTask_within(t *testing.T) {
	t.Parallel()
	g := New(t, automutex.Config{Rules: []automutex.Rule{{Task: "work"}, {Task: "inner", Busy: automutex.Skip}}})
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc("work", func(ctx context.Context, _ *asynq.Task) error {
		return mux.ProcessTask(ctx, asynq.NewTask("inner", nil))
	})
	mux.HandleFunc("inner", func(context.Context, *asynq.Task) error { return nil })
	s := Serve(t, g, mux)
	Hold(t, g, asynq.NewTask("inner", nil))
	s.Enqueue(t, asynq.NewTask("work", nil)).Becomes(t, Done)
}
