package trust

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A process is killed whose handler has put its key on hold. The key stays closed until
// the hold is over, which is long after the lease; then every task runs, that of the dead
// too.
func TestProcess_killedInHold(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, taskType := range processTypes {
		t.Run(taskType, func(t *testing.T) {
			t.Parallel()
			const gate = 4 * time.Second
			row := found(t, "process", "the holder is killed (SIGKILL) in mid-hold, the next is a task with "+taskType)
			r := newProcessRig(t, time.Second, 2)
			a := r.start()
			first := r.enqueue(taskType, processTask{ID: processID(0), Hold: true, Gate: gate})
			begins := r.await(processBegins, first, a.PID())
			r.await(processHeld, first, a.PID())
			// Not before: one that waited in a worker of the dead would come back only when
			// its recoverer has found it.
			r.kill(a)
			r.let(first)
			r.start()
			others := []int{r.enqueue(taskType, processTask{ID: processID(0)}), r.enqueue(taskType, processTask{ID: processID(0)})}
			for _, n := range others {
				e := r.await(processBegins, n, 0)
				if after := time.Duration(e.US-begins.US) * time.Microsecond; after < gate {
					t.Errorf("task %d began %s after the one that held the key for %s", n, after, gate)
				}
			}
			r.recover(func(pid string) bool { return pid == strconv.Itoa(a.PID()) })
			r.start() // its recoverer finds what the dead had
			r.await(processEnds, first, 0)
			if b := r.balanced(row); b.cut != 1 || b.runs != 4 {
				t.Errorf("%d runs, of which %d were cut off, want 4 and 1", b.runs, b.cut)
			}
		})
	}
}

// The process that holds a paused key is killed, and so is what it knows of the pause. A
// new process obeys it too: its tasks go back until the key is resumed, and none is lost.
func TestProcess_killedInPause(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, taskType := range processTypes {
		t.Run(taskType, func(t *testing.T) {
			t.Parallel()
			row := found(t, "process", "the holder is killed (SIGKILL) while its key is paused, the next is a task with "+taskType)
			r := newProcessRig(t, time.Second, 2)
			a := r.start()
			first := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, first, a.PID())
			m := r.locker.Mutex(taskType, lock.Parts(processID(0)))
			controls, target := r.locker.Controls(), fmt.Sprintf("%s|%s", taskType, processID(0))
			redistest.Must(t, controls.Pause(t.Context(), target, time.Time{}, "repair"))
			others := []int{r.enqueue(taskType, processTask{ID: processID(0)})}
			r.kill(a)
			r.let(first)
			r.start()
			others = append(others, r.enqueue(taskType, processTask{ID: processID(0)}))
			redistest.Eventually(t, time.Minute, func() bool {
				holders, err := m.Holders(t.Context())
				return err == nil && len(holders) == 0
			}, "the end of the lease of the dead")
			r.awaitPaused(others[1])
			r.recover(func(pid string) bool { return pid == strconv.Itoa(a.PID()) })
			r.start() // its recoverer finds what the dead had
			for _, n := range append(others, first) {
				r.awaitPaused(n)
			}
			r.note(processEvent{What: processResumed})
			redistest.Must(t, controls.Resume(t.Context(), target))
			// They look again within 90 s; an operator does not wait for that.
			redistest.Eventually(t, time.Minute, func() bool {
				_, err := r.inspector.RunAllRetryTasks(r.w.Queue)
				return err == nil && r.worked()
			}, "all tasks being done after the resume")
			resumed := int64(0)
			for _, e := range r.events() {
				switch {
				case e.What == processResumed:
					resumed = e.US
				case e.What == processBegins && resumed == 0 && (e.N != first || e.PID != a.PID()):
					t.Errorf("task %d began before the key was resumed", e.N)
				}
			}
			if b := r.balanced(row); b.cut != 1 || b.runs != 4 {
				t.Errorf("%d runs, of which %d were cut off, want 4 and 1", b.runs, b.cut)
			}
		})
	}
}

// awaitPaused waits until a task has been handed back because its key is paused.
func (r *processRig) awaitPaused(n int) {
	r.t.Helper()
	var last string
	redistest.Eventually(r.t, time.Minute, func() bool {
		tasks, err := r.inspector.ListRetryTasks(r.w.Queue, asynq.PageSize(1000))
		if err != nil {
			return false
		}
		for _, task := range tasks {
			if strings.Contains(string(task.Payload), fmt.Sprintf(`"n":%d,`, n)) {
				last = task.LastErr
				return strings.Contains(last, "paused")
			}
		}
		return false
	}, "task %d going back, its key being paused; its last error is %q", n, &last)
}
