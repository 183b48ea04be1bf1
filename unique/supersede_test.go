package unique

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
)

// A producer that is killed between any two commands of Replace and Postpone
// leaves a task for the key, none twice, and the next call makes it one.
func TestSupersede_producerKilledAnywhere(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = own(t, s)
		// One goroutine for each place to die at: they wait for the dead one's lock
		// most of the time. So many at once that miniredis can follow.
		var wg sync.WaitGroup
		room := make(chan struct{}, 16)
		for _, until := range []Until{UntilDone, UntilStart, For(time.Hour)} {
			for _, duplicate := range []Duplicate{Replace, Postpone(time.Hour)} {
				for _, state := range []asynq.TaskState{asynq.TaskStatePending, asynq.TaskStateScheduled} {
					if s.Kind() != redistest.KindReal && (until == UntilDone || state != asynq.TaskStatePending) {
						continue // the same commands, whatever they are sent to
					}
					r := start(t, s, Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: duplicate})
					r.patience, r.grace = 0, 0 // the dead one is not waited for
					commands := r.killAfter(all, until, duplicate, state)
					if commands < 5 {
						t.Errorf("%s, %s, %s: %d commands in all", until, duplicate, state, commands)
					}
					for after := range commands {
						room <- struct{}{}
						redistest.Go(&wg, func() {
							defer func() { <-room }()
							r.killAfter(after, until, duplicate, state)
						})
					}
				}
			}
		}
		wg.Wait()
	})
}

// all is more commands than there are.
const all = 1000

// killAfter has a producer die after so many commands, and tells how many it
// sent. It runs beside the test's goroutine.
func (r *rig) killAfter(after int, until Until, duplicate Duplicate, state asynq.TaskState) (commands int) {
	id := fmt.Sprintf("%04d", after)
	where := fmt.Sprintf("%s, %s, %s, killed after %d commands", until, duplicate, state, after)
	fail := func(format string, args ...any) { r.t.Errorf(where+": "+format, args...) }
	mine := func() (found []*asynq.TaskInfo) {
		for _, info := range r.tasks(r.queue, "draft", live...) {
			if strings.HasPrefix(string(info.Payload), `{"id":"`+id+`"`) {
				found = append(found, info)
			}
		}
		return found
	}

	old, err := r.Enqueue(task("draft", id, "old"), asynq.ProcessIn(2*time.Hour))
	if err == nil && state == asynq.TaskStatePending {
		err = r.inspector.RunTask(old.Queue, old.ID)
	}
	if err != nil {
		fail("the first task: %v", err)
		return 0
	}
	hook := newKilled(after)
	rdb := r.s.Client(r.t)
	rdb.AddHook(hook)
	doomed := r.producer(rdb, Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: duplicate})
	_, err = doomed.Enqueue(task("draft", id, "new"))
	left := texts(mine())
	if len(left) == 0 || len(left) > 2 || len(left) == 2 && left[0] == left[1] {
		fail("there are %q; sent %q", left, hook.commands())
	}
	if err == nil && !slices.Equal(left, []string{"new"}) {
		fail("it was accepted, and there are %q; sent %q", left, hook.commands())
	}
	info, err := r.Enqueue(task("draft", id, "newest"))
	found := mine()
	if err != nil || len(found) != 1 || found[0].ID != info.ID || !slices.Equal(texts(found), []string{"newest"}) {
		fail("after %q the next call gives %v, %v and leaves %q; sent %q", left, info, err, texts(found), hook.commands())
	}
	return len(hook.commands())
}

// The task that took the place of another one has its claim, and the worker
// drops that when it starts: the next one is accepted while it runs.
func TestSupersede_claimIsHandedOn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
			rule := Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart, Duplicate: duplicate}
			r := start(t, s, rule)
			old := r.must(r.Enqueue(task("reindex", "7", "old")))
			if duplicate != Replace {
				redistest.Must(t, r.inspector.RunTask(r.queue, old.ID))
			}
			info := r.must(r.Enqueue(task("reindex", "7", "new")))
			if info.ID == old.ID {
				t.Fatalf("%s: the pending task was not superseded", duplicate)
			}
			begun, over := make(chan string, 10), make(chan struct{})
			r.serve(func(_ context.Context, task *asynq.Task) error {
				begun <- string(task.Payload())
				<-over
				return nil
			}, r.guard(automutex.Rule{Task: "reindex", On: []string{"id"}}))
			t.Cleanup(func() { close(over) })
			select {
			case got := <-begun:
				if !strings.Contains(got, "new") {
					t.Errorf("%s: %s began", duplicate, got)
				}
			case <-time.After(longest):
				t.Fatalf("%s: nothing began", duplicate)
			}
			if n := r.rdb.Exists(t.Context(), r.claimKey("7")).Val(); n != 0 {
				t.Errorf("%s: the claim outlives the start of its task", duplicate)
			}
			if next := r.must(r.Enqueue(task("reindex", "7", "next"))); next.ID == info.ID {
				t.Errorf("%s: the next one is %s", duplicate, next.ID)
			}
		}
	})
}

// Debounce: each call puts the task off, with the last payload, and the bound
// ends that.
func TestPostpone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			const delay, most = time.Hour, 90 * time.Minute
			r := start(t, s, Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: Postpone(delay), MaxPostpone: most})
			first := r.must(r.Enqueue(task("draft", "7", "0")))
			if first.State != asynq.TaskStateScheduled {
				t.Errorf("%s: the first call is %s", until, first.State)
			}
			// As time passes: the claim, which knows the first call, gets older, and
			// asynq's task comes nearer.
			at := first.NextProcessAt
			for i, age := range []time.Duration{20 * time.Minute, 40 * time.Minute, 70 * time.Minute, 100 * time.Minute} {
				r.age("draft", "7", age)
				before := time.Now()
				text := fmt.Sprint(i + 1)
				info := r.must(r.Enqueue(task("draft", "7", text)))
				found := r.tasks(r.queue, "draft", live...)
				if len(found) != 1 || !slices.Equal(texts(found), []string{text}) || found[0].ID != info.ID {
					t.Fatalf("%s: after %s there are %q", until, age, texts(found))
				}
				want := before.Add(min(delay, most-age))
				if want.Before(at) {
					want = at // never earlier than promised before
				}
				if got := found[0].NextProcessAt; got.Before(want.Truncate(time.Second)) || got.After(want.Add(longest)) {
					t.Errorf("%s: a call after %s puts it to %s from now, want %s", until, age, got.Sub(before), want.Sub(before))
				}
				at = found[0].NextProcessAt
			}
		}
	})
}

// age makes the claim of a key that old.
func (r *rig) age(taskType, id string, age time.Duration) {
	r.t.Helper()
	key := keys.Key(r.prefix, taskType, id) + ":claim"
	stored := r.rdb.Get(r.t.Context(), key).Val()
	since, rest, ok := strings.Cut(stored, " ")
	if _, err := strconv.ParseInt(since, 10, 64); err != nil || !ok {
		r.t.Fatalf("%s is %q", key, stored)
	}
	older := time.Now().Add(-age).UnixMilli()
	if err := r.rdb.Set(r.t.Context(), key, fmt.Sprint(older, " ", rest), redis.KeepTTL).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// What takes the place of a scheduled task is due when that was, and has options of its own; so has a task of another type in the same scope.
func TestReplace_scheduled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			rules := []Rule{{Task: "a", Scope: "s", Until: until, Duplicate: Replace}, {Task: "b", Scope: "s", Until: until, Duplicate: Replace}}
			r := start(t, s, rules...)
			at := time.Now().Add(time.Hour).Truncate(time.Second)
			old := r.must(r.Enqueue(task("a", "7", "old"), asynq.ProcessAt(at), asynq.MaxRetry(3)))
			same := r.must(r.Enqueue(task("a", "7", "new"), asynq.MaxRetry(9)))
			found := r.tasks(r.queue, "a", live...)
			if same.ID == old.ID || len(found) != 1 || found[0].MaxRetry != 9 || !found[0].NextProcessAt.Equal(at) || !slices.Equal(texts(found), []string{"new"}) {
				t.Errorf("%s: %s became %+v", until, old.ID, found)
			}
			other := r.must(r.Enqueue(task("b", "7", "other"), asynq.MaxRetry(9)))
			found = r.tasks(r.queue, "b", live...)
			if len(r.tasks(r.queue, "a", live...)) != 0 || len(found) != 1 || found[0].ID != other.ID || found[0].MaxRetry != 9 || !found[0].NextProcessAt.Equal(at) {
				t.Errorf("%s: of the other type there are %+v", until, found)
			}
		}
	})
}
