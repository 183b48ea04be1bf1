package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

// Two tasks for one entity take turns; a third for another does not wait.
func TestMiddleware_mux(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules: []automutex.Rule{{Task: "itunes:verify", On: []string{"transaction_id"}, Wait: time.Minute,
				Busy: automutex.Retry}},
			wrap: func(g *automutex.Guard, h asynq.Handler) asynq.Handler {
				mux := asynq.NewServeMux()
				mux.Use(g.Middleware)
				mux.Handle("itunes:", h)
				mux.Handle("other", h)
				return mux
			},
		})
		r.enqueue("itunes:verify", map[string]int{"transaction_id": 7})
		run := r.next()
		second := r.enqueue("itunes:verify", map[string]string{"transaction_id": "7"})
		r.awaitLine(1, "itunes:verify", "7")
		for _, taskType := range []string{"itunes:verify", "itunes:other", "other"} {
			r.ends(r.nextIs(r.enqueue(taskType, map[string]int{"transaction_id": 8})))
		}
		r.ends(run)
		r.finish(second)
		if line := r.log.Text(-100); line != "" {
			t.Errorf("logged: %s", line)
		}
	})
}

// A task without a rule: nothing of the guard's, no Redis, no allocation.
func TestMiddleware_unmatched(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Mini(t).Addr())
	guard, err := automutex.New(p.Client(t), automutex.Config{Rules: []automutex.Rule{{Task: "work"}}})
	redistest.Must(t, err)
	defer func() { _ = guard.Close(context.Background()) }()
	type key struct{}
	given, task, failed := context.WithValue(context.Background(), key{}, 1), asynq.NewTask("play", nil),
		errors.New("failed")
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, got *asynq.Task) error {
		if ctx != given || got != task {
			t.Error("not what was given")
		}
		return failed
	}))
	if err := handler.ProcessTask(given, task); err != failed {
		t.Errorf("got %v", err)
	}
	if len(p.Commands()) > 0 {
		t.Errorf("Redis was asked %v", p.Commands())
	}
}

func TestMiddleware_direct(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		log, seen := &redistest.Log{}, &events{}
		guard := newGuard(t, s, log, seen, automutex.Rule{Task: "work", On: onID, Fence: true, Busy: automutex.Retry})
		task := asynq.NewTask("work", []byte(`{"id":1}`))
		inner := errors.New("inner")
		err := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			lease, ok := automutex.Lease(ctx)
			if fence, err := automutex.Fence(ctx); !ok || lease == nil || fence == 0 || err != nil {
				t.Error("no lease")
			}
			err := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				t.Error("a second run of the key")
				return nil
			})).ProcessTask(context.Background(), task)
			var busy *automutex.BusyError
			if !errors.As(err, &busy) || busy.SameTask || busy.HolderTask != "" {
				t.Errorf("the second run gives %v", err)
			}
			return inner
		})).ProcessTask(context.Background(), task)
		if err != inner {
			t.Errorf("got %v", err)
		}
		if text := log.Text(-100); text != "" {
			t.Errorf("logged: %s", text)
		}
		for _, event := range seen.list() {
			if event.Task != "work" || event.Queue != "" || event.TaskID != "" {
				t.Errorf("got %+v", event)
			}
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		err = guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			t.Error("it runs for an ended context")
			return nil
		})).ProcessTask(ended, task)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestMiddleware_panic(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		told, served := telling()
		r := start(t, s, setup{
			rules:   []automutex.Rule{{Busy: automutex.Retry}},
			served:  served,
			handler: func(context.Context, *asynq.Task) error { panic("at the disco") },
		})
		id := r.enqueue("work", nil)
		info := r.awaitRetried(id, 1)
		if err := <-told; !asynq.IsPanicError(err) {
			t.Errorf("the ErrorHandler was told %v", err)
		}
		// asynq names where the panic came from: this very file.
		says(t, info.LastErr, "middleware_test.go:", "at the disco")
		r.wantLocked(false, "work")
		r.wantKinds(id, automutex.EventAcquired, automutex.EventReleased)
	})
}

// The same Middleware twice around one handler does not wait for itself.
func TestMiddleware_twice(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules: []automutex.Rule{{Scope: "a", Busy: automutex.Retry}, {Scope: "b", Busy: automutex.Retry}},
			wrap: func(g *automutex.Guard, h asynq.Handler) asynq.Handler {
				return g.Middleware(g.Middleware(h))
			},
		})
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		run := r.next()
		for _, name := range []string{"work", "work#2"} {
			if _, ok := automutex.LeaseOf(run.ctx, name); !ok {
				t.Errorf("no lease of %s", name)
			}
		}
		r.awaitRetried(r.enqueue("work", nil), 0)
		began := time.Now()
		run.returns(automutex.RetryAfter(time.Second, nil))
		eventually(t, func() bool { return !r.locked("a") && !r.locked("b") || len(r.stage.started) > 0 },
			"the locks are free")
		r.finish(id)
		if took := time.Since(began); took < time.Second {
			t.Errorf("it ran again after %s", took)
		}
		if kinds := r.seen.kindsOf(id); len(kinds) < 8 {
			t.Errorf("events %v", kinds)
		}
	})
}

// A handler that runs another task of its key in the same call does not wait for itself, and the key stays taken until
// it returns.
func TestMiddleware_taskWithinATask(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		guard := newGuard(t, s, &redistest.Log{}, &events{}, automutex.Rule{Task: "work", On: onID, Busy: automutex.Fail})
		var ran []string
		var handler asynq.Handler
		handler = guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			ran = append(ran, string(task.Payload()))
			if len(ran) > 2 {
				return nil
			}
			for _, payload := range []string{`{"id":1}`, `{"id":2}`} {
				if err := handler.ProcessTask(ctx, asynq.NewTask("work", []byte(payload))); err != nil {
					return err
				}
			}
			err := handler.ProcessTask(context.Background(), asynq.NewTask("work", []byte(`{"id":1}`)))
			if !errors.Is(err, lock.ErrBusy) {
				t.Errorf("another call meanwhile: %v, want that the key is busy", err)
			}
			return nil
		}))
		if err := handler.ProcessTask(t.Context(), asynq.NewTask("work", []byte(`{"id":1}`))); err != nil || len(ran) < 3 {
			t.Errorf("%v; ran %q", err, ran)
		}
	})
}

// A task within a task leaves the claim of the outer one, and the wait of a RetryAfter to it.
func TestMiddleware_withinTheLastAttempt(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), setup{
		rules: []automutex.Rule{{Task: "work"}, {Task: "part"}},
		wrap: func(g *automutex.Guard, stage asynq.Handler) asynq.Handler {
			part := g.Middleware(asynq.HandlerFunc(func(context.Context,
				*asynq.Task) error {
				return automutex.RetryAfter(0, nil)
			}))
			free := g.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
			return g.Middleware(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				err := part.ProcessTask(ctx, asynq.NewTask("part", nil))
				if err := free.ProcessTask(ctx, asynq.NewTask("free", nil)); err != nil {
					t.Error(err)
				}
				return cmp.Or(stage.ProcessTask(ctx, task), err)
			}))
		},
	})
	_, err := r.once(unique.Rule{Task: "work", Duplicate: unique.Replace}).Enqueue(asynq.NewTask("work", nil),
		asynq.MaxRetry(0))
	redistest.Must(t, err)
	for _, result := range []error{nil, asynq.RevokeTask} {
		run := r.next()
		if lasts := r.rdb.PTTL(t.Context(), r.lockOf("work").Key()+":claim").Val(); lasts < time.Hour {
			t.Errorf("the claim ends in %s", lasts)
		}
		run.returns(result)
	}
}

func TestMiddleware_lease(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{Name: "turns", On: onID, Fence: true,
		Busy: automutex.Retry}, {Task: "free", Busy: automutex.Retry}}}, func(t *testing.T, r *rig) {
		var last int64
		for range 5 {
			id := r.enqueueOne()
			run := r.next()
			lease, ok := automutex.Lease(run.ctx)
			named, named2 := automutex.LeaseOf(run.ctx, "turns")
			fence, err := automutex.Fence(run.ctx)
			again, err2 := lease.Fence()
			if !ok || err != nil || err2 != nil || !named2 || lease != named || again != fence {
				t.Fatalf("got %v %v %v %v %v %v %v", lease, named, fence, again, ok, err, err2)
			}
			if fence <= last {
				t.Errorf("the fence %d follows %d", fence, last)
			}
			last = fence
			holders, err := r.lockOf("work", "1").Holders(t.Context())
			if err != nil || len(holders) != 1 || holders[0].Token != lease.Token() ||
				holders[0].Owner != "this-worker" || holders[0].Note != url.PathEscape(r.queue)+"/"+id {
				t.Errorf("the holders are %+v, %v", holders, err)
			}
			if _, ok := automutex.LeaseOf(run.ctx, "free"); ok {
				t.Error("a lease of a rule that does not apply")
			}
			r.ends(run)
		}
		ctx := t.Context()
		if _, ok := automutex.Lease(ctx); ok {
			t.Error("a lease outside")
		}
		if _, ok := automutex.LeaseOf(ctx, "turns"); ok {
			t.Error("a lease of a rule outside")
		}
		if fence, err := automutex.Fence(ctx); !errors.Is(err, lock.ErrNotHeld) || fence != 0 {
			t.Error("a fence outside")
		}
	})
}

func TestMiddleware_limit(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const limit, workers, tasks = 3, 16, 15
		r := start(t, s, setup{workers: workers, rules: []automutex.Rule{{Limit: limit, Wait: time.Minute,
			Busy: automutex.Retry}}})
		var ids []string
		for range tasks {
			ids = append(ids, r.enqueue("work", nil))
		}
		var runs []*run
		for range limit {
			runs = append(runs, r.next())
		}
		r.awaitLine(tasks-limit, "work")
		for n := limit; len(runs) > 0; n++ {
			r.none()
			runs[0].returns(nil)
			runs = runs[1:]
			if n < tasks {
				runs = append(runs, r.next())
			}
		}
		for _, id := range ids {
			r.awaitDone(id)
		}
		r.wantAtOnce("work", limit)
	})
}

func TestMiddleware_keyError(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		told, served := telling()
		r := start(t, s, setup{rules: []automutex.Rule{{On: []string{"user.id"}, Busy: automutex.Skip}}, served: served})
		for payload, text := range map[string]string{
			`{"user":{"id":`:           "JSON",
			``:                         "payload",
			`{"user":{}}`:              `"user.id"`,
			`{"user":{"id":null}}`:     `"user.id"`,
			`{"user":{"id":""}}`:       `"user.id"`,
			`{"user":{"id":"\ud800"}}`: `"user.id"`,
		} {
			for _, attempts := range []int{3, 0} {
				id := r.enqueue("work", payload, asynq.MaxRetry(attempts))
				info := r.awaitArchived(id)
				if !strings.Contains(info.LastErr, text) || !strings.Contains(info.LastErr, `"work"`) || info.Retried != 0 {
					t.Errorf("%s: archived after %d with %q", payload, info.Retried, info.LastErr)
				}
				var unkeyed *automutex.KeyError
				event := r.awaitEvent(automutex.EventKeyError, id)
				if !errors.As(event.Err, &unkeyed) || event.Task != "work" || event.Queue != r.queue {
					t.Errorf("%s: got %+v", payload, event)
				}
				if err := <-told; !errors.As(err, &unkeyed) || !errors.Is(err, asynq.SkipRetry) {
					t.Errorf("%s: the ErrorHandler was told %v", payload, err)
				}
			}
		}
		r.none()
		if !strings.Contains(r.log.Text(0), "no key") {
			t.Error("nothing is logged")
		}
	})
}

func transfers(wait time.Duration, busy automutex.Policy) []automutex.Rule {
	return []automutex.Rule{
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"from"}, Wait: wait, Busy: busy},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}, Wait: wait, Busy: busy},
	}
}

type transfer struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Many transfers in all directions, some from an account to itself: never two
// at one account, and none waits for another that waits for it.
func TestSeveral_transfersUnderLoad(t *testing.T) {
	redistest.Long(t)
	each(t, func(t *testing.T, s *redistest.Server) {
		const accounts, tasks, workers = 5, 200, 10
		var mu sync.Mutex
		busy, done := [accounts]int{}, 0
		move := func(at transfer, by int) {
			mu.Lock()
			defer mu.Unlock()
			for _, account := range slices.Compact([]int{at.From, at.To}) {
				if busy[account] += by; busy[account] > 1 {
					t.Errorf("%d transfers at account %d", busy[account], account)
				}
			}
		}
		r := start(t, s, setup{
			workers: workers,
			served:  comingBack, // when all workers wait, the newest wait ends, and its task returns
			rules:   transfers(time.Minute, automutex.Retry),
			handler: func(_ context.Context, task *asynq.Task) error {
				var at transfer
				if err := json.Unmarshal(task.Payload(), &at); err != nil {
					return err
				}
				move(at, 1)
				<-time.After(time.Millisecond) // the work
				move(at, -1)
				mu.Lock()
				done++
				mu.Unlock()
				return nil
			},
		})
		random := rand.New(rand.NewPCG(1, 2))
		var ids []string
		for range tasks {
			ids = append(ids, r.enqueue("transfer", transfer{random.IntN(accounts), random.IntN(accounts)}))
		}
		for _, id := range ids {
			r.awaitDone(id)
		}
		if done != tasks {
			t.Errorf("%d transfers are done, of %d", done, tasks)
		}
		r.noEvents(automutex.EventLost)
		for account := range accounts {
			if key := string(rune('0' + account)); r.locked("account", key) {
				t.Errorf("account %s stayed taken", key)
			}
		}
	})
}

// from = to: one lock, found under both names.
func TestSeveral_equalKeys(t *testing.T) {
	eachRig(t, setup{rules: transfers(0, automutex.Retry)}, func(t *testing.T, r *rig) {
		id := r.enqueue("transfer", transfer{3, 3}, asynq.MaxRetry(0))
		run := r.next()
		from, ok := automutex.LeaseOf(run.ctx, "from")
		to, ok2 := automutex.LeaseOf(run.ctx, "to")
		innermost, ok3 := automutex.Lease(run.ctx)
		if !ok || !ok2 || !ok3 || from != to || from != innermost {
			t.Errorf("got %v %v, %v %v, %v", from, ok, to, ok2, innermost)
		}
		r.ends(run)
		r.wantKinds(id, automutex.EventAcquired, automutex.EventReleased)
	})
}

// The rule that is busy names itself, and gives back what came before it. No cooldown comes of a task that did not run.
func TestSeveral_busyInTheMiddle(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{
		{Name: "first", Scope: "a", Cooldown: time.Hour, Busy: automutex.Retry},
		{Name: "second", Scope: "b", Busy: automutex.RetryIn(time.Minute)},
		{Name: "third", Scope: "c", Busy: automutex.Skip},
	}}, func(t *testing.T, r *rig) {
		lease := r.take("b")
		id := r.enqueue("work", nil)
		says(t, r.awaitRetried(id, 0).LastErr, `"second"`)
		if event := r.awaitEvent(automutex.EventRetried, id); event.Rule != "second" || event.Delay != time.Minute {
			t.Errorf("got %+v", event)
		}
		if r.locked("a") || r.locked("c") {
			t.Error("a key stayed taken")
		}
		r.none()
		r.free(lease)
		r.rerun(id)
		run := r.next()
		if !r.locked("a") || !r.locked("b") || !r.locked("c") {
			t.Error("it runs without all its locks")
		}
		third, _ := automutex.LeaseOf(run.ctx, "third")
		if innermost, ok := automutex.Lease(run.ctx); !ok || innermost != third {
			t.Error("Lease is not the one taken last")
		}
		r.ends(run)
		var released []string
		for _, event := range r.seen.list(automutex.EventReleased) {
			released = append(released, event.Rule)
		}
		if want := []string{"first", "third", "second", "first"}; !slices.Equal(released, want) {
			t.Errorf("released %v, want %v", released, want)
		}
	})
}

// The key of a lease is deleted while its handler runs, which is found out at the end if not before.
func TestSeveral_keyDeleted(t *testing.T) {
	eachRig(t, setup{rules: transfers(0, automutex.Retry)}, func(t *testing.T, r *rig) {
		r.enqueue("transfer", transfer{1, 2})
		run := r.next()
		lease, _ := automutex.LeaseOf(run.ctx, "to")
		redistest.Must(t, lease.Unlock(run.ctx))
		r.ends(run)
		r.noEvents(automutex.EventLost, automutex.EventBackendError)
		id := r.enqueue("transfer", transfer{1, 2})
		run = r.next()
		redistest.Must(t, r.rdb.Del(t.Context(), r.lockOf("account", "2").Key()).Err())
		r.ends(run)
		event := r.awaitEvent(automutex.EventLost, id)
		if event.Rule != "to" || !errors.Is(event.Err, lock.ErrLost) || !strings.Contains(r.log.Text(0), event.Key) {
			t.Errorf("got %+v", event)
		}
	})
}
