package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The policy Replace, as DESIGN and the README have it. TestReplace_* here are
// about two tasks and what they hear of each other, those in newest_test.go
// about who is newer, and about faults.

// replacing is a rule for tasks of type "work", keyed on id.
func replacing(rule Rule) Rule {
	rule.Task, rule.On, rule.Busy = "work", []string{"id"}, Replace
	return rule
}

// awaitRevoked waits until asynq has the task no more, which is to have ended so.
func (r *rig) awaitRevoked(id string) Event {
	r.t.Helper()
	event := r.awaitEvent(EventReplaced, id)
	redistest.Eventually(r.t, patience, func() bool {
		_, err := r.inspector.GetTaskInfo(r.queue, id)
		return errors.Is(err, asynq.ErrTaskNotFound)
	}, "asynq has dropped the task %s", id)
	return event
}

// awaitForgotten waits until no arrival is known at the key any more.
func (r *rig) awaitForgotten(scope string, parts ...string) {
	r.t.Helper()
	key := r.lockOf(scope, parts...).Key() + ":arrivals"
	redistest.Eventually(r.t, patience, func() bool {
		n, err := r.rdb.Exists(context.Background(), key).Result()
		return err == nil && n == 0
	}, "no arrivals at %s", key)
}

// untouched reports what reaches the server's own functions.
func untouched(t *testing.T) func(*asynq.Config) {
	return func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			t.Errorf("the ErrorHandler was told: %v", err)
		})
		c.IsFailure = func(err error) bool {
			t.Errorf("IsFailure was asked: %v", err)
			return true
		}
	}
}

// The holder stops with an error, whatever it is: its task is over, neither
// failed nor archived nor retried, on its last attempt too.
func TestReplace_holderReturnsAnError(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{replacing(Rule{})}, served: untouched(t)})
		for i, answer := range []error{ErrReplaced, errors.New("cut short"), context.Canceled, fmt.Errorf("no: %w", asynq.SkipRetry)} {
			old := r.enqueue("work", one, asynq.MaxRetry(i%2))
			running := r.stage.next(t)
			young := r.enqueue("work", one)
			if cause := running.awaitEnd(t); !errors.Is(cause, ErrReplaced) || !errors.Is(running.ctx.Err(), context.Canceled) {
				t.Errorf("the context ended with %v, cause %v", running.ctx.Err(), cause)
			}
			r.awaitLine(1, "work", "1")
			r.stage.none(t) // it has not returned yet
			running.returns(answer)
			next := r.stage.next(t)
			if next.id != young {
				t.Fatalf("%s runs after it", next.id)
			}
			event := r.awaitRevoked(old)
			if event.Rule != "work" || event.Key != r.lockOf("work", "1").Key() || event.Policy != Replace || event.Held <= 0 || event.Waited != 0 {
				t.Errorf("got %+v", event)
			}
			next.returns(nil)
			r.await(young, asynq.TaskStateCompleted)
			if kinds := r.seen.kindsOf(old); !slices.Equal(kinds, []EventKind{EventAcquired, EventReplaced, EventReleased}) {
				t.Errorf("events of the old one: %v", kinds)
			}
			if kinds := r.seen.kindsOf(young); !slices.Equal(kinds, []EventKind{EventAcquired, EventReleased}) {
				t.Errorf("events of the new one: %v", kinds)
			}
		}
		r.awaitForgotten("work", "1")
		if text := r.log.text(0); text != "" { // at Info and above
			t.Errorf("logged:\n%s", text)
		}
	})
}

// The holder finishes all the same: it is done.
func TestReplace_holderReturnsNil(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{replacing(Rule{})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		young := r.enqueue("work", one)
		running.awaitEnd(t)
		running.returns(nil)
		r.await(old, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		if kinds := r.seen.kindsOf(old); !slices.Equal(kinds, []EventKind{EventAcquired, EventReleased}) {
			t.Errorf("events of the old one: %v", kinds)
		}
		r.awaitForgotten("work", "1")
	})
}

// The holder does not listen: its lease is renewed for as long as it runs, and it
// is not overlapped.
func TestReplace_holderDoesNotListen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const ttl = 2 * time.Second // a renewal may be late on a busy machine
		r := start(t, s, setup{rules: []Rule{replacing(Rule{TTL: ttl, Wait: time.Hour})}})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		lease, _ := Lease(running.ctx)
		young := r.enqueue("work", one)
		running.awaitEnd(t)
		asked := time.Now()
		redistest.Eventually(t, patience, func() bool { return lease.Deadline().After(asked.Add(ttl)) }, "renewed after it was asked to stop")
		r.awaitLine(1, "work", "1")
		r.stage.none(t)
		running.returns(errors.New("at last"))
		r.stage.next(t).returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		r.awaitRevoked(old)
		if most := r.stage.mostAtOnce("work"); most != 1 {
			t.Errorf("%d at once", most)
		}
	})
}

// The holder takes longer than the newcomer's Wait, or its TTL where there is
// none: the newcomer goes back, unspent, and comes again.
func TestReplace_waitPasses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const long = 300 * time.Millisecond
		for _, rule := range []Rule{{Wait: long}, {TTL: long}} {
			r := start(t, s, setup{rules: []Rule{replacing(rule)}, served: untouched(t)})
			old := r.enqueue("work", one)
			running := r.stage.next(t)
			young := r.enqueue("work", one)
			info := r.awaitRetried(young, 0)
			if !strings.Contains(info.LastErr, r.lockOf("work", "1").Key()) || !strings.Contains(info.LastErr, old) {
				t.Errorf("the last error is %q", info.LastErr)
			}
			if event := r.awaitEvent(EventBusy, young); event.Waited < long || event.Policy != Replace {
				t.Errorf("got %+v", event)
			}
			if event := r.awaitEvent(EventRetried, young); event.Delay < time.Second || event.Delay > 5*time.Second || event.Policy != Replace {
				t.Errorf("got %+v", event)
			}
			running.awaitEnd(t)
			running.returns(errors.New("stopped"))
			r.awaitRevoked(old)
			r.rerun(young)
			r.stage.next(t).returns(nil)
			r.await(young, asynq.TaskStateCompleted)
			r.stop()
		}
	})
}

// A newcomer that waits is replaced by a newer one, and never runs.
func TestReplace_waiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{replacing(Rule{Wait: time.Hour})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		var waits string
		for i := range 3 {
			young := r.enqueue("work", one, asynq.MaxRetry(i)) // on its last attempt, too
			if waits != "" {
				if event := r.awaitRevoked(waits); event.Waited <= 0 || event.Held != 0 || event.Rule != "work" || event.Policy != Replace {
					t.Errorf("got %+v", event)
				}
				if kinds := r.seen.kindsOf(waits); !slices.Equal(kinds, []EventKind{EventBusy, EventReplaced}) {
					t.Errorf("events %v", kinds)
				}
			}
			waits = young
			r.awaitLine(1, "work", "1")
		}
		r.stage.none(t)
		running.returns(context.Cause(running.ctx))
		next := r.stage.next(t)
		if next.id != waits {
			t.Errorf("%s runs, want the newest", next.id)
		}
		next.returns(nil)
		r.awaitRevoked(old)
		r.await(waits, asynq.TaskStateCompleted)
		if n := r.stage.count(); n != 2 {
			t.Errorf("%d runs", n)
		}
		r.awaitForgotten("work", "1")
	})
}

// The newcomer's own earlier attempt is in the way: that is the same task.
func TestReplace_sameTask(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w, locks := watch(t, s)
		r := start(t, s, setup{rules: []Rule{replacing(Rule{Wait: time.Hour})}, locks: locks})
		id := r.enqueue("work", one)
		running := r.stage.next(t)
		running.cut()
		r.awaitRetried(id, 1)
		r.rerun(id)
		if event := r.awaitEvent(EventRetried, id); event.Delay > 5*time.Second {
			t.Errorf("got %+v", event)
		}
		if event := r.awaitEvent(EventBusy, id); !event.Busy.SameTask || event.Waited != 0 {
			t.Errorf("got %+v", event)
		}
		r.awaitRetried(id, 1)
		// The earlier attempt was not asked, and cannot be by its own task.
		if events := r.seen.list(EventReplaced); len(events) > 0 {
			t.Errorf("got %+v", events)
		}
		// It is by another: asynq has filed it already, and it comes back, as old
		// as it was.
		young := r.enqueue("work", one)
		r.awaitLine(1, "work", "1")
		running.returns(errors.New("late"))
		newer := r.stage.next(t)
		r.rerun(id)
		r.awaitLine(1, "work", "1")
		w.await(t, 2)
		if newer.ctx.Err() != nil {
			t.Errorf("a retried task stopped a newer one: %v", context.Cause(newer.ctx))
		}
		newer.returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		r.awaitForgotten("work", "1")
	})
}

// Without attempts left a newcomer waits in its worker for as long as it takes,
// sees that older ones stop, and is replaced there like any other.
func TestReplace_lastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{replacing(Rule{Wait: 100 * time.Millisecond})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		last := r.enqueue("work", one, asynq.MaxRetry(0))
		r.awaitEvent(EventBusy, last) // its Wait is over
		r.awaitLine(1, "work", "1")
		newer := r.enqueue("work", one, asynq.MaxRetry(0))
		event := r.awaitRevoked(last)
		if kinds := r.seen.kindsOf(last); !slices.Equal(kinds, []EventKind{EventBusy, EventReplaced}) || event.Waited <= 0 {
			t.Errorf("events %v; %+v", kinds, event)
		}
		r.awaitEvent(EventBusy, newer)
		r.awaitLine(1, "work", "1")
		r.stage.none(t)
		running.returns(context.Cause(running.ctx))
		next := r.stage.next(t)
		next.returns(nil)
		r.await(newer, asynq.TaskStateCompleted)
		r.awaitRevoked(old)
	})
}

// A holder that panics when it is asked fails like any other.
func TestReplace_panic(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var first sync.Once
		running := make(chan struct{})
		r := start(t, s, setup{rules: []Rule{replacing(Rule{})}, handler: func(ctx context.Context, _ *asynq.Task) error {
			first.Do(func() {
				close(running)
				<-ctx.Done()
				panic("boom")
			})
			return nil
		}})
		old := r.enqueue("work", one)
		<-running
		young := r.enqueue("work", one)
		r.await(young, asynq.TaskStateCompleted)
		if info := r.awaitRetried(old, 1); !strings.Contains(info.LastErr, "boom") {
			t.Errorf("the last error is %q", info.LastErr)
		}
	})
}

// Close: newcomers go back to asynq, and the holder is left to itself.
func TestReplace_close(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{replacing(Rule{Wait: time.Hour, Limit: 2})}})
		olds := []string{r.enqueue("work", one), r.enqueue("work", one)}
		runs := []*run{r.stage.next(t), r.stage.next(t)}
		youngs := []string{r.enqueue("work", one), r.enqueue("work", one)}
		r.awaitLine(2, "work", "1")
		for _, run := range runs {
			run.awaitEnd(t)
		}
		closed := r.closing(t.Context())
		for _, id := range youngs {
			if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, "closed") {
				t.Errorf("the last error is %q", info.LastErr)
			}
		}
		for _, run := range runs {
			run.returns(context.Cause(run.ctx))
		}
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		for _, id := range olds {
			r.awaitRevoked(id)
		}
		r.stage.none(t)
	})
}

// Where no more workers may wait the newcomer goes back at once, but the older
// one has been asked.
func TestReplace_maxWaiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules:   []Rule{replacing(Rule{Wait: time.Hour}), {Task: "other", Wait: time.Hour}},
			guarded: func(c *Config) { c.MaxWaiting = 1 },
		})
		taken := r.take("other")
		other := r.enqueue("other", nil)
		r.awaitLine(1, "other")
		r.enqueue("work", one)
		running := r.stage.next(t)
		r.awaitSubscribed()
		young := r.enqueue("work", one)
		r.awaitRetried(young, 0)
		if event := r.awaitEvent(EventBusy, young); event.Waited != 0 {
			t.Errorf("it waited: %+v", event)
		}
		running.awaitEnd(t)
		running.returns(nil)
		r.free(taken)
		r.stage.next(t).returns(nil)
		r.await(other, asynq.TaskStateCompleted)
	})
}

// awaitSubscribed waits until the guard hears messages.
func (r *rig) awaitSubscribed() {
	r.t.Helper()
	prefix := r.guard.cfg.Prefix
	channels := func(rdb redis.UniversalClient) (n int) {
		cluster, ok := rdb.(*redis.ClusterClient)
		if !ok {
			return len(rdb.PubSubChannels(context.Background(), prefix+":*").Val())
		}
		var mu sync.Mutex // ForEachMaster calls at once
		_ = cluster.ForEachMaster(context.Background(), func(ctx context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			n += len(node.PubSubChannels(ctx, prefix+":*").Val())
			return nil
		})
		return n
	}
	redistest.Eventually(r.t, patience, func() bool { return channels(r.rdb) > 0 }, "a subscription")
}

// A task that waits for its second lock holds the first, and is asked for that.
func TestReplace_severalLocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []Rule{
			{Task: "work", Name: "first", Scope: "first", Busy: Replace, Wait: time.Hour},
			{Task: "work", Name: "second", Scope: "second", Busy: Skip, Wait: time.Hour},
		}
		r := start(t, s, setup{rules: rules})
		taken := r.take("second")
		old := r.enqueue("work", nil)
		r.awaitLine(1, "second")
		young := r.enqueue("work", nil)
		if event := r.awaitRevoked(old); event.Rule != "first" || event.Key != r.lockOf("first").Key() {
			t.Errorf("got %+v", event)
		}
		r.stage.none(t)
		r.free(taken)
		next := r.stage.next(t)
		if next.id != young {
			t.Errorf("%s runs", next.id)
		}
		next.returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		if events := r.seen.list(EventSkipped); len(events) > 0 {
			t.Errorf("skipped for having been asked to stop: %+v", events)
		}
	})
}

// Holders that know nothing of newer and older are left alone: of another rule
// with the same Scope, or from outside asynq.
func TestReplace_leavesOthersAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := replacing(Rule{Wait: time.Hour})
		rule.Scope = "shared"
		r := start(t, s, setup{rules: []Rule{rule, {Task: "plain", Scope: "shared", On: []string{"id"}}}})
		plain := r.enqueue("plain", one)
		running := r.stage.next(t)
		young := r.enqueue("work", one)
		r.awaitLine(1, "shared", "1")
		newer := r.enqueue("work", one)
		r.awaitRevoked(young)
		if running.ctx.Err() != nil {
			t.Errorf("the context of another policy's task ended: %v", context.Cause(running.ctx))
		}
		running.returns(nil)
		r.await(plain, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(newer, asynq.TaskStateCompleted)
	})
}

// A cooldown is waited for; it is no reason for those who wait not to be replaced.
func TestReplace_cooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown = time.Second
		r := start(t, s, setup{rules: []Rule{replacing(Rule{Wait: time.Hour, Cooldown: cooldown})}})
		began := time.Now()
		r.await(r.runs(r.enqueue("work", one)), asynq.TaskStateCompleted)
		old := r.enqueue("work", one)
		r.awaitLine(1, "work", "1")
		young := r.enqueue("work", one)
		r.awaitRevoked(old)
		r.await(r.runs(young), asynq.TaskStateCompleted)
		if took := time.Since(began); took < cooldown {
			t.Errorf("it ran after %s of a cooldown of %s", took, cooldown)
		}
	})
}

// runs ends the next run, which is to be that task's, without an error.
func (r *rig) runs(id string) string {
	r.t.Helper()
	run := r.stage.next(r.t)
	if run.id != id {
		r.t.Errorf("%s runs, want %s", run.id, id)
	}
	run.returns(nil)
	return id
}

// Asked to stop before its handler began, a task does not run, and holds nothing.
func TestReplace_askedBeforeItRuns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seen := &events{}
		guard := newGuard(t, s, &logged{}, seen, replacing(Rule{}))
		task := asynq.NewTask("work", []byte(`{"id":1}`))
		targets, err := guard.rules.targets(t.Context(), task, guard.cfg.Prefix)
		if err != nil {
			t.Fatal(err)
		}
		a := guard.newAttempt(t.Context(), task)
		if err := a.arrive(targets[0]); err != nil {
			t.Fatal(err)
		}
		a.newest.ask(targets[0])
		err, _ = guard.guarded(a, targets, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			t.Error("it runs")
			return nil
		}))
		if !errors.Is(err, ErrReplaced) || !errors.Is(err, asynq.RevokeTask) {
			t.Errorf("answered %v", err)
		}
		if is, err := guard.lockOf(targets[0]).Locked(t.Context()); is || err != nil {
			t.Errorf("the key is locked: %v, %v", is, err)
		}
	})
}

// lockOf is the lock of a target, to look at.
func (g *Guard) lockOf(t target) *lock.Lock {
	return g.locker.Semaphore(t.scope, t.rule.Limit, lock.Parts(t.parts...))
}

// Each guard knows its own answer, whatever it is wrapped in.
func TestReplace_answer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, other := newGuard(t, s, &logged{}, &events{}), newGuard(t, s, &logged{}, &events{})
		cause := errors.New("cause")
		inner := &revoked{guard: one, rule: "r", key: "k", err: cause}
		for name, err := range map[string]error{
			"plain":     inner,
			"wrapped":   fmt.Errorf("more: %w", inner),
			"in others": &revoked{guard: other, err: fmt.Errorf("more: %w", inner)},
		} {
			told := 0
			cfg := one.ServerConfig(asynq.Config{
				IsFailure:    func(error) bool { told++; return true },
				ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told++ }),
			})
			cfg.ErrorHandler.HandleError(t.Context(), nil, err)
			if cfg.IsFailure(err) || told > 0 {
				t.Errorf("%s: a failure, or told of (%d times)", name, told)
			}
			if !errors.Is(err, asynq.RevokeTask) || !errors.Is(err, ErrReplaced) || !errors.Is(err, cause) {
				t.Errorf("%s: %v", name, err)
			}
			if other.revokes(err) != (name == "in others") {
				t.Errorf("%s: the other guard takes it for its own, or not", name)
			}
		}
		for _, err := range []error{nil, cause, ErrReplaced, asynq.RevokeTask} {
			if one.revokes(err) {
				t.Errorf("%v is taken for the guard's own", err)
			}
		}
		if text := inner.Error(); text != `automutex: rule "r": key "k": replaced by a newer task: cause` {
			t.Errorf("its text is %q", text)
		}
	})
}

// Outside of a server every call is a task of its own, and the last one wins.
func TestReplace_outsideAServer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		guard := newGuard(t, s, &logged{}, &events{}, replacing(Rule{}))
		began := make(chan struct{}, 2)
		handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			began <- struct{}{}
			if _, waits := ctx.Deadline(); !waits {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}))
		task := asynq.NewTask("work", []byte(`{"id":1}`))
		old := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			old <- handler.ProcessTask(ctx, task)
		}()
		<-began
		if err := handler.ProcessTask(t.Context(), task); err != nil {
			t.Errorf("the new one: %v", err)
		}
		err := <-old
		if !errors.Is(err, ErrReplaced) || !errors.Is(err, asynq.RevokeTask) || errors.Is(err, lock.ErrLost) {
			t.Errorf("the old one: %v", err)
		}
		if want := "automutex: rule \"work\": key \"" + guard.cfg.Prefix + ":{work|1}\": replaced by a newer task"; err.Error() != want {
			t.Errorf("its text is %q, want %q", err, want)
		}
	})
}
