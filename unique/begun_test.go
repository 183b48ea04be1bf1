package unique

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// record keeps what the handlers of a test were given, in order.
type record struct {
	mu  sync.Mutex // guards ran
	ran []string
}

func (r *record) add(task *asynq.Task) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, text, _ := strings.Cut(string(task.Payload()), `"text":"`)
	r.ran = append(r.ran, strings.TrimSuffix(text, `"}`))
	return len(r.ran)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ran)
}

// A task that waits for its lock in a worker has not begun, though asynq has it as active: the newest
// payload takes its place, and the older one never runs.
func TestSupersede_aTaskThatWaitsInItsWorker(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, rule := range []Rule{
			{Task: "save", On: []string{"id"}, Until: UntilStart, Duplicate: Replace},
			{Task: "save", On: []string{"id"}, Until: UntilStart, Duplicate: Postpone(time.Second), MaxPostpone: 3 * time.Second},
		} {
			for name, guarded := range map[string]automutex.Rule{
				"park": {Busy: automutex.Park}, "wait": {Busy: automutex.Retry, Wait: longest}, "parked": {Busy: automutex.Park},
			} {
				workers, waits := 0, asynq.TaskStateActive // in its worker
				if name == "parked" {
					workers, waits = 2, asynq.TaskStateRetry // the last worker
				}
				t.Run(rule.Duplicate.String()+", "+name, func(t *testing.T) {
					t.Parallel()
					r := start(t, s, rule)
					r.workers = workers
					guarded.Task, guarded.On = rule.Task, rule.On
					goOn := make(chan struct{})
					letGo := sync.OnceFunc(func() { close(goOn) })
					var ran record
					r.serve(func(_ context.Context, task *asynq.Task) error {
						if ran.add(task) == 1 {
							<-goOn
						}
						return nil
					}, r.guard(guarded))
					t.Cleanup(letGo) // before the server's: a test that has failed ends, too
					first := r.must(r.Enqueue(task("save", "7", "1")))
					redistest.Eventually(t, longest, func() bool { return len(ran.all()) == 1 }, "the first one running")
					second := r.must(r.Enqueue(task("save", "7", "2")))
					if rule.Duplicate != Replace {
						_ = r.inspector.RunTask(r.queue, second.ID)
					}
					r.await(r.queue, second.ID, waits)
					third := r.must(r.Enqueue(task("save", "7", "3")))
					fourth := r.must(r.Enqueue(task("save", "7", "4")))
					letGo()
					for _, id := range []string{first.ID, second.ID, third.ID, fourth.ID} {
						r.awaitGone(r.queue, id)
					}
					if got := ran.all(); !slices.Equal(got, []string{"1", "4"}) {
						t.Errorf("%q ran, want the first and the last one", got)
					}
					redistest.Eventually(t, longest, func() bool {
						return r.rdb.Exists(t.Context(), keyOf(r, "save")+":claim").Val() == 0
					}, "the claim having ended with the last of its tasks")
				})
			}
		}
	})
}

// keyOf is the lock's key of the tasks with the ID 7.
func keyOf(r *rig, taskType string) string {
	r.t.Helper()
	keys, err := r.keys.Keys(r.t.Context(), task(taskType, "7", ""))
	if err != nil {
		r.t.Fatal(err)
	}
	return keys[0]
}

// A task whose handler has begun is not superseded, however it came back: by a RetryAfter, with its
// key's gate closed, or because its key is busy now.
func TestSupersede_notATaskThatHasBegun(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, back := range map[string]func(context.Context) error{
			"RetryAfter": func(context.Context) error { return automutex.RetryAfter(time.Hour, errors.New("429")) },
			"CloseGate": func(ctx context.Context) error {
				if err := automutex.CloseGate(ctx, time.Hour); err != nil {
					return err
				}
				return automutex.RetryAfter(time.Hour, errors.New("429"))
			},
			"an error": func(context.Context) error { return errors.New("not yet") },
		} {
			for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
				t.Run(name+", "+duplicate.String(), func(t *testing.T) {
					t.Parallel()
					r := start(t, s, Rule{Task: "price", On: []string{"id"}, Duplicate: duplicate})
					r.serve(func(ctx context.Context, _ *asynq.Task) error { return back(ctx) }, r.guard(automutex.Rule{Task: "price", On: []string{"id"}, Busy: automutex.Park}))
					first := r.must(r.Enqueue(task("price", "7", "first")))
					_ = r.inspector.RunTask(r.queue, first.ID)
					r.await(r.queue, first.ID, asynq.TaskStateRetry)
					info, err := r.Enqueue(task("price", "7", "second"))
					r.mustBeDuplicate(info, err, first.ID, asynq.TaskStateRetry)
					// It comes back and finds its key busy: it has begun all the same.
					locker := lock.New(r.rdb, lock.Options{Prefix: r.prefix})
					t.Cleanup(func() { _ = locker.Close() })
					if _, err := inner.OpenGate(t.Context(), inner.ByKey(locker, keyOf(r, "price"))); err != nil {
						t.Fatal(err)
					}
					holder, err := inner.ByKey(locker, keyOf(r, "price")).Lock(t.Context())
					redistest.Must(t, err)
					_ = r.inspector.RunTask(r.queue, first.ID)
					r.await(r.queue, first.ID, asynq.TaskStateActive)
					info, err = r.Enqueue(task("price", "7", "third"))
					r.mustBeDuplicate(info, err, first.ID, asynq.TaskStateActive)
					_ = holder.Unlock(t.Context())
				})
			}
		}
	})
}

// A task that spent an attempt before its handler began has not begun: its policy is Fail, or its worker
// was killed while it waited.
func TestSupersede_aTaskThatSpentAnAttemptUnrun(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "price", On: []string{"id"}, Duplicate: Replace})
		locker := lock.New(r.rdb, lock.Options{Prefix: r.prefix})
		t.Cleanup(func() { _ = locker.Close() })
		if _, err := inner.ByKey(locker, keyOf(r, "price")).TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.serve(func(context.Context, *asynq.Task) error { return nil }, r.guard(automutex.Rule{Task: "price", On: []string{"id"}, Busy: automutex.Fail}))
		first := r.must(r.Enqueue(task("price", "7", "first")))
		r.await(r.queue, first.ID, asynq.TaskStateRetry)
		if info, err := r.inspector.GetTaskInfo(r.queue, first.ID); err != nil || info.Retried != 1 {
			t.Fatalf("%+v, %v: not what this test is about", info, err)
		}
		second := r.must(r.Enqueue(task("price", "7", "second")))
		if second.ID == first.ID {
			t.Error("it was not superseded")
		}
		r.awaitGone(r.queue, first.ID)
	})
}

// A claim may outlive its begun task, for one that was superseded and is still in a worker. Under UntilStart the begun
// one blocks nothing all the same, also archived and with KeepArchived.
func TestUntilStart_begunBlocksNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "save", Scope: "save", On: []string{"id"}, Until: UntilStart, Duplicate: Replace, KeepArchived: true})
		locker := lock.New(r.rdb, lock.Options{Prefix: r.prefix})
		t.Cleanup(func() { _ = locker.Close() })
		held, err := locker.Mutex("text", lock.Parts("first")).TryLock(t.Context())
		redistest.Must(t, err)
		r.serve(func(context.Context, *asynq.Task) error { return asynq.SkipRetry }, r.guard(
			automutex.Rule{Task: "save", Name: "id", Scope: "save", On: []string{"id"}, Limit: 2, Busy: automutex.Retry},
			automutex.Rule{Task: "save", Name: "text", Scope: "text", On: []string{"text"}, Busy: automutex.Retry, Wait: longest}))
		r.must(r.Enqueue(task("save", "7", "first")))
		redistest.Eventually(t, longest, func() bool {
			n, err := locker.Mutex("text", lock.Parts("first")).Waiting(t.Context())
			return err == nil && n == 1
		}, "the first one waiting in its worker")
		second := r.must(r.Enqueue(task("save", "7", "second")))
		r.await(r.queue, second.ID, asynq.TaskStateArchived)
		claimed, err := r.rdb.Get(t.Context(), keyOf(r, "save")+":claim").Result()
		if err != nil || !strings.Contains(claimed, " begun ") {
			t.Fatalf("the claim is %q, %v: not what this test is about", claimed, err)
		}
		third := r.must(r.Enqueue(task("save", "7", "third")))
		r.await(r.queue, third.ID, asynq.TaskStateArchived)
		_ = held.Unlock(t.Context())
	})
}

// However a task ends, its claim ends with it: the next producer, another one, need not wait at all.
func TestClaim_endsWithItsTaskHoweverItEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := automutex.Rule{Task: "reindex", On: []string{"id"}}
		var held *lock.Lock
		for name, end := range map[string]func(r *rig, id string){
			"skipped": func(r *rig, _ string) {
				rule.Busy = automutex.Skip
				r.serve(func(context.Context, *asynq.Task) error { return nil }, r.guard(rule))
			},
			"archived unrun": func(r *rig, _ string) {
				rule.Busy = automutex.Archive
				r.serve(func(context.Context, *asynq.Task) error { return nil }, r.guard(rule))
			},
			"revoked by the Guard's Replace": func(r *rig, _ string) {
				rule.Busy = automutex.Replace
				r.serve(func(context.Context, *asynq.Task) error { return nil }, r.guard(rule))
				redistest.Eventually(t, longest, func() bool { n, err := held.Waiting(t.Context()); return n == 1 && err == nil }, "the first task in line")
				r.must(r.plain.Enqueue(task("reindex", "7", "newer"), asynq.Queue(r.queue)))
			},
			"run without a rule of the Guard": func(r *rig, _ string) {
				r.serve(func(context.Context, *asynq.Task) error { return nil }, r.guard(automutex.Rule{Task: "other"}))
			},
			"run without a Guard": func(r *rig, _ string) {
				r.serve(func(context.Context, *asynq.Task) error { return nil }, nil)
			},
			"deleted": func(r *rig, id string) { _ = r.inspector.DeleteTask(r.queue, id) },
		} {
			for _, duplicate := range []Duplicate{Reject, Replace} {
				for _, until := range []Until{UntilStart, UntilDone} {
					rule := Rule{Task: "reindex", On: []string{"id"}, Until: until, Duplicate: duplicate}
					r := start(t, s, rule)
					if name == "skipped" || name == "archived unrun" || name == "revoked by the Guard's Replace" {
						locker := lock.New(r.rdb, lock.Options{Prefix: r.prefix})
						t.Cleanup(func() { _ = locker.Close() })
						held = inner.ByKey(locker, keyOf(r, "reindex"))
						if _, err := held.TryLock(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					first := r.must(r.Enqueue(task("reindex", "7", "first")))
					end(r, first.ID)
					redistest.Eventually(t, longest, func() bool {
						info, err := r.inspector.GetTaskInfo(r.queue, first.ID)
						return errors.Is(err, asynq.ErrTaskNotFound) || err == nil && info.State == asynq.TaskStateArchived
					}, "the end of the first task")
					next := r.producer(r.rdb, rule)
					next.patience = 0
					if _, err := next.Enqueue(task("reindex", "7", "second")); err != nil {
						t.Errorf("%s, %s, %s: %v", name, until, duplicate, err)
					}
				}
			}
		}
	})
}

// The tasks of a group end when asynq aggregates them, which nobody is told of.
func TestClaim_endsWithItsGroup(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := Rule{Task: "digest", On: []string{"id"}, Until: UntilStart}
		r := start(t, s, rule)
		server := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{
			Queues: map[string]int{r.queue: 1}, TaskCheckInterval: redistest.CheckEvery, Logger: redistest.Silent{}, GroupGracePeriod: time.Second,
			GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task { return asynq.NewTask("all", nil) }),
		})
		redistest.Must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
		t.Cleanup(server.Shutdown)
		first := r.must(r.Enqueue(task("digest", "7", "first"), asynq.Group("g")))
		r.awaitGone(r.queue, first.ID)
		next := r.producer(r.rdb, rule)
		next.patience = 0
		r.must(next.Enqueue(task("digest", "7", "second"), asynq.Group("g")))
	})
}

// With NoWait a call does not wait for another producer, and says so by its error.
func TestNoWait(t *testing.T) {
	t.Parallel()
	rule := Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart}
	r := start(t, redistest.Mini(t), rule)
	for wait, want := range map[time.Duration]time.Duration{0: DefaultWait, NoWait: 0, time.Minute: time.Minute} {
		c, err := New(r.plain, r.inspector, r.rdb, Config{Prefix: r.prefix, Wait: wait})
		if err != nil || c.patience != want {
			t.Errorf("Wait %s: waits %s, %v", wait, c.patience, err)
		}
	}
	goOn := make(chan struct{})
	first, begun := r.heldEnqueue(rule, goOn, nil)
	one := make(chan error, 1)
	go func() { // ends with the call, when goOn is closed
		_, err := first.Enqueue(task("reindex", "7", "first"))
		one <- err
	}()
	<-begun
	r.patience = 0
	info, err := r.Enqueue(task("reindex", "7", "second"))
	if !errors.Is(err, ErrEnqueueUnderWay) || errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("answered %v, %v", info, err)
	}
	close(goOn)
	if err := <-one; err != nil {
		t.Error(err)
	}
}

// A Guard without a rule for a task with a claim says so once, and so does one that skips such a task.
func TestGuard_warnsOfClaims(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for want, rule := range map[string]automutex.Rule{
			"no rule of this Guard":         {Task: "other"},
			"was skipped: a producer whose": {Task: "reindex", On: []string{"id"}, Busy: automutex.Skip},
		} {
			r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart, Duplicate: Join})
			log := &redistest.Log{}
			g, err := automutex.New(r.rdb, automutex.Config{Prefix: r.prefix, Rules: []automutex.Rule{rule}, Logger: log.Logger()})
			redistest.Must(t, err)
			goOn := make(chan struct{})
			var runs atomic.Int32
			r.serve(func(context.Context, *asynq.Task) error { runs.Add(1); <-goOn; return nil }, g)
			for i := range 3 {
				r.must(r.Enqueue(task("reindex", "7", "")))
				if i == 0 {
					redistest.Eventually(t, longest, func() bool { return runs.Load() == 1 }, "a run")
				} else {
					redistest.Eventually(t, longest, func() bool {
						return len(r.tasks(r.queue, "reindex", asynq.TaskStatePending)) == 0 && r.rdb.Exists(t.Context(), keyOf(r, "reindex")+":claim").Val() == 0 || rule.Busy == automutex.Skip
					}, "the next one having begun")
				}
			}
			redistest.Eventually(t, longest, func() bool {
				return strings.Count(log.String(), want) == 1 && strings.Contains(log.String(), "UntilStart")
			}, "a warning with %q", want)
			close(goOn)
		}
	})
}
