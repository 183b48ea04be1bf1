package unique

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

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
					commands := r.killAfter(1000, until, duplicate, state)
					if commands < 5 {
						t.Errorf("%s, %s, %s: %d commands in all", until, duplicate, state, commands)
					}
					for after := range commands {
						room <- struct{}{}
						wg.Go(func() {
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
	doomed.changeTTL = 500 * time.Millisecond // what the next one has to wait for
	_, err = doomed.Enqueue(task("draft", id, "new"))
	left := texts(mine())
	if len(left) == 0 || len(left) > 2 || len(left) == 2 && left[0] == left[1] {
		fail("there are %q; sent %q", left, hook.sent)
	}
	if err == nil && !slices.Equal(left, []string{"new"}) {
		fail("it was accepted, and there are %q; sent %q", left, hook.sent)
	}
	info, err := r.Enqueue(task("draft", id, "newest"))
	found := mine()
	if err != nil || len(found) != 1 || found[0].ID != info.ID || !slices.Equal(texts(found), []string{"newest"}) {
		fail("after %q the next call gives %v, %v and leaves %q; sent %q", left, info, err, texts(found), hook.sent)
	}
	return len(hook.sent)
}
