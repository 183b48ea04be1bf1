package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A task that waits for its lock in a worker has not begun, though asynq has it as active: the newest
// payload takes its place, and the older one never runs.
func TestSupersede_aTaskThatWaitsInItsWorker(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, rule := range []Rule{
			{Task: "save", On: onID, Until: UntilStart, Duplicate: Replace},
			{Task: "save", On: onID, Until: UntilStart, Duplicate: Postpone(time.Second), MaxPostpone: time.Hour},
		} {
			for name, guarded := range map[string]automutex.Rule{
				"park": {Busy: automutex.Park}, "wait": {Busy: automutex.Retry, Wait: longest}, "parked": {Busy: automutex.Park},
			} {
				workers, waits := 300, asynq.TaskStateActive // in its worker
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
					ids := []string{r.enqueue("save", "1").ID}
					eventually(t, func() bool { return len(ran.all()) == 1 }, "the first one running")
					for _, text := range []string{"2", "3", "4"} {
						var info *asynq.TaskInfo
						eventually(t, func() bool { // who waits may not be known yet
							var err error
							info, err = r.Enqueue(task("save", "7", text))
							return !errors.Is(err, asynq.ErrDuplicateTask) && r.must(info, err) != nil
						}, "%s accepted", text)
						if ids = append(ids, info.ID); text == "2" {
							_ = r.inspector.RunTask(r.queue, info.ID) // that Postpone has put off
							r.await(r.queue, info.ID, waits)
						}
					}
					letGo()
					for _, id := range ids {
						r.awaitGone(r.queue, id)
					}
					if got := ran.all(); !slices.Equal(got, []string{"1", "4"}) {
						t.Errorf("%q ran, want the first and the last one", got)
					}
					eventually(t, func() bool { return r.rdb.Exists(t.Context(), r.claimKey("save")).Val() == 0 },
						"the claim having ended with the last of its tasks")
				})
			}
		}
	})
}

// A task whose handler has begun is not superseded, however it came back: with an error, also where the server does not
// count that, by a RetryAfter, with its key's gate closed; nor when it comes back once more and its key is busy.
func TestReplace_leavesATaskWhoseHandlerHasFailed(t *testing.T) {
	t.Parallel()
	limited := errors.New("429")
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, back := range map[string]func(context.Context) error{
			"an error":   func(context.Context) error { return limited },
			"RetryAfter": func(context.Context) error { return automutex.RetryAfter(time.Hour, limited) },
			"CloseGate": func(ctx context.Context) error {
				return automutex.RetryAfter(time.Hour, errors.Join(limited, automutex.CloseGate(ctx, time.Hour)))
			},
		} {
			for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
				t.Run(name+", "+duplicate.String(), func(t *testing.T) {
					t.Parallel()
					r := start(t, s, Rule{Task: "price", On: onID, Duplicate: duplicate})
					r.isFailure = func(err error) bool { return !errors.Is(err, limited) }
					guard := r.guard(automutex.Rule{Task: "price", On: onID, Busy: automutex.Park})
					r.serve(func(ctx context.Context, _ *asynq.Task) error { return back(ctx) }, guard)
					first := r.enqueue("price", "first")
					_ = r.inspector.RunTask(r.queue, first.ID)
					r.await(r.queue, first.ID, asynq.TaskStateRetry)
					r.refuses("price", "second", first.ID, asynq.TaskStateRetry)
					_, err := r.its("price").BreakAll(t.Context())
					redistest.Must(t, err)
					letGo := r.hold("price")
					_ = r.inspector.RunTask(r.queue, first.ID)
					r.await(r.queue, first.ID, asynq.TaskStateActive)
					r.refuses("price", "third", first.ID, asynq.TaskStateActive)
					letGo()
				})
			}
		}
	})
}

// A task that a Guard handed back before its handler began has not begun, also if that spent an attempt.
func TestReplace_supersedesATaskThatAGuardHandedBack(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for attempts, busy := range []automutex.Policy{automutex.RetryIn(time.Hour), automutex.Fail} {
			r := start(t, s, Rule{Task: "price", On: onID, Duplicate: Replace})
			letGo := r.hold("price")
			r.serve(succeed, r.guard(automutex.Rule{Task: "price", On: onID, Busy: busy}))
			first := r.enqueue("price", "first")
			r.await(r.queue, first.ID, asynq.TaskStateRetry)
			if info, err := r.inspector.GetTaskInfo(r.queue, first.ID); err != nil || info.Retried != attempts {
				t.Fatalf("%+v, %v: not what this test is about", info, err)
			}
			if second := r.enqueue("price", "second"); second.ID == first.ID {
				t.Error("it was not superseded")
			}
			r.awaitGone(r.queue, first.ID)
			letGo()
		}
	})
}

// Without a Guard in the worker nobody writes that a handler begins: a task that asynq has as active for a while blocks
// its key.
func TestReplace_withoutAGuard(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), Rule{Task: "price", On: onID, Duplicate: Replace})
	goOn := make(chan struct{})
	r.serve(func(context.Context, *asynq.Task) error { <-goOn; return nil }, nil)
	t.Cleanup(func() { close(goOn) })
	first := r.enqueue("price", "first")
	r.await(r.queue, first.ID, asynq.TaskStateActive)
	r.refuses("price", "second", first.ID, asynq.TaskStateActive)
}

// A worker comes before any one command of a call that supersedes a task.
func TestSupersede_aWorkerComesMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	for _, until := range []Until{UntilDone, UntilStart} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, it fails %t", until, fails), func(t *testing.T) {
				t.Parallel()
				came := true
				for n := 1; came && t.Run("", func(t *testing.T) {
					came = meanwhile(t, s, Rule{Task: "work", On: onID, Until: until, Duplicate: Replace}, fails, n)
				}); n++ {
				}
			})
		}
	}
}

func meanwhile(t *testing.T, s *redistest.Server, rule Rule, fails bool, n int) (came bool) {
	r := start(t, s, rule)
	guard := r.guard(automutex.Rule{Task: "work", On: onID, Busy: automutex.Park})
	old := r.enqueue("work", "old")
	goOn := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(goOn) })
	var ran record
	come := func() {
		r.serve(func(_ context.Context, task *asynq.Task) error {
			ran.add(task)
			if fails {
				return errors.New("not yet")
			}
			<-goOn
			return nil
		}, guard)
		t.Cleanup(letGo)
		eventually(t, func() bool {
			info, err := r.inspector.GetTaskInfo(r.queue, old.ID)
			failed := err == nil && info.State == asynq.TaskStateRetry
			return slices.Contains(ran.all(), "new") || slices.Contains(ran.all(), "old") && (!fails || failed) ||
				errors.Is(err, asynq.ErrTaskNotFound)
		}, "the old task begun, failed or gone, or the new one begun")
	}
	left := n
	rdb := r.hooked(func(cmd redis.Cmder) error {
		if setsUp(cmd) {
			return nil
		}
		if left--; left == 0 {
			came = true
			come()
		}
		return nil
	})
	info, err := r.producer(rdb, rule).Enqueue(task("work", "7", "new"))
	if !came {
		return false
	}
	begun := slices.Contains(ran.all(), "old")
	if begun && rule.Until == UntilDone {
		r.mustBeDuplicate(info, err, old.ID, map[bool]asynq.TaskState{true: asynq.TaskStateRetry,
			false: asynq.TaskStateActive}[fails])
	} else {
		r.must(info, err)
	}
	letGo()
	eventually(t, func() bool {
		q, err := r.inspector.GetQueueInfo(r.queue)
		return err == nil && q.Pending+q.Active == 0 && (fails || q.Retry == 0)
	}, "the tasks being done")
	if is, want := slices.Contains(ran.all(), "new"), !begun || rule.Until == UntilStart; is != want {
		t.Errorf("before command %d: the new one ran: %t, want %t; all that ran: %q", n, is, want, ran.all())
	}
	return true
}

// Debounce: each call puts the task off, with the last payload, and the bound ends it.
func TestPostpone(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			const delay, most = time.Hour, 90 * time.Minute
			r := start(t, s, Rule{Task: "draft", On: onID, Until: until, Duplicate: Postpone(delay), MaxPostpone: most})
			first := r.enqueue("draft", "0")
			if first.State != asynq.TaskStateScheduled {
				t.Errorf("%s: the first call is %s", until, first.State)
			}
			// As time passes: the claim, which knows the first call, gets older, and asynq's task comes nearer.
			at := first.NextProcessAt
			for i, age := range []time.Duration{20 * time.Minute, 40 * time.Minute, 70 * time.Minute, 100 * time.Minute} {
				r.age("draft", age)
				before := time.Now()
				text := fmt.Sprint(i + 1)
				info := r.enqueue("draft", text)
				found := r.tasks(r.queue, "draft", live...)
				if len(found) != 1 || !slices.Equal(texts(found), []string{text}) || found[0].ID != info.ID {
					t.Fatalf("%s: after %s there are %q", until, age, texts(found))
				}
				want := before.Add(min(delay, most-age))
				if want.Before(at) {
					want = at // never earlier than promised before
				}
				// Redis' clock tells the age
				if got := found[0].NextProcessAt; got.Before(want.Add(-time.Millisecond)) || got.After(want.Add(longest)) {
					t.Errorf("%s: a call after %s puts it to %s from now, want %s", until, age, got.Sub(before), want.Sub(before))
				}
				at = found[0].NextProcessAt
			}
		}
	})
}

// A task that was put off up to its bound runs although calls go on and the queue is long: it keeps its place, and
// counts as begun.
func TestPostpone_keepsItsPlacePastTheBound(t *testing.T) {
	t.Parallel()
	for _, until := range []Until{UntilDone, UntilStart} {
		r := start(t, redistest.Mini(t), Rule{Task: "draft", On: onID, Until: until, Duplicate: Postpone(time.Minute),
			MaxPostpone: 2 * time.Minute})
		due := r.enqueue("draft", "due")
		redistest.Must(t, r.inspector.RunTask(r.queue, due.ID))
		r.age("draft", 3*time.Minute)
		info, err := r.Enqueue(task("draft", "7", "newest"))
		if until == UntilDone {
			r.mustBeDuplicate(info, err, due.ID, asynq.TaskStatePending)
			continue
		}
		if r.must(info, err); info.State != asynq.TaskStateScheduled {
			t.Errorf("the newest is %s", info.State)
		}
		r.enqueue("draft", "newer still") // in the place of the second one
		if got := texts(r.tasks(r.queue, "draft")); !slices.Equal(got, []string{"due", "newer still"}) {
			t.Errorf("there are %q", got)
		}
		if info, err := r.inspector.GetTaskInfo(r.queue, due.ID); err != nil || info.State != asynq.TaskStatePending {
			t.Errorf("the due task: %v, %v", info, err)
		}
	}
}

// What takes the place of a scheduled task is due when that was, and has options of its own; so has a task of another
// type in the same scope.
func TestReplace_scheduled(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			r := start(t, s, Rule{Task: "a", Scope: "s", Until: until, Duplicate: Replace},
				Rule{Task: "b", Scope: "s", Until: until, Duplicate: Replace})
			at := time.Now().Add(time.Hour).Truncate(time.Second)
			r.enqueue("a", "old", asynq.ProcessAt(at), asynq.MaxRetry(3))
			for _, name := range []string{"a", "b"} {
				info := r.enqueue(name, name, asynq.MaxRetry(9), asynq.ProcessIn(time.Minute))
				found := slices.Concat(r.tasks(r.queue, "a", live...), r.tasks(r.queue, "b", live...))
				if len(found) != 1 || found[0].ID != info.ID || found[0].MaxRetry != 9 || !found[0].NextProcessAt.Equal(at) ||
					!slices.Equal(texts(found), []string{name}) {
					t.Errorf("%s: there are %+v", until, found)
				}
			}
		}
	})
}
