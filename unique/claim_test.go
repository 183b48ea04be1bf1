package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
)

var (
	reindex = Rule{Task: "reindex", On: onID, Until: UntilStart}
	guarded = automutex.Rule{Task: "reindex", On: onID}
)

// The pattern of "reindex this document": one runs, at most one waits, and the one that waits for the lock in its
// worker still waits.
func TestUntilStart_oneRunsOneWaits(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, reindex)
		begun, finish, over := make(chan string, 10), make(chan struct{}), make(chan struct{})
		r.serve(func(_ context.Context, task *asynq.Task) error {
			begun <- textOf(task.Payload())
			select {
			case <-finish:
			case <-over:
			}
			return nil
		}, r.guard(automutex.Rule{Task: "reindex", On: onID, Busy: automutex.Retry, Wait: longest}))
		t.Cleanup(func() { close(over) }) // so that a failed test ends
		next := func(want string) {
			t.Helper()
			select {
			case got := <-begun:
				if got != want {
					t.Fatalf("%s began, want %s", got, want)
				}
			case <-time.After(longest):
				t.Fatalf("%s did not begin", want)
			}
		}
		first := r.enqueue("reindex", "first")
		next("first")
		if n := r.rdb.Exists(t.Context(), r.claimKey("reindex")).Val(); n != 0 {
			t.Error("the claim outlives the start of its task")
		}
		second := r.enqueue("reindex", "second")
		r.await(r.queue, second.ID, asynq.TaskStateActive) // in line for the lock
		r.refuses("reindex", "third", second.ID, asynq.TaskStateActive)
		r.must(r.Enqueue(task("reindex", "8", "other"))) // another key
		next("other")
		finish <- struct{}{} // first or other; the second begins when it was first
		finish <- struct{}{}
		next("second")
		third := r.enqueue("reindex", "third")
		finish <- struct{}{}
		next("third")
		finish <- struct{}{}
		for _, id := range []string{first.ID, second.ID, third.ID} {
			r.awaitGone(r.queue, id)
		}
		if left := r.rdb.Exists(t.Context(), r.claimKey("reindex"), keys.Key(r.prefix, "reindex", "7")).Val(); left != 0 {
			t.Error("something is left of the key")
		}
	})
}

// However a task ends, its claim ends with it: the next producer, another one, need not wait at all.
func TestClaim_endsWithItsTaskHoweverItEnds(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for name, end := range map[string]func(r *rig, id string){
			"deleted":         func(r *rig, id string) { _ = r.inspector.DeleteTask(r.queue, id) },
			"flushed":         func(r *rig, _ string) { _ = r.inspector.DeleteQueue(r.queue, true) },
			"without a Guard": func(r *rig, _ string) { r.serve(succeed, nil) },
			"without a rule of the Guard": func(r *rig, _ string) {
				r.serve(succeed, r.guard(automutex.Rule{Task: "other"}))
			},
			"skipped":        func(r *rig, _ string) { r.endBusy(automutex.Skip) },
			"archived unrun": func(r *rig, _ string) { r.endBusy(automutex.Archive) },
			"revoked by the Guard's Replace": func(r *rig, _ string) {
				r.endBusy(automutex.Replace)
				r.awaitLine("reindex")
				r.must(r.plain.Enqueue(task("reindex", "7", "newer"), asynq.Queue(r.queue)))
			},
			"by a panic on its last attempt": func(r *rig, _ string) {
				r.serve(func(context.Context, *asynq.Task) error { panic("a defect") }, r.guard(guarded))
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for _, duplicate := range []Duplicate{Reject, Replace} {
					for _, until := range []Until{UntilStart, UntilDone} {
						rule := Rule{Task: "reindex", On: onID, Until: until, Duplicate: duplicate}
						r := start(t, s, rule)
						first := r.enqueue("reindex", "first", asynq.MaxRetry(0))
						end(r, first.ID)
						eventually(t, func() bool {
							info, err := r.inspector.GetTaskInfo(r.queue, first.ID)
							return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) || err == nil &&
								info.State == asynq.TaskStateArchived
						}, "the end of the first task")
						next := r.producer(s.Client(t), rule)
						next.patience = 0
						if _, err := next.Enqueue(task("reindex", "7", "second")); err != nil {
							t.Errorf("%s, %s: %v", until, duplicate, err)
						}
					}
				}
			})
		}
	})
}

// endBusy has workers meet a busy key with that policy.
func (r *rig) endBusy(busy automutex.Policy) {
	r.t.Cleanup(r.hold("reindex"))
	rule := guarded
	rule.Busy = busy
	r.serve(succeed, r.guard(rule))
}

// A producer that dies between the claim and the enqueue holds up others for the grace, and itself not at all.
func TestClaim_producerKilled(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, rule := range []Rule{
			reindex, {Task: "reindex", On: onID, Until: For(time.Hour)}, {Task: "reindex", On: onID, Duplicate: Replace},
		} {
			r := start(t, s, rule)
			r.grace, r.patience = longest, 50*time.Millisecond
			if rule.Duplicate == Replace {
				r.enqueue("reindex", "old")
			}
			dead := atomic.Bool{}
			rdb := r.hooked(func(cmd redis.Cmder) error {
				if dead.CompareAndSwap(false, isEnqueue(cmd, r.queue)); dead.Load() {
					return errors.New("the producer is dead")
				}
				return nil
			})
			if info, err := r.producer(rdb, rule).Enqueue(task("reindex", "7", "never")); err == nil || !dead.Load() {
				t.Fatalf("a dead producer enqueued %+v", info)
			}
			if info, err := r.Enqueue(task("reindex", "7", "early")); !errors.Is(err, ErrEnqueueUnderWay) ||
				!strings.Contains(err.Error(), "try again") {
				t.Fatalf("within the grace: %v, %v", info, err)
			}
			r.grace = 300 * time.Millisecond // it may have passed by now
			eventually(t, func() bool {
				_, err := r.Enqueue(task("reindex", "7", "late"))
				return err == nil
			}, "the claim being taken over")
			if found := r.tasks(r.queue, "reindex"); !slices.Equal(texts(found), []string{"late"}) {
				t.Errorf("there are %q", texts(found))
			}
		}
	})
}

// An enqueue that fails leaves no claim: the next one need not wait for a grace.
func TestClaim_failedEnqueueLeavesNothing(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), kinds()...)
	failing := r.producer(r.hooked(func(cmd redis.Cmder) error {
		if isEnqueue(cmd, r.queue) {
			return redistest.ReplyError("OOM command not allowed")
		}
		return nil
	}), kinds()...)
	r.patience = 0
	for _, rule := range kinds() {
		for _, before := range []string{"", "old"} {
			if before != "" && !rule.Duplicate.supersedes() {
				continue
			}
			if info, err := failing.Enqueue(task(rule.Task, "7", "failed")); err == nil ||
				!strings.Contains(err.Error(), "OOM") {
				t.Fatalf("%s: %v, %v", rule.Task, info, err)
			}
			r.enqueue(rule.Task, "next")
			if got := texts(r.tasks(r.queue, rule.Task)); !slices.Equal(got, []string{"next"}) {
				t.Errorf("%s: there are %q", rule.Task, got)
			}
		}
	}
}

// answered is what a call of Enqueue gave.
type answered struct {
	info *asynq.TaskInfo
	err  error
}

// While the enqueue of another producer is under way its task is no duplicate yet: a call waits for what becomes of it,
// as long as it may. What is answered then is not that the task is a duplicate.
func TestClaim_waitsForTheEnqueueOfAnotherProducer(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilStart, For(time.Hour)} {
			for _, duplicate := range []Duplicate{Reject, Join, Replace} {
				for _, fails := range []error{nil, redistest.ReplyError("OOM command not allowed")} {
					t.Run(fmt.Sprintf("%s, %s, the other one fails with %v", until, duplicate, fails), func(t *testing.T) {
						t.Parallel()
						rule := Rule{Task: "reindex", On: onID, Until: until, Duplicate: duplicate}
						for tries := 1; !underWay(t, s, rule, fails) && !t.Failed(); tries++ {
							if tries == 10 {
								t.Fatal("the first producer's time is up each time")
							}
						}
					})
				}
			}
		}
	})
}

// underWay plays it once. It returns false if the time of the first producer's enqueue was up, which shows nothing.
func underWay(t *testing.T, s *redistest.Server, rule Rule, fails error) bool {
	r := start(t, s, rule)
	if rule.Duplicate == Replace {
		r.enqueue("reindex", "old")
	}
	begun, goOn, stands := make(chan struct{}), make(chan struct{}), false
	first := r.producer(r.hooked(func(cmd redis.Cmder) error {
		if !isEnqueue(cmd, r.queue) {
			return nil
		}
		if !stands {
			stands = true
			close(begun)
			<-goOn
		}
		return fails
	}), rule)
	enqueue := func(c *Client, text string) chan answered { // ends with the call, which is bounded
		to := make(chan answered, 1)
		go func() {
			info, err := c.EnqueueContext(context.WithoutCancel(t.Context()), task("reindex", "7", text))
			to <- answered{info, err}
		}()
		return to
	}
	began := time.Now()
	one := enqueue(first, "first")
	<-begun
	var early []answered
	ok := true
	for _, r.patience = range []time.Duration{0, 20 * time.Millisecond} {
		info, err := r.Enqueue(task("reindex", "7", "early"))
		early = append(early, answered{info, err})
		ok = ok && errors.Is(err, ErrEnqueueUnderWay) && !errors.Is(err, asynq.ErrDuplicateTask)
	}
	r.patience = longest
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	info, err := r.EnqueueContext(ctx, task("reindex", "7", "early"))
	early = append(early, answered{info, err})
	ok = ok && errors.Is(err, context.DeadlineExceeded)
	two := enqueue(r.Client, "second")
	select {
	case got := <-two:
		early, ok = append(early, got), false
		two <- got
	case <-time.After(50 * time.Millisecond): // it waits, or is slow: then nothing is shown
	}
	close(goOn)
	a, b := <-one, <-two
	if time.Since(began) > enqueueTimeout-time.Second {
		return false
	}
	if !ok {
		t.Errorf("it did not wait, or answered otherwise: %v", early)
	}
	want := []string{"first"}
	if fails != nil || rule.Duplicate == Replace {
		want = []string{"second"}
	}
	switch there := texts(r.tasks(r.queue, "reindex")); {
	case (a.err != nil) != (fails != nil) || !slices.Equal(there, want):
		t.Errorf("answered %v, %v; there are %q", a.err, b.err, there)
	case fails == nil && rule.Duplicate == Reject:
		r.mustBeDuplicate(b.info, b.err, a.info.ID, asynq.TaskStatePending)
	case b.err != nil, fails == nil && rule.Duplicate == Join && b.info.ID != a.info.ID:
		t.Errorf("answered %v, %v", b.info, b.err)
	}
	return true
}

// For is a window from the enqueue, whatever becomes of the task in it.
func TestFor_window(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const window = 2 * time.Second
		r := start(t, s, Rule{Task: "digest", On: onID, Until: For(window)},
			Rule{Task: "joined", On: onID, Until: For(time.Hour), Duplicate: Join})
		r.grace = time.Millisecond // of no use to a claim that was confirmed
		r.serve(succeed, nil)
		began := time.Now()
		first := r.enqueue("digest", "first")
		r.awaitGone(r.queue, first.ID)
		again, err := r.Enqueue(task("digest", "7", "second"))
		if time.Since(began) < window { // else the machine was busy
			r.mustBeDuplicate(again, err, first.ID, asynq.TaskStateCompleted)
		}
		eventually(t, func() bool {
			_, err := r.Enqueue(task("digest", "7", "later"))
			return err == nil
		}, "the end of the window")
		if took := time.Since(began); took < window {
			t.Errorf("it ended after %s", took)
		}
		one := r.enqueue("joined", "one")
		r.awaitGone(r.queue, one.ID)
		two, err := r.Enqueue(task("joined", "7", "two")) // nothing is left to join
		r.mustBeDuplicate(two, err, one.ID, asynq.TaskStateCompleted)
		if dup := new(DuplicateError); !errors.As(err, &dup) || !dup.Gone ||
			!strings.Contains(err.Error(), "gone from asynq") {
			t.Errorf("the task is gone: %v", err)
		}
	})
}

// The worker pays one call for a claim and none for tasks without one.
func TestWorker_dropsTheClaim(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, reindex, Rule{Task: "plain", On: onID}, Rule{Task: "window", On: onID, Until: For(time.Hour)},
			Rule{Task: "mismatch", On: []string{"text"}, Until: UntilStart})
		var notes atomic.Int32
		rdb := r.hooked(func(cmd redis.Cmder) error {
			if args := cmd.Args(); cmd.Name() == "evalsha" && strings.HasSuffix(fmt.Sprint(args[3]), ":claim") {
				notes.Add(1)
			}
			return nil
		})
		var rules []automutex.Rule
		for _, name := range []string{"reindex", "plain", "window", "mismatch"} {
			rules = append(rules, automutex.Rule{Task: name, On: onID})
		}
		log := &redistest.Log{}
		g, err := automutex.New(rdb, automutex.Config{Prefix: r.prefix, Rules: rules, Logger: log.Logger()})
		redistest.Must(t, err)
		r.serve(succeed, g)
		for i, c := range []struct {
			task    string
			notes   int32
			differs int
		}{{"reindex", 1, 0}, {"plain", 0, 0}, {"window", 0, 0}, {"mismatch", 1, 1}, {"mismatch", 1, 1}} {
			before := notes.Load()
			r.awaitGone(r.queue, r.enqueue(c.task, fmt.Sprint(i)).ID)
			if got := notes.Load() - before; got != c.notes {
				t.Errorf("%s: %d calls for its claim, want %d", c.task, got, c.notes)
			}
			if strings.Count(log.String(), "equal Task, Scope and On") != c.differs {
				t.Errorf("%s: logged %q", c.task, log.String())
			}
		}
	})
}

// A task that loses a lock while it waits for another one has not begun, and its claim stands.
func TestClaim_lostBeforeItBegins(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), reindex)
	r.t.Cleanup(r.hold("second"))
	r.serve(succeed, r.guard(
		automutex.Rule{Task: "reindex", Name: "first", Scope: "reindex", On: onID, Busy: automutex.Retry, TTL: time.Second},
		automutex.Rule{Task: "reindex", Name: "second", Scope: "second", On: onID, Wait: time.Hour, Busy: automutex.Retry}))
	its := r.enqueue("reindex", "")
	r.awaitLine("second")
	redistest.Must(t, r.inspector.PauseQueue(r.queue)) // it does not run
	_, err := r.its("reindex").BreakAll(t.Context())
	redistest.Must(t, err)
	r.await(r.queue, its.ID, asynq.TaskStatePending)
	r.refuses("reindex", "", its.ID, asynq.TaskStatePending)
}

// A claim has a TTL, which reaches beyond a task that is scheduled far ahead.
func TestClaim_ttl(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Real(t), reindex)
	for _, ahead := range []time.Duration{0, time.Hour, 90 * 24 * time.Hour} {
		info := r.enqueue("reindex", "", asynq.ProcessIn(ahead))
		if got := r.rdb.PTTL(t.Context(), r.claimKey("reindex")).Val() - ahead; got < claimLife-longest ||
			got > claimLife+longest {
			t.Errorf("%s ahead: the claim expires %s after that", ahead, got)
		}
		redistest.Must(t, r.inspector.DeleteTask(r.queue, info.ID))
	}
	const retention = 365 * 24 * time.Hour
	r.enqueue("reindex", "", asynq.Retention(retention), asynq.ProcessAt(time.Unix(1<<37, 0)))
	if got := r.rdb.PTTL(t.Context(), r.claimKey("reindex")).Val() - retention; got < claimLife-longest {
		t.Errorf("the claim of a task that is kept expires %s after it", got)
	}
}

// A task of a rule that was another one before has no newer task in its place: one comes after it, at once, or none.
func TestClaim_ofAnotherRule(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, reindex)
		first := r.enqueue("reindex", "first", asynq.ProcessIn(time.Hour))
		changed := reindex
		changed.Duplicate = Replace
		second := r.must(r.producer(r.rdb, changed).Enqueue(task("reindex", "7", "second")))
		r.await(r.queue, first.ID, asynq.TaskStateScheduled)
		r.await(r.queue, second.ID, asynq.TaskStatePending)
		changed.Queue = r.queue + "-other"
		r.must(r.producer(r.rdb, changed).Enqueue(task("reindex", "7", "")))
	})
}

// A claim whose holder is no task does not block an enqueue.
func TestClaim_ofNoTask(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), reindex)
	_, err := (&request{client: r.Client, key: keys.Key(r.prefix, "reindex", "7")}).claim().Take(t.Context(), "no task",
		"", time.Hour)
	redistest.Must(t, err)
	first := r.enqueue("reindex", "")
	r.refuses("reindex", "", first.ID, asynq.TaskStatePending)
}

// A producer that replaces an ended task waits for another one at the same key, for Config.Wait.
func TestReplaceEnded_another(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "reindex", On: onID})
		r.patience = 100 * time.Millisecond
		first := r.enqueue("reindex", "")
		redistest.Must(t, r.inspector.ArchiveTask(r.queue, first.ID))
		other, err := r.engine.Take(t.Context(), &engine.Request{Ref: engine.Ref{Key: r.claimKey("reindex") + ":lock",
			Limit: 1}, TTL: time.Hour})
		redistest.Must(t, err)
		if info, err := r.Enqueue(task("reindex", "7", "")); !errors.Is(err, ErrEnqueueUnderWay) ||
			!strings.Contains(err.Error(), "has held this key's lock") {
			t.Errorf("%v, %v", info, err)
		}
		_, err = other.Release(t.Context(), engine.Ending{})
		redistest.Must(t, err)
		r.patience = longest
		r.enqueue("reindex", "")
	})
}
