package trust

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A process that holds a key is killed. Whoever wants the key has it at the end
// of the lease and not before, and the task of the dead runs again.
func TestProcess_killed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, taskType := range processTypes {
		t.Run(taskType, func(t *testing.T) {
			t.Parallel()
			row := found(t, "process", "the holder is killed (SIGKILL), the next is a task with "+taskType)
			r := newProcessRig(t, time.Second, 1)
			a := r.start()
			first := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, first, a.PID())
			r.kill(a)
			holders, err := r.locker.Mutex(taskType, lock.Parts(processID(0))).Holders(t.Context())
			if err != nil || len(holders) != 1 || holders[0].Owner != strconv.Itoa(a.PID()) {
				t.Errorf("after the kill: held by %+v, %v; want the dead until the end of its lease", holders, err)
			}
			r.let(first)
			r.start()
			second := r.enqueue(taskType, processTask{ID: processID(0)})
			r.await(processEnds, second, 0)
			r.recover(func(pid string) bool { return pid == strconv.Itoa(a.PID()) })
			r.start() // its recoverer finds what the dead had
			r.await(processEnds, first, 0)
			if b := r.balanced(row); b.cut != 1 || b.runs != 3 {
				t.Errorf("%d runs, of which %d were cut off, want 3 and 1", b.runs, b.cut)
			}
		})
	}
}

// A process that holds a key is stopped for longer than its lease. Another one
// has the key meanwhile, not before the lease's end. The stopped one goes on
// while that one is at work: its context ends, and its fence is refused.
func TestProcess_stopped(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, taskType := range processTypes {
		t.Run(taskType, func(t *testing.T) {
			t.Parallel()
			row := found(t, "process", "the holder is stopped (SIGSTOP) for longer than its TTL, then goes on; the next is a task with "+taskType)
			r := newProcessRig(t, time.Second, 1)
			a := r.start()
			first := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, first, a.PID())
			r.stop(a)
			b := r.start()
			second := r.enqueue(taskType, processTask{ID: processID(0), Hold: true})
			r.await(processBegins, second, b.PID())
			r.resume(a)
			end := r.await(processEnds, first, a.PID())
			if end.Accepted || !strings.HasPrefix(end.Cause, lock.ErrLost.Error()) {
				t.Errorf("the one that was stopped: its last write was accepted: %v; its context ended with %q, want %q", end.Accepted, end.Cause, lock.ErrLost)
			}
			r.let(first, second)
			if b := r.balanced(row); b.overtaken != 1 || b.told != 1 || b.refused != 1 || b.runs != 3 {
				t.Errorf("books: %+v", b)
			}
		})
	}
}

// A process that waits in line is stopped. It is granted the key and does not
// come for it: that costs the next one the length of a grant. When it goes on it
// does not believe what it was told so long ago.
func TestProcess_stoppedInLine(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	row := found(t, "process", "one that waits in line is stopped and granted the key meanwhile")
	r := newProcessRig(t, 2*time.Second, 1)
	a := r.start()
	first := r.enqueue("wait", processTask{ID: processID(0), Hold: true})
	r.await(processBegins, first, a.PID())
	m := r.locker.Mutex("wait", lock.Parts(processID(0)))
	waiting := func(n int) {
		t.Helper()
		redistest.Eventually(t, time.Minute, func() bool {
			got, err := m.Waiting(t.Context())
			return err == nil && got == n
		}, "%d in line", n)
	}
	b := r.start()
	second := r.enqueue("wait", processTask{ID: processID(0)})
	waiting(1)
	c := r.start()
	third := r.enqueue("wait", processTask{ID: processID(0), Hold: true})
	waiting(2)
	r.stop(b)
	r.let(first)
	began := r.await(processBegins, third, c.PID())
	r.resume(b)
	r.let(third)
	if again := r.await(processBegins, second, 0); again.Fence <= began.Fence {
		t.Errorf("the one that was stopped ran with fence %d, after %d", again.Fence, began.Fence)
	}
	if b := r.balanced(row); b.runs != 3 || b.refused != 0 {
		t.Errorf("books: %+v", b)
	}
}

// let has held tasks come to their ends.
func (r *processRig) let(numbers ...int) {
	r.t.Helper()
	for _, n := range numbers {
		if err := r.rdb.SAdd(r.t.Context(), r.w.let(), n).Err(); err != nil {
			r.t.Fatal(err)
		}
	}
}
