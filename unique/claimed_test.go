package unique

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

var reindex = Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart}

// The pattern of "reindex this document": one runs, at most one waits, and the
// one that waits for the lock in its worker still waits.
func TestUntilStart_oneRunsOneWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, reindex)
		begun, finish, over := make(chan string, 10), make(chan struct{}), make(chan struct{})
		r.serve(func(_ context.Context, task *asynq.Task) error {
			begun <- string(task.Payload())
			select {
			case <-finish:
			case <-over:
			}
			return nil
		}, r.guard(automutex.Rule{Task: "reindex", On: []string{"id"}, Busy: automutex.Retry, Wait: longest}))
		t.Cleanup(func() { close(over) }) // so that a failed test ends
		next := func(want string) {
			t.Helper()
			select {
			case got := <-begun:
				if !strings.Contains(got, `"`+want+`"`) {
					t.Fatalf("%s began, want %s", got, want)
				}
			case <-time.After(longest):
				t.Fatalf("%s did not begin", want)
			}
		}
		first := r.must(r.Enqueue(task("reindex", "7", "first")))
		next("first")
		if n := r.rdb.Exists(t.Context(), r.claimKey("7")).Val(); n != 0 {
			t.Error("the claim outlives the start of its task")
		}
		second := r.must(r.Enqueue(task("reindex", "7", "second")))
		r.await(r.queue, second.ID, asynq.TaskStateActive) // in line for the lock
		_, err := r.Enqueue(task("reindex", "7", "third"))
		r.mustBeDuplicate(nil, err, second.ID, asynq.TaskStateActive)
		r.must(r.Enqueue(task("reindex", "8", "other"))) // another key
		next("other")
		finish <- struct{}{} // first or other; the second begins when it was first
		finish <- struct{}{}
		next("second")
		third := r.must(r.Enqueue(task("reindex", "7", "third")))
		finish <- struct{}{}
		next("third")
		finish <- struct{}{}
		for _, id := range []string{first.ID, second.ID, third.ID} {
			r.awaitGone(r.queue, id)
		}
		if keys := r.rdb.Exists(t.Context(), r.claimKey("7"), keys.Key(r.prefix, "reindex", "7")).Val(); keys != 0 {
			t.Error("something is left of the key")
		}
	})
}

func (r *rig) claimKey(id string) string { return keys.Key(r.prefix, "reindex", id) + ":claim" }

// A worker that runs the task without the middleware, an operator who deletes
// it, and a queue that is flushed: a claim whose task is gone blocks nothing.
func TestUntilStart_taskGone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, end := range map[string]func(r *rig, id string) error{
			"deleted": func(r *rig, id string) error { return r.inspector.DeleteTask(r.queue, id) },
			"flushed": func(r *rig, _ string) error { return r.inspector.DeleteQueue(r.queue, true) },
			"run without the middleware": func(r *rig, id string) error {
				r.serve(func(context.Context, *asynq.Task) error { return nil }, nil)
				r.awaitGone(r.queue, id)
				return nil
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := start(t, s, reindex)
				stranger := r.producer(s.Client(t), reindex)
				stranger.patience = 0
				first := r.must(r.Enqueue(task("reindex", "7", "first")))
				r.mustBeRejected(stranger.Enqueue(task("reindex", "7", "early")))
				redistest.Must(t, end(r, first.ID))
				// Its enqueue was confirmed, so nobody waits for it.
				if name == "deleted" {
					r.must(r.Enqueue(task("reindex", "7", "same producer")))
					if _, err := r.inspector.DeleteAllPendingTasks(r.queue); err != nil {
						t.Fatal(err)
					}
				}
				r.must(stranger.Enqueue(task("reindex", "7", "another producer")))
			})
		}
	})
}

func (r *rig) mustBeRejected(info *asynq.TaskInfo, err error) {
	r.t.Helper()
	if info != nil || !errors.Is(err, asynq.ErrDuplicateTask) {
		r.t.Fatalf("got %v, %v; want a duplicate", info, err)
	}
}

// A producer that dies between the claim and the enqueue holds up others for the
// grace, and itself not at all.
func TestClaim_producerKilled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilStart, For(time.Hour)} {
			r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Until: until})
			r.grace = longest
			hook := newKilled(1) // the claim
			warm(t, r, "7")
			rdb := s.Client(t)
			rdb.AddHook(hook)
			if info, err := r.producer(rdb, Rule{Task: "reindex", On: []string{"id"}, Until: until}).Enqueue(task("reindex", "7", "never")); err == nil {
				t.Fatalf("a dead producer enqueued %+v", info)
			}
			if n := r.rdb.Exists(t.Context(), r.claimKey("7")).Val(); n != 1 {
				t.Fatal("the producer died without a claim")
			}
			r.patience = 50 * time.Millisecond
			if info, err := r.Enqueue(task("reindex", "7", "early")); err == nil || errors.Is(err, asynq.ErrDuplicateTask) || !strings.Contains(err.Error(), "try again") {
				t.Fatalf("within the grace: %v, %v", info, err)
			}
			r.grace = 300 * time.Millisecond // it may have passed by now
			var info *asynq.TaskInfo
			redistest.Eventually(t, longest, func() (ok bool) {
				var err error
				info, err = r.Enqueue(task("reindex", "7", "late"))
				return err == nil
			}, "the claim being taken over")
			r.mustBeInTheWay(info)
			if found := r.tasks(r.queue, "reindex"); !slices.Contains(texts(found), "late") || slices.Contains(texts(found), "never") {
				t.Errorf("there are %q", texts(found))
			}
		}
	})
}

// mustBeInTheWay checks that the task is in the way of another one now.
func (r *rig) mustBeInTheWay(info *asynq.TaskInfo) {
	r.t.Helper()
	got, err := r.Enqueue(task("reindex", "7", "again"))
	r.mustBeDuplicate(got, err, info.ID, asynq.TaskStatePending)
}

// warm makes the servers of a key know the scripts, so that a claim is one
// command and an enqueue another.
func warm(t *testing.T, r *rig, id string) {
	t.Helper()
	info := r.must(r.Enqueue(task("reindex", id, "warm")))
	redistest.Must(t, r.inspector.DeleteTask(r.queue, info.ID))
	redistest.Must(t, r.rdb.Del(t.Context(), r.claimKey(id)).Err())
}

// For is a window from the enqueue, whatever becomes of the task in it.
func TestFor_window(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const window = 4 * time.Second
		r := start(t, s, Rule{Task: "digest", On: []string{"id"}, Until: For(window)}, Rule{Task: "joined", On: []string{"id"}, Until: For(time.Hour), Duplicate: Join})
		r.grace = time.Millisecond // of no use to a claim that was confirmed
		r.serve(func(context.Context, *asynq.Task) error { return nil }, nil)
		began := time.Now()
		first := r.must(r.Enqueue(task("digest", "7", "first")))
		r.awaitGone(r.queue, first.ID)
		again, err := r.Enqueue(task("digest", "7", "second"))
		if time.Since(began) < window { // else the machine was busy
			r.mustBeDuplicate(again, err, first.ID, asynq.TaskStateCompleted)
		}
		r.must(r.Enqueue(task("digest", "8", "other")))
		redistest.Eventually(t, longest, func() bool {
			_, err := r.Enqueue(task("digest", "7", "later"))
			return err == nil
		}, "the end of the window")
		if took := time.Since(began); took < window {
			t.Errorf("it ended after %s", took)
		}
		one := r.must(r.Enqueue(task("joined", "7", "one")))
		r.awaitGone(r.queue, one.ID)
		two, err := r.Enqueue(task("joined", "7", "two")) // nothing is left to join
		r.mustBeDuplicate(two, err, one.ID, asynq.TaskStateCompleted)
		if dup := new(DuplicateError); !errors.As(err, &dup) || !dup.Gone || !strings.Contains(err.Error(), "gone from asynq") {
			t.Errorf("the task is gone: %v", err)
		}
	})
}

// The worker pays one call for a claim and none for tasks without one, and a
// claim that cannot be dropped keeps no task from running.
func TestWorker_dropsTheClaim(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, reindex, Rule{Task: "plain", On: []string{"id"}}, Rule{Task: "window", On: []string{"id"}, Until: For(time.Hour)},
			Rule{Task: "mismatch", On: []string{"text"}, Until: UntilStart})
		var drops atomic.Int32
		var failing atomic.Bool
		var hook redistest.FailHook
		rdb := s.Client(t)
		rdb.AddHook(&hook)
		hook.Before(func(cmd redis.Cmder) error {
			if args := cmd.Args(); len(args) > 3 && strings.HasSuffix(fmtArg(args[3]), ":claim") {
				if cmd.Name() == "evalsha" {
					drops.Add(1)
				}
				if failing.Load() {
					return redistest.ReplyError("READONLY you can't write against a read only replica")
				}
			}
			return nil
		})
		backend := make(chan automutex.Event, 10)
		var rules []automutex.Rule
		for _, name := range []string{"reindex", "plain", "window", "mismatch"} {
			rules = append(rules, automutex.Rule{Task: name, On: []string{"id"}})
		}
		log := &redistest.Log{}
		g, err := automutex.New(rdb, automutex.Config{Prefix: r.prefix, Rules: rules, Logger: log.Logger(), Observe: func(_ context.Context, e automutex.Event) {
			if e.Kind == automutex.EventBackendError {
				backend <- e
			}
		}})
		redistest.Must(t, err)
		ran := make(chan string, 10)
		r.serve(func(_ context.Context, task *asynq.Task) error { ran <- task.Type(); return nil }, g)
		run := func(name string, want int32) *asynq.TaskInfo {
			t.Helper()
			before := drops.Load()
			info := r.must(r.Enqueue(task(name, "7", "x")))
			select {
			case <-ran:
			case <-time.After(longest):
				t.Fatalf("%s did not run", name)
			}
			r.awaitGone(r.queue, info.ID)
			if got := drops.Load() - before; got != want {
				t.Errorf("%s: %d calls for its claim, want %d", name, got, want)
			}
			return info
		}
		run("reindex", 1)
		run("plain", 0)
		run("window", 0)
		if log.String() != "" {
			t.Errorf("logged: %s", log.String())
		}
		run("mismatch", 1)
		if !strings.Contains(log.String(), "equal Task, Scope and On") {
			t.Errorf("a rule without its equal is not told of: %q", log.String())
		}
		failing.Store(true)
		info := r.must(r.Enqueue(task("reindex", "7", "x")))
		if e := <-backend; e.TaskID != info.ID || e.Rule != "reindex" || e.Err == nil {
			t.Errorf("observed %+v", e)
		}
		r.await(r.queue, info.ID, asynq.TaskStateRetry) // handed back, unrun
		failing.Store(false)
		if name := <-ran; name != "reindex" {
			t.Errorf("%s ran", name)
		}
		r.awaitGone(r.queue, info.ID)
		run("reindex", 1)
	})
}

func fmtArg(arg any) string { text, _ := arg.(string); return text }

// A claim has a TTL, which reaches beyond a task that is scheduled far ahead.
func TestClaim_ttl(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, duplicate := range []Duplicate{Reject, Replace, Postpone(time.Minute)} {
			rule := reindex
			rule.Duplicate = duplicate
			r := start(t, s, rule)
			ttl := func() time.Duration { return r.rdb.PTTL(t.Context(), r.claimKey("7")).Val() }
			r.must(r.Enqueue(task("reindex", "7", "soon")))
			if got := ttl(); got < claimLife-time.Minute || got > claimLife+time.Minute {
				t.Errorf("%s: it expires in %s", duplicate, got)
			}
			if duplicate != Reject {
				r.must(r.Enqueue(task("reindex", "7", "newer")))
				if got := ttl(); got < claimLife-time.Minute || got > claimLife+time.Minute {
					t.Errorf("%s: superseded, it expires in %s", duplicate, got)
				}
				continue
			}
			r.must(r.Enqueue(task("reindex", "8", "far"), asynq.ProcessIn(90*24*time.Hour)))
			if got := r.rdb.PTTL(t.Context(), r.claimKey("8")).Val(); got < 90*24*time.Hour+claimLife-time.Minute {
				t.Errorf("scheduled in 90 days, it expires in %s", got)
			}
		}
	})
}

// A claim whose holder is no task does not block an enqueue.
func TestClaim_ofNoTask(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart})
		if _, err := inner.Claim(r.locker, keys.Key(r.prefix, "reindex", "7")).Take(t.Context(), "no task", "", time.Hour); err != nil {
			t.Fatal(err)
		}
		first := r.must(r.Enqueue(task("reindex", "7", "")))
		info, err := r.Enqueue(task("reindex", "7", ""))
		r.mustBeDuplicate(info, err, first.ID, asynq.TaskStatePending)
	})
}

// A producer that replaces an ended task waits for another one at the same key, for Config.Wait.
func TestReplaceEnded_another(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "reindex", On: []string{"id"}})
		r.patience = 100 * time.Millisecond
		first := r.must(r.Enqueue(task("reindex", "7", "")))
		redistest.Must(t, r.inspector.ArchiveTask(r.queue, first.ID))
		other, err := inner.ClaimLock(r.locker, keys.Key(r.prefix, "reindex", "7"), lock.TTL(time.Hour)).TryLock(t.Context())
		redistest.Must(t, err)
		if info, err := r.Enqueue(task("reindex", "7", "")); !errors.Is(err, ErrEnqueueUnderWay) || !strings.Contains(err.Error(), "has held this key's lock") {
			t.Errorf("%v, %v", info, err)
		}
		redistest.Must(t, other.Unlock(t.Context()))
		r.patience = longest
		r.must(r.Enqueue(task("reindex", "7", "")))
	})
}
